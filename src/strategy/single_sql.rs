//! `single-sql`: one `UPDATE` that takes the units only where there are enough.
//!
//! *Guarantees*: never oversells: check and write are one statement, and the row's own lock orders them.
//! *Costs*: one round trip to a server; the row is locked from the `UPDATE` to the end of the commit, and across no round trip.
//! *Fails when*: never by overselling; on one very hot row, deductions queue for the commit.
//! *Use when*: always, unless you have measured a reason for another; it is the default.

use crate::stock::Deduction;
use crate::store::{Attempt, StockStore, StoreError};

use super::{Card, Tier};

pub(super) const CARD: Card = Card {
    name: "single-sql",
    tier: Tier::Safe,
    home: "sql",
    needs: &[],
    planned: false,
    source: include_str!("single_sql.rs"),
};

/// Lets the store's guarded `UPDATE` decide.
pub(super) async fn attempt(
    store: &dyn StockStore,
    deduction: &Deduction,
) -> Result<Attempt, StoreError> {
    store.deduct_if_available(deduction).await
}
