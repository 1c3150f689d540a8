//! Decides what a change makes of a level. The caller has locked the rows, or checks their versions.

use stocklock_core::ports::ChangeOutcome;
use stocklock_core::stock::{
    Adjustment, Home, LevelChange, MAX_UNITS, Precondition, Revision, StockLevel,
};

/// The level to be written.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) level: StockLevel,
    /// Units on hand before; zero if there was no level.
    pub(crate) before: i64,
    pub(crate) created: bool,
}

/// Decides what `change` makes of a SKU, whose levels are `existing`.
pub(crate) fn plan_level(
    change: &LevelChange,
    existing: &[StockLevel],
) -> Result<Planned, ChangeOutcome> {
    if let Some(precondition) = &change.precondition
        && !holds(precondition, existing)
    {
        return Err(ChangeOutcome::PreconditionFailed);
    }
    let sku_home = existing.first().map(|level| level.home);
    if let (Some(home), Some(asked)) = (sku_home, change.home)
        && home != asked
    {
        return Err(ChangeOutcome::WrongHome(home));
    }
    let old = existing
        .iter()
        .find(|level| level.warehouse == change.warehouse);
    let level = StockLevel {
        sku: change.sku.clone(),
        warehouse: change.warehouse.clone(),
        on_hand: change.on_hand,
        held: old.map_or(0, |old| old.held),
        backorder_limit: change
            .backorder_limit
            .unwrap_or_else(|| old.map_or(0, |old| old.backorder_limit)),
        version: old.map_or(1, |old| old.version + 1),
        home: sku_home.or(change.home).unwrap_or_default(),
    };
    let fits = |units: i64| units.unsigned_abs() <= MAX_UNITS.unsigned_abs();
    if !fits(level.on_hand) || !fits(level.backorder_limit) {
        return Err(ChangeOutcome::TooLarge);
    }
    if level.available() < 0 {
        return Err(ChangeOutcome::BelowLimit {
            available: old.map_or(0, StockLevel::available),
        });
    }
    Ok(Planned {
        level,
        before: old.map_or(0, |old| old.on_hand),
        created: old.is_none(),
    })
}

/// Decides what an adjustment makes of a level whose home is SQL.
pub(crate) fn plan_adjustment(
    adjustment: &Adjustment,
    level: Option<StockLevel>,
) -> Result<StockLevel, ChangeOutcome> {
    match level {
        None => Err(ChangeOutcome::UnknownSku),
        Some(level) if level.home != Home::Sql => Err(ChangeOutcome::WrongHome(level.home)),
        Some(level) => adjusted(adjustment, &level),
    }
}

/// The same for a level of either home.
pub(crate) fn adjusted(
    adjustment: &Adjustment,
    level: &StockLevel,
) -> Result<StockLevel, ChangeOutcome> {
    let adjusted = StockLevel {
        on_hand: level.on_hand + adjustment.delta,
        version: level.version + 1,
        ..level.clone()
    };
    if adjusted.available() < 0 {
        return Err(ChangeOutcome::BelowLimit {
            available: level.available(),
        });
    }
    if adjusted.on_hand.abs() > MAX_UNITS {
        return Err(ChangeOutcome::TooLarge);
    }
    Ok(adjusted)
}

fn holds(precondition: &Precondition, existing: &[StockLevel]) -> bool {
    match precondition {
        Precondition::Exists => !existing.is_empty(),
        Precondition::Absent => existing.is_empty(),
        Precondition::OneOf(revisions) => {
            !existing.is_empty() && revisions.contains(&Revision::of(existing))
        }
    }
}
