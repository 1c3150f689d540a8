//! `optimistic`: read with version, write only if the version is still the same, else again.
//!
//! *Guarantees*: never oversells: a write that follows from an outdated read changes no row.
//! *Costs*: one read and one transaction per attempt; under contention most attempts are thrown away.
//! *Fails when*: never by overselling; on a hot row it may give up as contended (503) while others succeed.
//! *Use when*: conflicts are rare, or the reader thinks for long and must not hold a lock meanwhile.

use std::ops::ControlFlow;

use crate::stock::{Deduction, Home};
use crate::store::{Attempt, StoreError};

use super::read_check::read_and_check;
use super::{Card, Protection, Tier};

pub(super) const CARD: Card = Card {
    name: "optimistic",
    tier: Tier::Safe,
    home: "sql",
    needs: &[],
    planned: false,
    source: include_str!("optimistic.rs"),
};

/// One read and one conditional write; [`Attempt::Stale`] asks for another attempt.
pub(super) async fn attempt(
    protection: &Protection<'_>,
    deduction: &Deduction,
) -> Result<Attempt, StoreError> {
    let store = protection.store;
    let level = match read_and_check(store, deduction, Some(Home::Sql)).await? {
        ControlFlow::Continue(level) => level,
        ControlFlow::Break(settled) => return Ok(settled),
    };
    let written = store.deduct_if_version(deduction, &level).await?;
    if written == Attempt::Stale {
        protection.refused(deduction, "version");
    }
    Ok(written)
}
