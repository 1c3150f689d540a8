//! Clocks for leases and deadlines. They are monotonic; no wall clock is read.
//!
//! A lease on a server continues while this machine is suspended. The default on Linux is therefore
//! [`BootClock`], which includes suspended time. [`TokioClock`] follows the Tokio runtime, and is
//! virtual if the time of the runtime is paused.

use std::fmt::Debug;
use std::ops::Add;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;

#[cfg(target_os = "linux")]
mod boot;

#[cfg(target_os = "linux")]
pub use boot::BootClock;

/// A point in time on one [`Clock`]. Moments of different clocks cannot be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(Duration);

impl Moment {
    /// Creates the moment that is `passed` after the start of the clock.
    #[must_use]
    pub const fn after_start(passed: Duration) -> Self {
        Self(passed)
    }

    /// Returns the time from the start of the clock to this moment.
    #[must_use]
    pub const fn since_start(self) -> Duration {
        self.0
    }

    /// Returns the time from `earlier` to this moment, or zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    /// Adds a duration, and saturates at the maximum.
    fn add(self, later: Duration) -> Self {
        Self(self.0.saturating_add(later))
    }
}

/// A monotonic clock with timers.
pub trait Clock: Debug + Send + Sync + 'static {
    /// Returns the current time.
    fn now(&self) -> Moment;

    /// Completes at `moment`, or at once if `moment` has passed.
    fn sleep_until(&self, moment: Moment) -> BoxFuture<'static, ()>;
}

/// The time of the Tokio runtime. It does not advance while the machine is suspended, and is
/// virtual under `#[tokio::test(start_paused = true)]`.
#[derive(Debug, Clone)]
pub struct TokioClock {
    start: Instant,
}

impl TokioClock {
    /// Creates a clock that starts now.
    #[must_use]
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
        }
    }
}

impl Default for TokioClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Moment {
        Moment(self.start.elapsed())
    }

    fn sleep_until(&self, moment: Moment) -> BoxFuture<'static, ()> {
        let until = self.start.checked_add(moment.0);
        Box::pin(async move {
            match until {
                Some(instant) => tokio::time::sleep_until(instant).await,
                None => std::future::pending().await,
            }
        })
    }
}

/// The clock of a manager that is built without one.
pub(crate) fn default_clock() -> Arc<dyn Clock> {
    #[cfg(target_os = "linux")]
    return Arc::new(BootClock);
    #[cfg(not(target_os = "linux"))]
    return Arc::new(TokioClock::new());
}
