//! Read, check, write under a distributed lock.
//!
//! Two safeguards make a lost lock harmless. The local check notices an expired lease without a
//! round trip, and avoids a write that the store would refuse. The guard makes the write
//! conditional on version and fence, so the store refuses it if another holder has written since.
//! Without a fencing token the version alone decides, and a refused write counts as a conflict. The lab
//! can turn off each safeguard to show its effect.

use super::DeductionRun;
use super::read_check::read_check_write;
use crate::ports::{AttemptOutcome, Condition, StoreError};

/// One attempt under the held lock. [`AttemptOutcome::LockLost`] asks for another attempt under a
/// new lock.
pub(super) async fn attempt(run: &DeductionRun<'_>) -> Result<AttemptOutcome, StoreError> {
    let lock = run.lock.as_ref().expect("a lock strategy has a lock");
    let held = lock.held().await;
    let held = held.as_deref().expect("the lock is acquired before");
    let fence = held.fence();
    let condition = match &fence {
        _ if !run.safeguards.guard => Condition::None,
        Some(fence) => Condition::Fence(fence),
        None => Condition::Version,
    };
    let is_lost = || run.safeguards.check && held.is_lost();
    read_check_write(run, condition, is_lost).await
}
