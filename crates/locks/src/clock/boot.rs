//! `CLOCK_BOOTTIME`, and a timer thread that belongs to no runtime.
//!
//! Tokio's timers do not advance while the machine is suspended, so a guard would learn of its loss
//! a whole lease too late. Instead, one thread per process waits on a `timerfd` of the boot clock.
//! The thread starts with the first sleep. A runtime whose workers are all blocked does not delay
//! it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::BoxFuture;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

use super::{Clock, Moment};

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
        // Do not start the thread for a sleep that was never polled.
        if let Some(timer) = LazyLock::get(&TIMER) {
            timer.sleepers().remove(&self.key);
        }
    }
}

static TIMER: LazyLock<Timer> = LazyLock::new(Timer::start);

struct Timer {
    alarm: OwnedFd,
    sleepers: Mutex<BTreeMap<(Moment, u64), Waker>>,
}

impl Timer {
    fn start() -> Self {
        std::thread::Builder::new()
            .name("lock-timer".to_owned())
            .spawn(|| TIMER.run())
            .expect("a thread can be started");
        Self {
            alarm: timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)
                .expect("Linux has timers on the boot clock"),
            sleepers: Mutex::default(),
        }
    }

    fn sleepers(&self) -> MutexGuard<'_, BTreeMap<(Moment, u64), Waker>> {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_at(&self, key: (Moment, u64), waker: Waker) {
        let mut sleepers = self.sleepers();
        sleepers.insert(key, waker);
        if sleepers.keys().next() == Some(&key) {
            // This wakes the thread even if the moment has just passed.
            self.set_alarm(key.0);
        }
    }

    fn set_alarm(&self, moment: Moment) {
        // A value of zero would disarm the timer.
        let at = moment.since_start().max(Duration::from_nanos(1));
        let alarm = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec::try_from(at).unwrap_or(Timespec {
                tv_sec: i64::MAX,
                tv_nsec: 0,
            }),
        };
        timerfd_settime(&self.alarm, TimerfdTimerFlags::ABSTIME, &alarm)
            .expect("the timer and the time are valid");
    }

    fn run(&self) {
        loop {
            // If a signal interrupts the read, the loop only checks once too often.
            let _ = rustix::io::read(&self.alarm, &mut [0_u8; 8]);
            let due = {
                let mut sleepers = self.sleepers();
                // The largest key that can be due: everything after it is later.
                let later = sleepers.split_off(&(BootClock.now(), u64::MAX));
                let due = std::mem::replace(&mut *sleepers, later);
                if let Some(&(next, _)) = sleepers.keys().next() {
                    self.set_alarm(next);
                }
                due
            };
            due.into_values().for_each(Waker::wake);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{BootClock, Clock, TIMER};

    #[tokio::test]
    async fn sleeps_end_in_order_and_leave_no_entries() {
        let start = BootClock.now();
        let late = BootClock.sleep_until(start + Duration::from_millis(60));
        let early = BootClock.sleep_until(start + Duration::from_millis(20));
        tokio::select! {
            () = late => panic!("the later sleep ended first"),
            () = early => assert!(BootClock.now() >= start + Duration::from_millis(20)),
        }
        assert!(TIMER.sleepers().is_empty());
    }

    #[tokio::test]
    async fn sleep_until_past_moment_ends_at_once() {
        BootClock
            .sleep_until(super::Moment::after_start(Duration::ZERO))
            .await;
        BootClock.sleep_until(BootClock.now()).await;
    }
}
