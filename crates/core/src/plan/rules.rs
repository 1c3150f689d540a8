//! What one line makes of its level.

use super::{Returned, Snapshot};
use crate::ports::AttemptOutcome;
use crate::stock::{
    self, Change, Ending, Holding, How, Line, MAX_UNITS, MovementKind, OperationId, Quantity,
    Refusal, Return, Sku, StockLevel, Warehouse,
};

mod setting;

use setting::{count, set};

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
    /// Units added to `held`.
    pub(super) held_delta: i64,
    /// The line of a sale whose units come back, and how many.
    pub(super) returned: Option<((OperationId, i64), i64)>,
    /// The sale whose units come back, or the hold that ends.
    pub(super) reverses: Option<OperationId>,
    /// When it ends, if it is a hold.
    pub(super) expires_at: Option<i64>,
    /// The level then, if it is known.
    pub(super) after: Option<StockLevel>,
}

impl Step {
    /// A change of `on_hand`, and of nothing else.
    fn new(kind: MovementKind, delta: i64, after: Option<StockLevel>) -> Self {
        Self {
            kind,
            delta,
            held_delta: 0,
            available_delta: delta,
            backorder_limit: None,
            read_version: None,
            returned: None,
            reverses: None,
            expires_at: None,
            after,
        }
    }
}

/// The name of a level.
pub(super) type Level<'a> = (&'a Sku, &'a Warehouse);

/// The level with this name.
pub(super) fn find<'l>(levels: &'l [StockLevel], name: Level<'_>) -> Option<&'l StockLevel> {
    let mut levels = levels.iter();
    levels.find(|level| (&level.sku, &level.warehouse) == name)
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

/// Undoes [`put`]: the level as it was before.
pub(super) fn restore(levels: &mut Vec<StockLevel>, name: Level<'_>, before: Option<StockLevel>) {
    match before {
        Some(before) => put(levels, before),
        None => levels.retain(|level| (&level.sku, &level.warehouse) != name),
    }
}

/// A line whose level was not read: enough units are a condition of the write.
pub(super) fn unread_step(change: &Change, now: i64) -> Result<Step, AttemptOutcome> {
    match change {
        Change::Deduct(quantity) => Ok(sale(*quantity, None)),
        Change::Hold(holding) => Ok(held(*holding, now, None)),
        // The others depend on the level.
        Change::Adjust(_)
        | Change::Return(_)
        | Change::Set(_)
        | Change::Count(_)
        | Change::End(_) => Err(AttemptOutcome::Conflict),
    }
}

/// From which levels a line takes its units, if it has a choice: the first that has all; or, if it may be
/// split, what each has, in their order. A level that does not exist has none.
pub(super) fn choose<'a>(
    line: &'a Line,
    state: &Snapshot,
) -> Result<Vec<(Level<'a>, Change)>, AttemptOutcome> {
    let Some(wanted) = line.change.quantity() else {
        return Err(AttemptOutcome::Conflict);
    };
    let available = line.levels().map(|level| find(&state.levels, level));
    let available = available.map(|level| level.map(StockLevel::available));
    let available: Vec<_> = available.collect();
    if available.iter().all(Option::is_none) {
        return Err(AttemptOutcome::UnknownSku);
    }
    let available: Vec<_> = available
        .into_iter()
        .map(Option::unwrap_or_default)
        .collect();
    let mut levels = line.levels().zip(&available);
    if let Some((level, _)) = levels.find(|(_, units)| **units >= wanted.units()) {
        return Ok(vec![(level, line.change.clone())]);
    }
    if !line.split || available.iter().sum::<i64>() < wanted.units() {
        return Err(AttemptOutcome::Short { available });
    }
    let (mut parts, mut left) = (Vec::new(), wanted.units());
    for (level, units) in line.levels().zip(&available) {
        if let Some(part) = wanted.at_most(left.min(*units)) {
            left -= part.units();
            parts.push((level, line.change.of(part)));
        }
    }
    Ok(parts)
}

