//! Time as locks need it: how much has passed, never what the wall says.
//!
//! A lease runs on a server that does not stop when this machine is suspended, so the default on
//! Linux is [`BootClock`], which counts the suspension too. [`TokioClock`] follows the runtime, and
//! is virtual where the runtime's time is paused. There is no wall clock here: nothing in this
//! crate changes when somebody sets one.

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

/// A point on one [`Clock`]; points of different clocks do not compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(Duration);

impl Moment {
    /// The point that lies `passed` after the clock's own beginning.
    #[must_use]
    pub const fn after_start(passed: Duration) -> Self {
        Self(passed)
    }

    /// How long after the clock's own beginning this is.
    #[must_use]
    pub const fn since_start(self) -> Duration {
        self.0
    }

    /// How long after `earlier` this is; zero if it is not.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    /// Saturates: "for ever" is as good as its end.
    fn add(self, later: Duration) -> Self {
        Self(self.0.saturating_add(later))
    }
}

/// A source of time that never goes back, and that can wake who waits for a point of it.
pub trait Clock: Debug + Send + Sync + 'static {
    /// Now.
    fn now(&self) -> Moment;

    /// Completes at `moment`, or at once if that has passed.
    fn sleep_until(&self, moment: Moment) -> BoxFuture<'static, ()>;
}

/// The time of the Tokio runtime: monotonic, stands still while the machine is suspended, and is
/// virtual under `#[tokio::test(start_paused = true)]`.
#[derive(Debug, Clone)]
pub struct TokioClock {
    start: Instant,
}

impl TokioClock {
    /// A clock that begins now.
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

/// The clock of a manager that was given none.
pub(crate) fn default_clock() -> Arc<dyn Clock> {
    #[cfg(target_os = "linux")]
    return Arc::new(BootClock);
    #[cfg(not(target_os = "linux"))]
    return Arc::new(TokioClock::new());
}
