//! `for-update`: lock the row by `SELECT … FOR UPDATE`, check, write.
//!
//! *Guarantees*: never oversells: nobody else can read the row for writing before the commit.
//! *Costs*: one transaction of three statements; the row is locked across one more round trip than with `single-sql`.
//! *Fails when*: never by overselling; a slow network stretches the lock, and a client that vanishes keeps it until the server's time-out.
//! *Use when*: the decision needs code between read and write that one statement cannot express.

use crate::stock::Deduction;
use crate::store::{Attempt, StockStore, StoreError};

use super::{Card, Tier};

pub(super) const CARD: Card = Card {
    name: "for-update",
    tier: Tier::Safe,
    home: "sql",
    needs: &[],
    planned: false,
    source: include_str!("for_update.rs"),
};

/// Lets the store lock, read, decide and write in one transaction.
pub(super) async fn attempt(
    store: &dyn StockStore,
    deduction: &Deduction,
) -> Result<Attempt, StoreError> {
    store.deduct_under_row_lock(deduction).await
}
