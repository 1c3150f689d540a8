//! What the strategies of one replica work with, and what an attempt at a deduction works with.

use std::sync::Arc;

use serde::Serialize;

use super::{Available, LocalMutexes, Strategy};
use crate::deduct::{Asked, Counters, DeductionLock, RetryPolicy, Scheduler};
use crate::ports::{DeductionMetrics, DeductionStore, Lock};
use crate::stock::Operation;

/// Everything that the strategies of one replica work with.
#[derive(Debug)]
pub struct DeductionContext {
    /// The store of the stock.
    pub store: Arc<dyn DeductionStore>,
    /// The mutexes of this process.
    pub mutexes: Arc<LocalMutexes>,
    /// The scheduler of `group-commit`.
    pub scheduler: Arc<Scheduler>,
    /// The counters in Redis; `None` without Redis.
    pub counters: Option<Arc<Counters>>,
    /// The distributed locks.
    pub locks: Locks,
    /// Which strategies can be used.
    pub available: Available,
    /// How long and how often to retry.
    pub policy: RetryPolicy,
    /// Where deductions and refused writes are counted.
    pub metrics: Arc<dyn DeductionMetrics>,
}

/// The distributed locks of one replica, one for each strategy that needs one.
#[derive(Debug, Clone, Default)]
pub struct Locks(Vec<(Strategy, Arc<dyn Lock>)>);

impl Locks {
    /// The locks that these strategies put around a deduction.
    #[must_use]
    pub fn new(locks: impl IntoIterator<Item = (Strategy, Arc<dyn Lock>)>) -> Self {
        Self(locks.into_iter().collect())
    }

    /// The lock that `strategy` puts around a deduction, if it uses one.
    #[must_use]
    pub fn get(&self, strategy: Strategy) -> Option<&dyn Lock> {
        let (_, lock) = self.0.iter().find(|(user, _)| *user == strategy)?;
        Some(&**lock)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &dyn Lock> {
        self.0.iter().map(|(_, lock)| &**lock)
    }
}

/// How a lock strategy protects itself from a lost lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Safeguards {
    /// Make the write conditional on version and fence.
    pub guard: bool,
    /// Do not write if this process knows that the lock is lost.
    pub check: bool,
}

impl Default for Safeguards {
    fn default() -> Self {
        Self {
            guard: true,
            check: true,
        }
    }
}

/// One deduction: what to deduct, how it is protected, and what the strategy works with.
#[derive(Debug)]
pub struct DeductionRun<'a> {
    /// The store, the locks, the retry policy.
    pub context: &'a DeductionContext,
    /// What to deduct, from one level. Every attempt carries the same operation id.
    pub deduction: &'a Operation,
    /// How a lock strategy protects itself from a lost lock.
    pub safeguards: Safeguards,
    /// The lock of a lock strategy.
    pub lock: Option<DeductionLock<'a>>,
    /// How it is protected.
    pub strategy: Strategy,
    /// What the counter in Redis said, if the strategy asks one.
    pub(crate) asked: Option<Asked>,
}

impl<'a> DeductionRun<'a> {
    /// Nothing is sent until [`DeductionRun::run`].
    #[must_use]
    pub fn new(
        context: &'a DeductionContext,
        strategy: Strategy,
        deduction: &'a Operation,
        safeguards: Safeguards,
    ) -> Self {
        let lock = context.locks.get(strategy);
        Self {
            context,
            deduction,
            safeguards,
            lock: lock.map(|lock| DeductionLock::new(deduction, lock)),
            strategy,
            asked: None,
        }
    }

    /// The units that the counter has left, after it has admitted this deduction.
    pub(crate) fn left_in_counter(&self) -> i64 {
        match self.asked {
            Some(Asked::Admitted { left }) => left,
            _ => unreachable!("the counter has admitted the deduction"),
        }
    }
}
