//! `no-lock`: read, check, write back, with nothing in between to stop others.
//!
//! *Guarantees*: nothing; movement and level still commit together, so the audit shows what was lost.
//! *Costs*: one read and one transaction; nobody ever waits for the decision.
//! *Fails when*: two requests read the same level: both write what follows from it, and one sale vanishes from the counter.
//! *Use when*: you want to see an oversell; never with real stock.

use std::ops::ControlFlow;

use crate::stock::Deduction;
use crate::store::{Attempt, StockStore, StoreError};

use super::read_check::read_and_check;
use super::{Card, Tier};

pub(super) const CARD: Card = Card {
    name: "no-lock",
    tier: Tier::Unsafe,
    home: "either",
    needs: &[],
    planned: false,
    source: include_str!("no_lock.rs"),
};

/// Reads the level, checks it, overwrites it.
pub(super) async fn attempt(
    store: &dyn StockStore,
    deduction: &Deduction,
) -> Result<Attempt, StoreError> {
    match read_and_check(store, deduction, None).await? {
        ControlFlow::Continue(level) => store.overwrite(deduction, &level).await,
        ControlFlow::Break(settled) => Ok(settled),
    }
}
