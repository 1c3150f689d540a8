//! The scripts of the model. Each makes the decisions of the script that it names, for one level.

use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use uuid::Uuid;

use super::{ROW, Safeguard, State};
use crate::journal::{EntryId, JournalEntry};
use crate::redis::scripts::Answer::{self, Absent, Duplicate, Insufficient, KeyMayBeLost, Written};
use crate::sql::ledger_row::LedgerRow;
use crate::sql::rows::MirrorRow;

impl State {
    /// `deduct.lua`, for one unit.
    pub(super) fn deduct(&mut self, operation: u128, has_key: bool, key_checked: bool) -> Answer {
        let redis = &mut self.redis;
        let dedup = Uuid::from_u128(if has_key { 0 } else { operation });
        let on_hand = match &mut redis.level {
            _ if redis.dedup.contains(&dedup) => return Duplicate,
            None => return Absent,
            Some((_, true)) if !key_checked => return KeyMayBeLost,
            Some((0, _)) => return Insufficient { available: 0 },
            Some((on_hand, _)) => on_hand,
        };
        *on_hand -= 1;
        redis.last_id += 1;
        let mut movement = ROW.clone();
        movement.operation_id = Uuid::from_u128(operation);
        movement.idempotency_key.take_if(|_| !has_key);
        let entry = entry(redis.last_id, movement, *on_hand);
        redis.journal.insert(entry.id, Arc::new(entry));
        redis.dedup.insert(dedup);
        redis.sold.insert(Uuid::from_u128(operation));
        self.sold.insert(Uuid::from_u128(operation));
        let (available, version) = (0, 0);
        Written { available, version }
    }

    /// `load.lua`. Returns false if the mirror must be read again.
    pub(super) fn load(&mut self, before: (u32, usize), mirror: &MirrorRow) -> bool {
        let has = |safeguard| self.without != Some(safeguard);
        let redis = &mut self.redis;
        if redis.level.is_some() {
            return true;
        }
        if redis.counters != before && has(Safeguard::AckedCheck) {
            return false;
        }
        let later = (Excluded(mirror.entry), Unbounded);
        let set_aside = redis.rejected.range(later);
        let set_aside = set_aside.filter(|_| has(Safeguard::SetAside));
        let last = redis.journal.range(later).chain(set_aside);
        let last = last.max_by_key(|(id, _)| **id);
        let on_hand = last.map_or(mirror.level.on_hand, |(_, entry)| entry.on_hand);
        redis.level = Some((on_hand, mirror.entry != EntryId::default()));
        if has(Safeguard::RaisedId) {
            redis.last_id = redis.last_id.max(mirror.entry.number);
        }
        true
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
        self.redis.counters.1 += applied;
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

fn entry(number: i64, movement: LedgerRow, on_hand: i64) -> JournalEntry {
    JournalEntry {
        id: EntryId { millis: 0, number },
        movements: vec![movement],
        on_hand,
        held: 0,
        backorder_limit: 0,
        version: 0,
    }
}
