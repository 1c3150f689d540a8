//! The audit of Redis-home stock: compares the level in Redis with the ledger and the journal.
//!
//! All figures describe the moment of the snapshot in Redis. Later sales must not appear as drift, so
//! the audit reads the ledger only up to the journal's last entry in the snapshot. If the ledger was
//! already past that entry before the snapshot, Redis has lost entries that SQL has. Then the audit
//! reads the ledger up to its own last entry.
//!
//! A level that Redis does not have is not loaded: it is as its latest entry left it, which waits, or is
//! in SQL.

use std::collections::HashSet;

use uuid::Uuid;

use super::RedisStore;
use super::keys::Shard;
use super::streams::{Source, StreamEntry};
use crate::StoreError;
use crate::journal::EntryId;
use stocklock_core::stock::{Audit, MovementKind, Sku, StockLevel, Warehouse};

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
        let mut latest = Vec::with_capacity(levels.len());
        for ((warehouse, level), key) in warehouses.iter().zip(&levels).zip(&level_keys) {
            let waiting = waiting.iter().filter(|entry| entry.level == *key);
            latest.push(match level {
                Some(level) => Some(level.clone()),
                None => self.latest(sku, warehouse, waiting).await?,
            });
        }
        if levels.contains(&None) {
            // After all reads of SQL: a level that is not loaded did not change.
            let (now, _) = self.snapshot(sku, &warehouses).await?;
            let is_loaded = |(then, now): (&Option<_>, &Option<_>)| then.is_none() && now.is_some();
            if levels.iter().zip(&now).any(is_loaded) {
                return Ok(None);
            }
        }
        let mut audits = Vec::with_capacity(warehouses.len());
        for (level, key) in latest.iter().zip(&level_keys) {
            let waiting = waiting.iter().filter(|entry| entry.level == *key);
            if let Some(level) = level {
                let sums = sums.iter().find(|sums| sums.warehouse == level.warehouse);
                audits.push(audit(level, sums, waiting, &recorded));
            }
        }
        Ok(Some(audits))
    }

    /// The level as its latest entry left it: the last of those that wait, or the last one in SQL.
    async fn latest<'a>(
        &self,
        sku: &Sku,
        warehouse: &Warehouse,
        waiting: impl Iterator<Item = &'a StreamEntry>,
    ) -> Result<Option<StockLevel>, StoreError> {
        let Some((mut level, mirrored)) = self.sql.mirrored(sku, warehouse).await? else {
            return Ok(None);
        };
        let parsed = waiting.filter_map(|entry| entry.parsed.as_ref().ok());
        let later = parsed.filter(|entry| entry.id > mirrored);
        if let Some(entry) = later.max_by_key(|entry| entry.id) {
            (level.on_hand, level.held) = (entry.on_hand, entry.held);
            level.backorder_limit = entry.backorder_limit;
        }
        Ok(Some(level))
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

    /// Reads the journal entries of these levels, up to `last`. Also those that SQL refuses.
    async fn waiting(
        &self,
        shard: Shard,
        levels: &[String],
        last: EntryId,
    ) -> Result<Vec<StreamEntry>, StoreError> {
        let is_of_levels = |entry: &StreamEntry| levels.contains(&entry.level);
        let last_id = last.to_string();
        let journal = self.read_stream(Source::Journal, shard, &last_id, is_of_levels);
        let mut found = journal.await?;
        // After the journal, so that no entry is missed that is set aside at this moment.
        let is_earlier =
            |entry: &StreamEntry| entry.entry.parse().is_ok_and(|id: EntryId| id <= last);
        let is_waiting = |entry: &StreamEntry| is_of_levels(entry) && is_earlier(entry);
        let refused = self.read_stream(Source::Rejected, shard, "+", is_waiting);
        for refused in refused.await? {
            if !found.iter().any(|entry| entry.entry == refused.entry) {
                found.push(refused);
            }
        }
        Ok(found)
    }
}

/// Adds the movements that wait in the journal to the ledger's sums.
fn audit<'a>(
    level: &StockLevel,
    sums: Option<&Audit>,
    waiting: impl Iterator<Item = &'a StreamEntry>,
    recorded: &HashSet<Uuid>,
) -> Audit {
    let mut audit = Audit {
        warehouse: level.warehouse.clone(),
        received: sums.map_or(0, |sums| sums.received),
        sold: sums.map_or(0, |sums| sums.sold),
        on_hand: level.on_hand,
        held: level.held,
        backorder_limit: level.backorder_limit,
        pending: 0,
    };
    for entry in waiting {
        // An entry that cannot be parsed counts as pending.
        audit.pending += i64::from(entry.parsed.is_err());
        for row in entry.movements() {
            if recorded.contains(&row.operation_id) {
                continue;
            }
            if row.kind == MovementKind::Deducted {
                audit.sold -= row.delta;
            } else {
                audit.received += row.delta;
            }
            audit.pending += 1;
        }
    }
    audit
}
