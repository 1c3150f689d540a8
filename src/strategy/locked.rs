//! Read, check, write under a lock: what all strategies with a distributed lock do.
//!
//! Two things keep a lost lock from doing harm. The local check sees, without asking anybody, that
//! the lease is over, and saves a write that would be refused. The guard, a write on condition of
//! version and fence, refuses what comes too late for that. The lab can turn both off, one by one,
//! to show what then happens.

use std::ops::ControlFlow;

use serde::Serialize;

use super::read_check::read_and_check;
use super::tenure::Tenure;
use super::{Held, Protection};
use crate::stock::{Deduction, StockLevel};
use crate::store::{Attempt, StoreError};

/// What keeps a deduction under a lost lock from doing harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Safeguards {
    /// Write only on condition of version and fence.
    pub guard: bool,
    /// Do not write at all when the lock is known here to be lost.
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

/// One attempt under the lock that is held; [`Attempt::LockLost`] gives it up, and asks for another
/// attempt under a new one.
pub(super) async fn attempt(
    protection: &Protection<'_>,
    tenure: &Tenure<'_>,
    deduction: &Deduction,
) -> Result<Attempt, StoreError> {
    let held = tenure.held().await;
    let held = held.as_deref().expect("the lock is secured before");
    let level = match read_and_check(protection.store, deduction, None).await? {
        ControlFlow::Continue(level) => level,
        ControlFlow::Break(settled) => return Ok(settled),
    };
    if protection.safeguards.check && held.is_lost() {
        return Ok(Attempt::LockLost);
    }
    if protection.safeguards.guard {
        guarded(protection, deduction, &level, held).await
    } else {
        protection.store.overwrite(deduction, &level).await
    }
}

async fn guarded(
    protection: &Protection<'_>,
    deduction: &Deduction,
    level: &StockLevel,
    held: &dyn Held,
) -> Result<Attempt, StoreError> {
    let fence = held.fence();
    let written = protection
        .store
        .deduct_if_fenced(deduction, level, &fence)
        .await?;
    match written {
        Attempt::Stale => protection.refused(deduction, "version"),
        Attempt::LockLost => protection.refused(deduction, "fence"),
        _ => {}
    }
    Ok(written)
}
