//! What one line makes of its level.

use std::slice;

use super::Returned;
use crate::ports::{AttemptOutcome, ChangedLevel, Refusal};
use crate::stock::{
    Change, Line, MAX_UNITS, MovementKind, OperationId, Precondition, Quantity, Return, Revision,
    Scope, Setting, StockLevel,
};

/// What a line does.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) kind: MovementKind,
    /// Units added to `on_hand`.
    pub(super) delta: i64,
    /// Units added to those that are available.
    pub(super) available_delta: i64,
    /// The new backorder limit, if it is set.
    pub(super) backorder_limit: Option<i64>,
    pub(super) read_version: Option<i64>,
    /// The line of a sale whose units come back, and how many.
    pub(super) returned: Option<((OperationId, i64), i64)>,
    /// The level then, if it is known.
    pub(super) after: Option<StockLevel>,
}

/// The level of a line.
pub(super) fn find<'l>(levels: &'l [StockLevel], line: &Line) -> Option<&'l StockLevel> {
    let mut levels = levels.iter();
    levels.find(|level| level.sku == line.sku && level.warehouse == line.warehouse)
}

/// Replaces a level, or adds it in the order of the warehouses.
pub(super) fn put(levels: &mut Vec<StockLevel>, after: StockLevel) {
    let order = |level: &StockLevel| {
        let place = (&level.sku, &level.warehouse);
        place.cmp(&(&after.sku, &after.warehouse))
    };
    match levels.binary_search_by(order) {
        Ok(found) => levels[found] = after,
        Err(next) => levels.insert(next, after),
    }
}

/// Undoes [`put`]: the level of the line as it was before.
pub(super) fn restore(levels: &mut Vec<StockLevel>, line: &Line, before: Option<StockLevel>) {
    match before {
        Some(before) => put(levels, before),
        None => levels.retain(|level| level.sku != line.sku || level.warehouse != line.warehouse),
    }
}

/// A line whose level was not read: enough units are a condition of the write.
pub(super) fn unread_step(line: &Line) -> Result<Step, AttemptOutcome> {
    match line.change {
        Change::Deduct(quantity) => Ok(sale(quantity, None)),
        // The others depend on the level.
        Change::Adjust(_) | Change::Return(_) | Change::Set(_) => Err(AttemptOutcome::Conflict),
    }
}

/// A line whose SKU has these `levels`, in the order of the warehouses.
pub(super) fn step(
    line: &Line,
    levels: &[StockLevel],
    returned: &Returned,
) -> Result<Step, AttemptOutcome> {
    let level = find(levels, line);
    match &line.change {
        Change::Deduct(quantity) => deduct(*quantity, level),
        Change::Adjust(delta) => adjust(*delta, level),
        Change::Return(one) => take_back(one, level, returned),
        Change::Set(setting) => set(line, setting, level, levels),
    }
}

fn sale(quantity: Quantity, after: Option<StockLevel>) -> Step {
    Step {
        kind: MovementKind::Deducted,
        delta: -quantity.units(),
        available_delta: -quantity.units(),
        backorder_limit: None,
        read_version: None,
        returned: None,
        after,
    }
}

fn deduct(quantity: Quantity, level: Option<&StockLevel>) -> Result<Step, AttemptOutcome> {
    AttemptOutcome::decide(level, quantity.units())?;
    let level = level.ok_or(AttemptOutcome::UnknownSku)?;
    Ok(sale(quantity, Some(moved(level, -quantity.units()))))
}

fn adjust(delta: i64, level: Option<&StockLevel>) -> Result<Step, AttemptOutcome> {
    let level = level.ok_or(AttemptOutcome::UnknownSku)?;
    let after = moved(level, delta);
    if after.available() < 0 {
        let available = level.available();
        return Err(if delta < 0 {
            AttemptOutcome::Insufficient { available }
        } else {
            AttemptOutcome::Refused(Refusal::BelowLimit)
        });
    }
    fits(after.on_hand)?;
    Ok(Step {
        kind: MovementKind::of_change(delta),
        delta,
        available_delta: delta,
        backorder_limit: None,
        read_version: None,
        returned: None,
        after: Some(after),
    })
}

