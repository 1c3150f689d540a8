//! The audit of Redis-home stock: compares the level in Redis with the ledger and the journal.
//!
//! All figures describe the moment of the snapshot in Redis. Later sales must not appear as drift, so
//! the audit reads the ledger only up to the journal's last entry in the snapshot. If the ledger was
//! already past that entry before the snapshot, Redis has lost entries that SQL has. Then the audit
//! reads the ledger up to its own last entry.

use std::collections::HashSet;

use uuid::Uuid;

use super::entries::StreamEntry;
use super::failure::bad_answer;
use super::loading::{MAX_LOADS, evicted_again};
use super::{RedisStore, scripts};
use crate::StoreError;
use crate::journal::EntryId;
use crate::sql::LedgerUpTo;
use stocklock_core::stock::{Audit, MovementKind, Sku, StockLevel, Warehouse};

impl RedisStore {
    /// Audits each warehouse of the SKU.
    pub(crate) async fn audit(&self, sku: &Sku) -> Result<Vec<Audit>, StoreError> {
        let mirrors = self.sql.levels_of(sku).await?;
        let warehouses: Vec<Warehouse> =
            mirrors.into_iter().map(|mirror| mirror.warehouse).collect();
        // Read before the snapshot: the journal then had every entry that the ledger has now.
        let recorded = self.sql.last_recorded(sku).await?;
        let (levels, last) = self.snapshot(sku, &warehouses).await?;
        let waiting = self.waiting(sku, &warehouses, last).await?;
        let ledger = self.ledger(sku, last.max(recorded), &waiting).await?;
        let keys = self.keys().await?;
        let audits = levels.iter().map(|level| {
            let key = keys.for_sku(sku).level(&level.warehouse);
            let waiting = waiting.iter().filter(|entry| entry.level == key);
            let of_level = |sums: &&Audit| sums.warehouse == level.warehouse;
            let sums = ledger.sums.iter().find(of_level);
            audit(level, sums, waiting, &ledger.recorded)
        });
        Ok(audits.collect())
    }

    /// Reads the levels and the id of the journal's last entry in one snapshot.
    async fn snapshot(
        &self,
        sku: &Sku,
        warehouses: &[Warehouse],
    ) -> Result<(Vec<StockLevel>, EntryId), StoreError> {
        let keys = self.keys().await?;
        let sku_keys = keys.for_sku(sku);
        let mut script_keys = vec![keys.journal(sku_keys.shard)];
        script_keys.extend(warehouses.iter().map(|warehouse| sku_keys.level(warehouse)));
        for _ in 0..MAX_LOADS {
            let answer = self
                .shared
                .read_script(&scripts::SNAPSHOT, &script_keys)
                .await?;
            let (last, counters) = answer.split_first().ok_or_else(|| bad_answer(&answer))?;
            let numbers = |four: &[String]| [0, 1, 2, 3].map(|i: usize| four[i].parse().ok());
            let counters = counters.chunks_exact(4).map(numbers);
            if let Some(levels) = self.levels_or_load(sku, warehouses, counters).await? {
                return Ok((levels, last.parse().map_err(bad_answer)?));
            }
        }
        Err(evicted_again())
    }

    /// Reads the journal entries of these levels, up to `last`.
    async fn waiting(
        &self,
        sku: &Sku,
        warehouses: &[Warehouse],
        last: EntryId,
    ) -> Result<Vec<StreamEntry>, StoreError> {
        let keys = self.keys().await?;
        let sku_keys = keys.for_sku(sku);
        let journal = keys.journal(sku_keys.shard);
        let levels: HashSet<String> = warehouses.iter().map(|w| sku_keys.level(w)).collect();
        let mut found = Vec::new();
        let mut after = None;
        loop {
            let page = self.journal_page(&journal, after.as_deref(), last).await?;
            let Some(end) = page.last() else {
                return Ok(found);
            };
            after = Some(end.id.clone());
            found.extend(
                page.into_iter()
                    .filter(|entry| levels.contains(&entry.level)),
            );
        }
    }

    /// Reads the ledger's sums up to `last`, and which of the waiting operations they contain.
    async fn ledger(
        &self,
        sku: &Sku,
        last: EntryId,
        waiting: &[StreamEntry],
    ) -> Result<LedgerUpTo, StoreError> {
        let parsed = waiting
            .iter()
            .filter_map(|entry| entry.parsed.as_ref().ok());
        let movements = parsed.flat_map(|entry| entry.movements.iter());
        let operations: Vec<Uuid> = movements.map(|row| row.operation_id).collect();
        self.sql.ledger_up_to(sku, last, &operations).await
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
        let Ok(parsed) = &entry.parsed else {
            // An entry that cannot be parsed counts as pending.
            audit.pending += 1;
            continue;
        };
        for row in parsed.movements.iter() {
            if recorded.contains(&row.operation_id) {
                continue;
            }
            if row.kind == MovementKind::Deducted.as_str() {
                audit.sold -= row.delta;
            } else {
                audit.received += row.delta;
            }
            audit.pending += 1;
        }
    }
    audit
}
