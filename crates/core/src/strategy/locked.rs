//! Read, check, write under a distributed lock.
//!
//! Two safeguards keep a lost lock harmless. The local check sees, without a round trip, that the
//! lease is over, and saves a write that would be refused. The guard, a write on condition of
//! version and fence, refuses a write that comes too late for the check. The lab can turn off each
//! of them to show the effect.

use std::ops::ControlFlow;

use serde::Serialize;

use super::Homes;
use super::read_check::read_and_check;
use crate::deduct::DeductionRun;
use crate::ports::{AttemptOutcome, Condition, StoreError};

/// How a lock strategy protects itself from a lost lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Safeguards {
    /// Write only on condition of version and fence.
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

/// One attempt under the held lock. [`AttemptOutcome::LockLost`] asks for another attempt under a
/// new lock.
pub(super) async fn attempt(run: &DeductionRun<'_>) -> Result<AttemptOutcome, StoreError> {
    let lock = run.lock.as_ref().expect("a lock strategy has a lock");
    let held = lock.held().await;
    let held = held.as_deref().expect("the lock is acquired before");
    let level = match read_and_check(run, Homes::Either).await? {
        ControlFlow::Continue(level) => level,
        ControlFlow::Break(refused) => return Ok(refused),
    };
    if run.safeguards.check && held.is_lost() {
        return Ok(AttemptOutcome::LockLost);
    }
    let fence = held.fence();
    let condition = if run.safeguards.guard {
        Condition::Fence(&fence)
    } else {
        Condition::None
    };
    let store = &run.context.store;
    let written = store.write_back(run.deduction, &level, condition).await?;
    match written {
        AttemptOutcome::Conflict => run.count_refused_write("version"),
        AttemptOutcome::LockLost => run.count_refused_write("fence"),
        _ => {}
    }
    Ok(written)
}