fn take_back(
    one: &Return,
    level: Option<&StockLevel>,
    returned: &Returned,
) -> Result<Step, AttemptOutcome> {
    let level = level.ok_or(AttemptOutcome::UnknownSku)?;
    let sale = (one.sale, one.line);
    let left = one.sold - returned.get(&sale).copied().unwrap_or(0);
    let quantity = one.quantity.map_or(left, Quantity::units);
    if quantity > left || left <= 0 {
        return Err(AttemptOutcome::Refused(Refusal::ExceedsSale { left }));
    }
    let restocked = if one.restock { quantity } else { 0 };
    let after = moved(level, restocked);
    fits(after.on_hand)?;
    Ok(Step {
        kind: MovementKind::Returned,
        delta: restocked,
        available_delta: restocked,
        backorder_limit: None,
        read_version: None,
        returned: Some((sale, quantity)),
        after: Some(after),
    })
}

fn set(
    line: &Line,
    setting: &Setting,
    old: Option<&StockLevel>,
    levels: &[StockLevel],
) -> Result<Step, AttemptOutcome> {
    let refused = |refusal| Err(AttemptOutcome::Refused(refusal));
    if !precondition_holds(line, setting, old, levels) {
        return refused(Refusal::PreconditionFailed);
    }
    // A number that is older than a sale would bring the sold units back.
    let is_blind = setting.on_hand.is_some() && setting.precondition.is_none();
    if is_blind && old.is_some_and(|old| old.version > 1) {
        return refused(Refusal::PreconditionRequired);
    }
    let kept = old.map(|old| old.on_hand);
    let on_hand = setting.on_hand.or(kept).ok_or(AttemptOutcome::UnknownSku)?;
    let kept = old.map_or(0, |old| old.backorder_limit);
    let after = StockLevel {
        sku: line.sku.clone(),
        warehouse: line.warehouse.clone(),
        on_hand,
        held: old.map_or(0, |old| old.held),
        backorder_limit: setting.backorder_limit.unwrap_or(kept),
        version: old.map_or(0, |old| old.version) + 1,
    };
    if let Some(old) = old
        && (old.on_hand, old.backorder_limit) == (after.on_hand, after.backorder_limit)
    {
        return Err(AttemptOutcome::Changed(Box::new(ChangedLevel {
            level: old.clone(),
            created: false,
            delta: 0,
            returned: None,
        })));
    }
    fits(after.on_hand)?;
    fits(after.backorder_limit)?;
    if after.available() < 0 {
        return refused(Refusal::BelowLimit);
    }
    let delta = after.on_hand - old.map_or(0, |old| old.on_hand);
    Ok(Step {
        kind: MovementKind::of_change(delta),
        delta,
        available_delta: after.available() - old.map_or(0, StockLevel::available),
        backorder_limit: Some(after.backorder_limit),
        read_version: old.map(|old| old.version),
        returned: None,
        after: Some(after),
    })
}

fn precondition_holds(
    line: &Line,
    setting: &Setting,
    old: Option<&StockLevel>,
    levels: &[StockLevel],
) -> bool {
    let of_sku: Vec<_> = levels
        .iter()
        .filter(|one| one.sku == line.sku)
        .cloned()
        .collect();
    let existing = &of_sku[..];
    let covered = match setting.scope {
        Scope::Sku => existing,
        Scope::Level => old.map_or(&[][..], slice::from_ref),
    };
    match &setting.precondition {
        None => true,
        Some(Precondition::Exists) => !covered.is_empty(),
        Some(Precondition::Absent) => covered.is_empty(),
        // If no level of the SKU has changed, then this one has not.
        Some(Precondition::OneOf(revisions)) => [covered, existing]
            .into_iter()
            .any(|levels| !levels.is_empty() && revisions.contains(&Revision::of(levels))),
    }
}

/// The level with so many units more on hand.
fn moved(level: &StockLevel, delta: i64) -> StockLevel {
    StockLevel {
        on_hand: level.on_hand + delta,
        version: level.version + 1,
        ..level.clone()
    }
}

fn fits(units: i64) -> Result<(), AttemptOutcome> {
    if units.unsigned_abs() > MAX_UNITS.unsigned_abs() {
        return Err(AttemptOutcome::Refused(Refusal::TooLarge));
    }
    Ok(())
}
