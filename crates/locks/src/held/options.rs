//! The settings of one lock, and the limits of each.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Backend, Claim};
use crate::shared::clock::Moment;
use crate::shared::error::LockError;

/// The maximum length of a lock name in bytes. Escaping it for a ZooKeeper path can triple its length.
pub(crate) const NAME_MAX: usize = 1_024;

/// The minimum of a lease and of a hold. The timers of a busy machine are too coarse for a shorter one.
const MIN: Duration = Duration::from_millis(20);

/// The maximum lease. Other clients wait for the rest of the lease after a crash.
const LEASE_MAX: Duration = Duration::from_hours(24);

/// The longest hold if nothing else is set. Without a limit, a task that hangs would keep its lock for as long
/// as its process runs.
const HOLD_DEFAULT: Duration = Duration::from_hours(24);

/// The longest hold that can be set.
const HOLD_MAX: Duration = Duration::from_hours(30 * 24);

/// How one lock is acquired and held. The manager's defaults apply until they are changed.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) name: Arc<str>,
    pub(crate) claim: Claim,
    pub(crate) label: &'static str,
    pub(crate) wait: Duration,
    pub(crate) lease: Duration,
    /// `None`: [`HOLD_DEFAULT`].
    pub(crate) max_hold: Option<Duration>,
    pub(crate) max_renewals: Option<u32>,
    pub(crate) safety_margin: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: Arc::from(""),
            claim: Claim::Exclusive,
            label: "lock",
            wait: Duration::from_secs(5),
            lease: Duration::from_secs(10),
            max_hold: None,
            max_renewals: None,
            safety_margin: None,
        }
    }
}

impl Options {
    /// Checks that the name and the claim are possible on this back end.
    pub(crate) fn check(&self, backend: &dyn Backend) -> Result<(), LockError> {
        if !(1..=NAME_MAX).contains(&self.name.len()) {
            return Err(LockError::InvalidName { limit: NAME_MAX });
        }
        if let Claim::Permits { take, of } = self.claim
            && !(1..=of).contains(&take)
        {
            return Err(LockError::InvalidPermits { take, of });
        }
        if self.claim != Claim::Exclusive && backend.numbers().is_none() {
            let server = backend.properties().name;
            return Err(LockError::Unsupported { server });
        }
        Ok(())
    }

    pub(crate) fn set_lease(&mut self, lease: Duration) {
        self.lease = possible_lease(lease);
    }

    pub(crate) fn set_max_hold(&mut self, limit: Duration) {
        self.max_hold = Some(limit.clamp(MIN, HOLD_MAX));
    }

    /// The latest time at which the lock is guaranteed to be held, if it was requested at `sent`.
    pub(crate) fn valid_until(&self, sent: Moment, lease: Duration, acquired: Moment) -> Moment {
        let until = sent + lease.saturating_sub(self.margin(lease));
        until.min(self.hold_limit(acquired))
    }

    /// How long before its expiry a lock with this lease counts as lost.
    pub(crate) fn margin(&self, lease: Duration) -> Duration {
        self.safety_margin.unwrap_or(lease / 10).min(lease / 2)
    }

    /// The time at which a holder that acquired the lock at `acquired` must release it.
    pub(crate) fn hold_limit(&self, acquired: Moment) -> Moment {
        acquired + self.max_hold.unwrap_or(HOLD_DEFAULT)
    }
}

/// The nearest lease that a lock can have.
pub(crate) fn possible_lease(lease: Duration) -> Duration {
    lease.clamp(MIN, LEASE_MAX)
}
