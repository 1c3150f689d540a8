//! The first half of every read-check-write: read the level, check that it suffices.

use std::ops::ControlFlow;

use crate::stock::{Deduction, Home, StockLevel};
use crate::store::{Attempt, StockStore, StoreError};

/// Goes on with the level that was read, or breaks with what it already settles. `home` is the only
/// one that the strategy works on, if there is but one.
pub(super) async fn read_and_check(
    store: &dyn StockStore,
    deduction: &Deduction,
    home: Option<Home>,
) -> Result<ControlFlow<Attempt, StockLevel>, StoreError> {
    let Some(level) = store.level(&deduction.sku, &deduction.warehouse).await? else {
        return Ok(ControlFlow::Break(Attempt::UnknownSku));
    };
    if home.is_some_and(|home| home != level.home) {
        return Ok(ControlFlow::Break(Attempt::WrongHome(level.home)));
    }
    let available = level.available();
    if available < deduction.quantity.units() {
        return Ok(ControlFlow::Break(Attempt::Insufficient { available }));
    }
    Ok(ControlFlow::Continue(level))
}
