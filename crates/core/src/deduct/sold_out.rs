//! The levels that this replica knows to be sold out, so that it can refuse without the database.
//!
//! Guarantees: a level counts as sold out for at most [`MAX_AGE`] after the batch was sent that found
//! no unit available. A change of the level by this replica removes it before its caller is answered; no batch of
//! the level is in flight during the change, so no older finding comes back. At most [`PARTS`] times
//! [`MAX_LEVELS`] levels are remembered.
//!
//! Units on back order count as available, so a level that can be sold beyond zero is not sold out.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::ports::{AttemptOutcome, BatchAnswer};
use crate::stock::{Operation, Sku, Warehouse};

/// How old a refusal from memory may be.
pub(crate) const MAX_AGE: Duration = Duration::from_millis(500);

/// The number of parts, each with its own mutex.
const PARTS: usize = 64;

/// How many levels each part remembers.
const MAX_LEVELS: usize = 128;

/// The name of a level.
type Level = (Sku, Warehouse);

/// What a replica knows of its levels.
#[derive(Debug)]
pub struct SoldOut {
    parts: Vec<Mutex<Part>>,
    /// Picks the part of a level.
    hasher: RandomState,
}

/// Some of the levels.
type Part = HashMap<Level, Found>;

/// A batch that found the level sold out.
#[derive(Debug)]
struct Found {
    available: i64,
    sent: Instant,
}

impl Found {
    fn is_recent(&self) -> bool {
        self.sent.elapsed() <= MAX_AGE
    }
}

/// A batch that is about to be sent.
#[derive(Debug)]
pub(super) struct Sending {
    level: Level,
    sent: Instant,
    /// Whether the last batch found the level sold out, even if that was long ago, and it is still remembered.
    pub(super) was_sold_out: bool,
    /// The units that were available after the last answer that says so. After a sale, some are assumed.
    available: Option<i64>,
}

impl Sending {
    /// Call this with each answer of the batch, in order.
    pub(super) fn saw(&mut self, answer: &BatchAnswer) {
        use AttemptOutcome::{Deducted, Insufficient, Unrecorded};
        match answer {
            Ok(Insufficient { available } | Unrecorded { available }) => {
                self.available = Some(*available);
            }
            Ok(Deducted { .. }) => self.available = Some(1),
            _ => {}
        }
    }
}

impl Default for SoldOut {
    fn default() -> Self {
        Self {
            parts: (0..PARTS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
        }
    }
}

impl SoldOut {
    /// The units available, zero or less, if the level of the deduction is known to be sold out.
    pub(crate) fn available(&self, deduction: &Operation) -> Option<i64> {
        let level = deduction.owned_level();
        let part = self.part(&level);
        let found = part.get(&level).filter(|found| found.is_recent())?;
        Some(found.available)
    }

    /// Call this before a batch is sent. All its operations are of the same level as `first`.
    pub(super) fn sending(&self, first: &Operation) -> Sending {
        let level = first.owned_level();
        let was_sold_out = self.part(&level).contains_key(&level);
        Sending {
            level,
            sent: Instant::now(),
            was_sold_out,
            available: None,
        }
    }

    /// Remembers what the batch has found.
    pub(super) fn answered(&self, sending: Sending) {
        match sending.available {
            Some(available) if available <= 0 => self.remember(sending, available),
            Some(_) => drop(self.part(&sending.level).remove(&sending.level)),
            None => {}
        }
    }

    fn remember(&self, sending: Sending, available: i64) {
        let mut part = self.part(&sending.level);
        part.remove(&sending.level);
        part.retain(|_, found| found.is_recent());
        if part.len() < MAX_LEVELS {
            let sent = sending.sent;
            let found = Found { available, sent };
            part.insert(sending.level, found);
        }
    }

    /// Call this after each change of a level, before its caller is answered.
    pub(crate) fn forget(&self, level: &(Sku, Warehouse)) {
        self.part(level).remove(level);
    }

    fn part(&self, level: &Level) -> MutexGuard<'_, Part> {
        let number = self.hasher.hash_one(level) % PARTS as u64;
        let part = &self.parts[usize::try_from(number).expect("less than PARTS")];
        part.lock()
    }
}

#[cfg(test)]
mod tests;
