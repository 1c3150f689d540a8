//! The scripts of the model. Each makes the decisions of the script that it names, for one level.

use std::sync::Arc;

use uuid::Uuid;

use super::{Level, Loaded, ROW, Safeguard, State};
use crate::journal::{EntryId, JournalEntry};
use crate::redis::idempotency::KeyCheck;
use crate::redis::scripts::Answer::{self, Absent, Duplicate, Insufficient, KeyMayBeLost, Written};
use crate::sql::ledger_row::LedgerRow;
use crate::sql::rows::MirrorRow;

/// More than the number of sales.
const VERSION_JUMP: i64 = 100;

impl State {
    /// `deduct.lua`, for one unit.
    pub(super) fn deduct(&mut self, operation: u128, has_key: bool, check: KeyCheck) -> Answer {
        let redis = &mut self.redis;
        let dedup = Uuid::from_u128(if has_key { 0 } else { operation });
        let level = match &mut redis.level {
            _ if redis.dedup.contains(&dedup) => return Duplicate,
            None => return Absent,
            Some(Level {
                loaded: Some(loaded),
                ..
            }) if check.is_due(*loaded) => return KeyMayBeLost { loaded: *loaded },
            Some(Level { on_hand: 0, .. }) => return Insufficient { available: 0 },
            Some(level) => level,
        };
        level.on_hand -= 1;
        level.version += 1;
        let (on_hand, version) = (level.on_hand, level.version);
        redis.last = Some((on_hand, version));
        redis.last_id += 1;
        let mut movement = ROW.clone();
        movement.operation_id = Uuid::from_u128(operation);
        movement.idempotency_key.take_if(|_| !has_key);
        let entry = entry(redis.last_id, movement, on_hand, version);
        redis.journal.insert(entry.id, Arc::new(entry));
        redis.dedup.insert(dedup);
        redis.sold.insert(Uuid::from_u128(operation));
        self.sold.insert(Uuid::from_u128(operation));
        Written { available: 0 }
    }

    /// `load.lua`.
    pub(super) fn load(&mut self, since: u32, mirror: &MirrorRow) -> Loaded {
        let has = |safeguard| self.without != Some(safeguard);
        let redis = &mut self.redis;
        if redis.level.is_some() {
            return Loaded::Done;
        }
        if redis.binding.is_none() && has(Safeguard::BindingCheck) {
            return Loaded::Unbound;
        }
        if redis.since == 0 {
            // A time that was never used.
            redis.since = 3;
        }
        if redis.since != since && has(Safeguard::SinceCheck) {
            return Loaded::Again;
        }
        let in_sql = (mirror.level.on_hand, mirror.level.version);
        let last = redis.last.filter(|_| has(Safeguard::LastState));
        let later = last.filter(|(_, version)| *version >= in_sql.1);
        let (on_hand, version) = later.unwrap_or(in_sql);
        let version = version + VERSION_JUMP;
        let is_changed = last.is_some() || mirror.entry != EntryId::default();
        redis.level = Some(Level {
            on_hand,
            version,
            loaded: is_changed.then_some(version),
        });
        if has(Safeguard::RaisedId) {
            redis.last_id = redis.last_id.max(mirror.entry.number);
        }
        Loaded::Done
    }

    /// `take.lua`. A consumer does nothing if the journal is empty.
    pub(super) fn take(&mut self, consumer: u32) -> Option<Vec<Arc<JournalEntry>>> {
        let is_taken = self.redis.lease.is_some();
        let may_end = !self.redis.journal.is_empty() && self.early_ends > 0;
        if is_taken && !(may_end && self.decisions.choose(2) == 1) {
            return None;
        }
        self.early_ends -= u32::from(is_taken);
        let entries: Vec<_> = self.redis.journal.values().cloned().collect();
        self.redis.lease = (!entries.is_empty()).then_some(consumer);
        self.redis.lease.map(|_| entries)
    }

    /// `ack.lua`: removes `applied` of the entries, and sets the others aside.
    pub(super) fn ack(&mut self, consumer: u32, entries: &[Arc<JournalEntry>], applied: usize) {
        let is_held = self.redis.lease == Some(consumer);
        if !is_held && self.without != Some(Safeguard::LeaseCheck) {
            return;
        }
        for (number, entry) in entries.iter().enumerate() {
            let Some(removed) = self.redis.journal.remove(&entry.id) else {
                continue;
            };
            let sale = removed.movements[0].operation_id;
            if number < applied {
                self.deleted_unapplied |= self.recorded(sale) == 0;
            } else {
                self.redis.rejected.insert(entry.id, removed);
            }
        }
        self.redis.lease = None;
    }
}

fn entry(number: i64, movement: LedgerRow, on_hand: i64, version: i64) -> JournalEntry {
    JournalEntry {
        id: EntryId { millis: 0, number },
        movements: vec![movement],
        on_hand,
        held: 0,
        backorder_limit: 0,
        version,
    }
}
