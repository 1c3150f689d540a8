//! `CLOCK_BOOTTIME`, and a timer thread that belongs to no runtime.
//!
//! Tokio's timers do not advance while the machine is suspended, so a guard would learn of its loss
//! a whole lease too late. Instead, one thread per process waits on a `timerfd` of the boot clock.
//! The thread starts with the first sleep. A runtime whose workers are all blocked does not delay
//! it. While the process has no free file for the `timerfd`, the thread polls the clock.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::BoxFuture;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

use super::{Clock, Moment};
use crate::shared::lock::lock;

/// The time since the machine started, including suspended time.
#[derive(Debug, Clone, Copy, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Moment {
        let now = clock_gettime(ClockId::Boottime);
        Moment::after_start(
            Duration::try_from(now).expect("the time since the machine started is positive"),
        )
    }

    fn sleep_until(&self, moment: Moment) -> BoxFuture<'static, ()> {
        static IDS: AtomicU64 = AtomicU64::new(0);
        Box::pin(Sleep {
            key: (moment, IDS.fetch_add(1, Ordering::Relaxed)),
        })
    }
}

struct Sleep {
    key: (Moment, u64),
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if BootClock.now() >= self.key.0 {
            return Poll::Ready(());
        }
        TIMER.wake_at(self.key, context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        lock(&TIMER.state).sleepers.remove(&self.key);
    }
}

static TIMER: Timer = Timer {
    state: Mutex::new(State {
        sleepers: BTreeMap::new(),
        is_running: false,
        alarm: None,
    }),
    earlier: Condvar::new(),
};

/// How often the clock is polled without a `timerfd`.
const POLL_EVERY: Duration = Duration::from_millis(20);

struct Timer {
    state: Mutex<State>,
    /// Wakes a thread that polls.
    earlier: Condvar,
}

struct State {
    sleepers: BTreeMap<(Moment, u64), Waker>,
    is_running: bool,
    /// `None` until the thread has created it. It is never closed.
    alarm: Option<Arc<OwnedFd>>,
}

impl Timer {
    fn wake_at(&self, key: (Moment, u64), waker: Waker) {
        let mut state = lock(&self.state);
        if !state.is_running {
            let thread = std::thread::Builder::new().name("lock-timer".to_owned());
            if let Err(error) = thread.spawn(|| TIMER.run()) {
                tracing::error!(%error, "the timer thread of the locks cannot be started");
                drop(state);
                // The sleep checks the clock itself until a thread can be started.
                return waker.wake();
            }
            state.is_running = true;
        }
        state.sleepers.insert(key, waker);
        if state.sleepers.keys().next() == Some(&key) {
            // This wakes the thread even if the moment has just passed.
            state.set_alarm();
            self.earlier.notify_one();
        }
    }

    fn run(&self) {
        let mut is_warned = false;
        loop {
            let mut state = lock(&self.state);
            if state.alarm.is_none() {
                match timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC) {
                    Ok(alarm) => state.alarm = Some(Arc::new(alarm)),
                    Err(error) if !is_warned => {
                        tracing::warn!(%error, "no timer for locks; polling the clock");
                        is_warned = true;
                    }
                    Err(_) => {}
                }
            }
            let later = state.sleepers.split_off(&(BootClock.now(), u64::MAX));
            let due = std::mem::replace(&mut state.sleepers, later);
            if !due.is_empty() {
                drop(state);
                due.into_values().for_each(Waker::wake);
                continue;
            }
            state.set_alarm();
            if let Some(alarm) = state.alarm.clone() {
                drop(state);
                // If a signal interrupts the read, the loop only checks once too often.
                let _ = rustix::io::read(&*alarm, &mut [0_u8; 8]);
            } else if state.sleepers.is_empty() {
                drop(self.earlier.wait(state));
            } else {
                drop(self.earlier.wait_timeout(state, POLL_EVERY));
            }
        }
    }
}

impl State {
    /// Sets the `timerfd`, if there is one, to the first sleeper.
    fn set_alarm(&self) {
        let (Some(alarm), Some((moment, _))) = (&self.alarm, self.sleepers.keys().next()) else {
            return;
        };
        // A value of zero would disarm the timer.
        let at = moment.since_start().max(Duration::from_nanos(1));
        let value = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec::try_from(at).unwrap_or(Timespec {
                tv_sec: i64::MAX,
                tv_nsec: 0,
            }),
        };
        timerfd_settime(&**alarm, TimerfdTimerFlags::ABSTIME, &value)
            .expect("the timer and the time are valid");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{BootClock, Clock, TIMER};
    use crate::shared::lock::lock;

    #[tokio::test]
    async fn sleeps_end_in_order_and_leave_no_entries() {
        let start = BootClock.now();
        let late = BootClock.sleep_until(start + Duration::from_millis(60));
        let early = BootClock.sleep_until(start + Duration::from_millis(20));
        tokio::select! {
            () = late => panic!("the later sleep ended first"),
            () = early => assert!(BootClock.now() >= start + Duration::from_millis(20)),
        }
        assert!(lock(&TIMER.state).sleepers.is_empty());
    }
}
