//! Decides what a change makes of a level. The caller has locked the rows, or checks their versions.

use std::slice;

use super::ChangeOutcome;
use crate::stock::{Adjustment, LevelChange, MAX_UNITS, Precondition, Revision, Scope, StockLevel};

/// A level that is to be written.
#[derive(Debug)]
pub struct PlannedLevel {
    /// The level after the change.
    pub level: StockLevel,
    /// The level before, if there was one.
    pub old: Option<StockLevel>,
}

impl PlannedLevel {
    /// Decides what `change` makes of a SKU, whose levels are `existing`.
    ///
    /// # Errors
    /// The outcome if nothing is to be written: the refusal, or [`ChangeOutcome::Done`] if the level
    /// already is as the change requires.
    pub fn new(change: &LevelChange, existing: &[StockLevel]) -> Result<Self, ChangeOutcome> {
        let old = existing
            .iter()
            .find(|level| level.warehouse == change.warehouse);
        if !precondition_holds(change, old, existing) {
            return Err(ChangeOutcome::PreconditionFailed);
        }
        // A number that is older than a sale would bring the sold units back.
        let is_blind = change.on_hand.is_some() && change.precondition.is_none();
        if is_blind && old.is_some_and(|old| old.version > 1) {
            return Err(ChangeOutcome::PreconditionRequired);
        }
        let kept = old.map(|old| old.on_hand);
        let level = StockLevel {
            sku: change.sku.clone(),
            warehouse: change.warehouse.clone(),
            on_hand: change.on_hand.or(kept).ok_or(ChangeOutcome::UnknownSku)?,
            held: old.map_or(0, |old| old.held),
            backorder_limit: change
                .backorder_limit
                .unwrap_or_else(|| old.map_or(0, |old| old.backorder_limit)),
            version: old.map_or(0, |old| old.version) + 1,
        };
        if let Some(old) = old
            && (old.on_hand, old.backorder_limit) == (level.on_hand, level.backorder_limit)
        {
            let (level, created) = (old.clone(), false);
            return Err(ChangeOutcome::Done { level, created });
        }
        let fits = |units: i64| units.unsigned_abs() <= MAX_UNITS.unsigned_abs();
        if !fits(level.on_hand) || !fits(level.backorder_limit) {
            return Err(ChangeOutcome::TooLarge);
        }
        if level.available() < 0 {
            return Err(ChangeOutcome::BelowLimit {
                available: old.map_or(0, StockLevel::available),
            });
        }
        let old = old.cloned();
        Ok(Self { level, old })
    }

    /// Whether the change creates the level.
    #[must_use]
    pub fn is_creation(&self) -> bool {
        self.old.is_none()
    }

    /// Units added to `on_hand`.
    #[must_use]
    pub fn delta(&self) -> i64 {
        self.level.on_hand - self.old.as_ref().map_or(0, |old| old.on_hand)
    }
}

fn precondition_holds(
    change: &LevelChange,
    old: Option<&StockLevel>,
    existing: &[StockLevel],
) -> bool {
    let covered = match change.scope {
        Scope::Sku => existing,
        Scope::Level => old.map_or(&[][..], slice::from_ref),
    };
    match &change.precondition {
        None => true,
        Some(Precondition::Exists) => !covered.is_empty(),
        Some(Precondition::Absent) => covered.is_empty(),
        // If no level of the SKU has changed, then this one has not.
        Some(Precondition::OneOf(revisions)) => [covered, existing]
            .into_iter()
            .any(|levels| !levels.is_empty() && revisions.contains(&Revision::of(levels))),
    }
}

/// Decides what an adjustment makes of a level.
///
/// # Errors
/// The refusal.
pub fn adjusted(
    adjustment: &Adjustment,
    level: Option<StockLevel>,
) -> Result<StockLevel, ChangeOutcome> {
    let level = level.ok_or(ChangeOutcome::UnknownSku)?;
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