/// A change of a level that is decided on what was read: all levels of its SKU if it is set, in the order of
/// the warehouses.
pub(super) fn step(
    name: Level<'_>,
    change: &Change,
    state: &Snapshot,
) -> Result<Step, AttemptOutcome> {
    let level = find(&state.levels, name);
    match change {
        Change::Deduct(quantity) => deduct(*quantity, level),
        Change::Adjust(delta) => adjust(*delta, level),
        Change::Return(one) => take_back(one, level, &state.returned),
        Change::Set(setting) => set(name, setting, level, &state.levels),
        Change::Count(one) => count(name, *one, level),
        Change::Hold(holding) => hold(*holding, level, state.now),
        Change::End(end) => end_hold(*end, level, state),
    }
}

fn sale(quantity: Quantity, after: Option<StockLevel>) -> Step {
    Step::new(MovementKind::Deducted, -quantity.units(), after)
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
    let kind = MovementKind::of_change(delta);
    Ok(Step::new(kind, delta, Some(after)))
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
        let requested = one.quantity.map_or(1, Quantity::units);
        let refusal = Refusal::ExceedsSale { requested, left };
        return Err(AttemptOutcome::Refused(refusal));
    }
    let restocked = if one.restock { quantity } else { 0 };
    let after = moved(level, restocked);
    fits(after.on_hand)?;
    Ok(Step {
        returned: Some((sale, quantity)),
        reverses: Some(one.sale),
        ..Step::new(MovementKind::Returned, restocked, Some(after))
    })
}

fn hold(holding: Holding, level: Option<&StockLevel>, now: i64) -> Result<Step, AttemptOutcome> {
    let units = holding.quantity.units();
    AttemptOutcome::decide(level, units)?;
    let level = level.ok_or(AttemptOutcome::UnknownSku)?;
    Ok(held(holding, now, Some(kept(level, units))))
}

fn held(holding: Holding, now: i64, after: Option<StockLevel>) -> Step {
    let units = holding.quantity.units();
    Step {
        held_delta: units,
        available_delta: -units,
        expires_at: Some(holding.expires_at(now)),
        ..Step::new(MovementKind::Held, 0, after)
    }
}

/// An open line ends as the request says. One that has expired is sold from what is available, or released, so that
/// it cannot be sold any more.
fn end_hold(
    end: Ending,
    level: Option<&StockLevel>,
    state: &Snapshot,
) -> Result<Step, AttemptOutcome> {
    let level = level.ok_or(AttemptOutcome::UnknownSku)?;
    let line = (end.hold, end.line);
    let ended = |state| {
        let (line, by) = (end.line, None);
        Err(AttemptOutcome::Refused(Refusal::HoldEnded {
            line,
            state,
            by,
        }))
    };
    let open = state.holds.get(&line);
    let held = match (open, state.ends.get(&line)) {
        (Some((units, _)), _) => *units,
        (None, Some(MovementKind::Expired)) => 0,
        (None, Some(kind)) => return ended(stock::state(kind)),
        // Its row is gone without a movement, which only another program can do.
        (None, None) => return Err(AttemptOutcome::Conflict),
    };
    let is_due = open.is_none_or(|(_, expires_at)| *expires_at <= state.now);
    let (kind, sold) = match end.how {
        How::Confirm { units, late: false } if is_due => {
            return Err(AttemptOutcome::Refused(Refusal::HoldExpired {
                requested: units,
                available: level.available(),
            }));
        }
        How::Confirm { units, .. } => (MovementKind::Deducted, units),
        How::Release => (MovementKind::Released, 0),
        How::Expire if open.is_none() => return ended("expired"),
        How::Expire if !is_due => return ended("extended"),
        How::Expire => (MovementKind::Expired, 0),
    };
    let level = kept(level, -held);
    AttemptOutcome::decide(Some(&level), sold)?;
    let after = StockLevel {
        on_hand: level.on_hand - sold,
        ..level
    };
    Ok(Step {
        held_delta: -held,
        available_delta: held - sold,
        reverses: Some(end.hold),
        ..Step::new(kind, -sold, Some(after))
    })
}

/// The level with so many units more on hand.
fn moved(level: &StockLevel, delta: i64) -> StockLevel {
    StockLevel {
        on_hand: level.on_hand + delta,
        version: level.version + 1,
        ..level.clone()
    }
}

/// The level with so many units more set aside.
fn kept(level: &StockLevel, units: i64) -> StockLevel {
    StockLevel {
        held: level.held + units,
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
