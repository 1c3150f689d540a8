//! The audit of Redis-home stock: compares the level in Redis with the ledger and the journal.
//!
//! All figures describe the moment of the snapshot in Redis. Later sales must not appear as drift, so
//! the audit reads the ledger only up to the journal's last entry in the snapshot. If the ledger was
//! already past that entry before the snapshot, Redis has lost entries that SQL has. Then the audit
//! reads the ledger up to its own last entry.
//!
//! A level that Redis does not have is not loaded: it is as the last of its waiting entries left it, or
//! else as SQL has it.

use std::collections::HashSet;

use redis::Cmd;
use redis::streams::StreamRangeReply;
use uuid::Uuid;

use super::RedisStore;
use super::keys::Shard;
use super::streams::StreamEntry;
use crate::StoreError;
use crate::journal::EntryId;
use crate::sql::ledger_row::LedgerRow;
use stocklock_core::stock::{Audit, MovementKind, Sku, StockLevel, Warehouse};

/// How many journal entries one command reads. A larger page would delay the deductions, which share
/// the connection.
const PAGE: u32 = 100;

/// How often an audit is tried. Each time, a checkpoint would have to be written between the reads of
/// Redis and of the ledger.
const TRIES: usize = 5;

impl RedisStore {
    /// Audits each warehouse of the SKU.
    pub(crate) async fn audit(&self, sku: &Sku) -> Result<Vec<Audit>, StoreError> {
        for _ in 0..TRIES {
            if let Some(audits) = self.try_audit(sku).await? {
                return Ok(audits);
            }
        }
        let changed = "the ledger has changed during each attempt";
        Err(StoreError::TooSlow(changed.into()))
    }

    /// `None` if SQL may have changes from after the snapshot in Redis: in a checkpoint, or in a level
    /// that was loaded since.
    async fn try_audit(&self, sku: &Sku) -> Result<Option<Vec<Audit>>, StoreError> {
        let mirrors = self.sql.levels_of(sku).await?;
        let warehouses: Vec<Warehouse> =
            mirrors.into_iter().map(|mirror| mirror.warehouse).collect();
        // Read before the snapshot: the journal then had every entry that the ledger has now.
        let recorded = self.sql.last_recorded(sku).await?;
        let (levels, last) = self.snapshot(sku, &warehouses).await?;
        let (keys, shard) = (self.keys_to_read().await?, Shard::for_sku(sku));
        let key = |warehouse| keys.level(shard, sku, warehouse);
        let level_keys: Vec<String> = warehouses.iter().map(key).collect();
        let waiting = self.waiting(shard, &level_keys, last).await?;
        let movements = waiting.iter().flat_map(StreamEntry::movements);
        let operations: Vec<Uuid> = movements.map(|row| row.operation_id).collect();
        let ledger = self.sql.ledger_up_to(sku, last.max(recorded), &operations);
        let Some((sums, recorded)) = ledger.await? else {
            return Ok(None);
        };
        if levels.contains(&None) {
            let (now, _) = self.snapshot(sku, &warehouses).await?;
            let is_loaded = |(then, now): (&Option<_>, &Option<_>)| then.is_none() && now.is_some();
            if levels.iter().zip(&now).any(is_loaded) {
                return Ok(None);
            }
        }
        let mut audits = Vec::with_capacity(warehouses.len());
        for ((warehouse, level), key) in warehouses.iter().zip(levels).zip(&level_keys) {
            let waiting = waiting.iter().filter(|entry| entry.level == *key);
            if let Some(sums) = sums.iter().find(|sums| sums.warehouse == *warehouse) {
                audits.push(audit(sums, level, waiting, &recorded));
            }
        }
        Ok(Some(audits))
    }

    /// Whether the journal has entries of this level that this build cannot read. The audit does not
    /// know their units.
    pub(super) async fn has_unreadable_entries(
        &self,
        sku: &Sku,
        level: &str,
    ) -> Result<bool, StoreError> {
        let last = self.snapshot(sku, &[]).await?.1;
        let levels = [level.to_owned()];
        let waiting = self.waiting(Shard::for_sku(sku), &levels, last).await?;
        Ok(waiting.iter().any(|entry| entry.parsed.is_err()))
    }

    /// Reads the journal entries of these levels, up to `last`.
    async fn waiting(
        &self,
        shard: Shard,
        levels: &[String],
        last: EntryId,
    ) -> Result<Vec<StreamEntry>, StoreError> {
        let journal = self.keys_to_read().await?.journal(shard);
        let mut found = Vec::new();
        let mut from = "-".to_owned();
        loop {
            let command = Cmd::xrange_count(&journal, &from, last.to_string(), PAGE);
            let page: StreamRangeReply = self.shared.read(&command).await?;
            let Some(end) = page.ids.last() else {
                return Ok(found);
            };
            from = format!("({}", end.id);
            let entries = StreamEntry::parse_all(shard, page.ids);
            found.extend(entries.filter(|entry| levels.contains(&entry.level)));
        }
    }
}

/// Adds the movements that wait in the journal to the ledger's sums. `level`: the level in Redis, if it
/// is there. If not, the sums have the level that SQL has.
fn audit<'a>(
    sums: &Audit,
    level: Option<StockLevel>,
    waiting: impl Iterator<Item = &'a StreamEntry>,
    recorded: &HashSet<Uuid>,
) -> Audit {
    let mut audit = sums.clone();
    audit.pending = 0;
    for entry in waiting {
        // An entry that cannot be parsed counts as pending.
        audit.pending += i64::from(entry.parsed.is_err());
        let is_recorded = |row: &&LedgerRow| recorded.contains(&row.operation_id);
        for row in entry.movements().iter().filter(|row| !is_recorded(row)) {
            if row.kind == MovementKind::Deducted.as_str() {
                audit.sold -= row.delta;
            } else {
                audit.received += row.delta;
            }
            audit.pending += 1;
        }
        if let Ok(entry) = &entry.parsed
            && !entry.movements.iter().all(|row| is_recorded(&row))
        {
            (audit.on_hand, audit.held) = (entry.on_hand, entry.held);
            audit.backorder_limit = entry.backorder_limit;
        }
    }
    if let Some(level) = level {
        (audit.on_hand, audit.held) = (level.on_hand, level.held);
        audit.backorder_limit = level.backorder_limit;
    }
    audit
}
