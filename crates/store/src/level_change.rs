//! What setting a level amounts to, decided on the rows that the transaction has locked.

pub(super) use stocklock_core::stock::MAX_UNITS;
use stocklock_core::stock::{Home, LevelChange, Precondition, Revision, StockLevel};

use super::ChangeOutcome;

/// The level to be written.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) level: StockLevel,
    /// What was on hand before; zero where there was no level.
    pub(super) before: i64,
    pub(super) created: bool,
}

/// Decides what `change` makes of a SKU whose levels, all of them, are `existing` rows. One that
/// mirrors a level in Redis is not ours to set, but it is created here.
pub(super) fn plan(
    change: &LevelChange,
    existing: &[StockLevel],
) -> Result<Planned, ChangeOutcome> {
    let planned = plan_level(change, existing)?;
    match planned.level.home {
        Home::Redis if !planned.created => Err(ChangeOutcome::WrongHome(Home::Redis)),
        _ => Ok(planned),
    }
}

/// The same for levels wherever they live.
pub(super) fn plan_level(
    change: &LevelChange,
    existing: &[StockLevel],
) -> Result<Planned, ChangeOutcome> {
    check_precondition(change.precondition.as_ref(), existing)?;
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
    let before = old.map_or(0, |old| old.on_hand);
    Ok(Planned {
        level,
        before,
        created: old.is_none(),
    })
}

fn check_precondition(
    precondition: Option<&Precondition>,
    existing: &[StockLevel],
) -> Result<(), ChangeOutcome> {
    let holds = match precondition {
        None => true,
        Some(Precondition::Exists) => !existing.is_empty(),
        Some(Precondition::Absent) => existing.is_empty(),
        Some(Precondition::OneOf(revisions)) => {
            !existing.is_empty() && revisions.contains(&Revision::of(existing))
        }
    };
    if holds {
        Ok(())
    } else {
        Err(ChangeOutcome::PreconditionFailed)
    }
}
