//! What a setting or a count makes of a level.

use std::slice;

use super::{Level, Step, fits, moved};
use crate::ports::{AttemptOutcome, ChangedLevel};
use crate::stock::{
    Count, CountedFrom, MadeLine, MovementKind, Precondition, Refusal, Revision, Scope, Setting,
    Sku, StockLevel,
};

pub(super) fn set(
    name: Level<'_>,
    setting: &Setting,
    old: Option<&StockLevel>,
    levels: &[StockLevel],
) -> Result<Step, AttemptOutcome> {
    let refused = |refusal| Err(AttemptOutcome::Refused(refusal));
    if !precondition_holds(name.0, setting, old, levels) {
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
        sku: name.0.clone(),
        warehouse: name.1.clone(),
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
            made: MadeLine {
                line: 0,
                sku: after.sku,
                warehouse: after.warehouse,
                delta: 0,
                held_delta: 0,
                returned: None,
                expires_at: None,
                remaining: old.available(),
            },
        })));
    }
    fits(after.on_hand)?;
    fits(after.backorder_limit)?;
    if after.available() < 0 {
        return refused(Refusal::BelowLimit);
    }
    let delta = after.on_hand - old.map_or(0, |old| old.on_hand);
    Ok(Step {
        available_delta: after.available() - old.map_or(0, StockLevel::available),
        backorder_limit: Some(after.backorder_limit),
        read_version: old.map(|old| old.version),
        ..Step::new(MovementKind::of_change(delta), delta, Some(after))
    })
}

pub(super) fn count(
    name: Level<'_>,
    one: Count,
    level: Option<&StockLevel>,
) -> Result<Step, AttemptOutcome> {
    let new = || StockLevel::empty(name.0.clone(), name.1.clone());
    let level = match (level, one.from) {
        (None, CountedFrom::Absent) => &new(),
        (None, _) => return Err(AttemptOutcome::UnknownSku),
        (Some(level), CountedFrom::Any) => level,
        (Some(level), CountedFrom::Units(units)) if level.on_hand == units => level,
        (Some(level), _) => {
            let on_hand = level.on_hand;
            return Err(AttemptOutcome::Refused(Refusal::Differs { on_hand }));
        }
    };
    fits(one.on_hand)?;
    let delta = one.on_hand - level.on_hand;
    let after = moved(level, delta);
    if after.available() < 0 {
        return Err(AttemptOutcome::Refused(Refusal::BelowLimit));
    }
    Ok(Step::new(
        MovementKind::of_change(delta),
        delta,
        Some(after),
    ))
}

fn precondition_holds(
    sku: &Sku,
    setting: &Setting,
    old: Option<&StockLevel>,
    levels: &[StockLevel],
) -> bool {
    let of_sku: Vec<_> = levels
        .iter()
        .filter(|one| one.sku == *sku)
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
