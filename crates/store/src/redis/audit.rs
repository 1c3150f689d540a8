//! The audit of stock that lives in Redis: the counter there, against the ledger in SQL and what is
//! still on its way to it.
//!
//! The figures are those of one instant, that of the snapshot in Redis. What was sold since must not
//! show as units that the counter did not notice, so the ledger is asked for what was recorded up to
//! the journal's last entry at that instant. Where the ledger had come further before that instant,
//! Redis has lost those entries, and the ledger alone knows of the sales: then it is asked for what
//! was recorded up to there.

use std::collections::HashSet;

use uuid::Uuid;

use super::entries::Entry;
use super::failure::bad_answer;
use super::loading::{LOADS, lost_again};
use super::{RedisStore, scripts};
use crate::StoreError;
use crate::journal::EntryId;
use crate::mirror::LedgerUpTo;
use stocklock_core::stock::{Audit, MovementKind, Sku, StockLevel, Warehouse};

impl RedisStore {
    /// Counter against ledger and journal, for each warehouse of the SKU.
    pub(crate) async fn audit(&self, sku: &Sku) -> Result<Vec<Audit>, StoreError> {
        let mirrors = self.sql.levels_of(sku).await?;
        let warehouses: Vec<Warehouse> =
            mirrors.into_iter().map(|mirror| mirror.warehouse).collect();
        // Before the snapshot: what came to the ledger by then, the journal had by then.
        let recorded = self.sql.last_recorded(sku).await?;
        let (levels, last) = self.snapshot(sku, &warehouses).await?;
        let waiting = self.waiting(sku, &warehouses, last).await?;
        let ledger = self.ledger(sku, last.max(recorded), &waiting).await?;
        let keys = self.keys().await?;
        let audits = levels.iter().map(|level| {
            let key = keys.of(sku).level(&level.warehouse);
            let waiting = waiting.iter().filter(|entry| entry.level == key);
            let of_level = |sums: &&Audit| sums.warehouse == level.warehouse;
            let sums = ledger.sums.iter().find(of_level);
            audit(level, sums, waiting, &ledger.recorded)
        });
        Ok(audits.collect())
    }

    /// The levels, and the journal's last entry, at one instant.
    async fn snapshot(
        &self,
        sku: &Sku,
        warehouses: &[Warehouse],
    ) -> Result<(Vec<StockLevel>, EntryId), StoreError> {
        let keys = self.keys().await?;
        let of_sku = keys.of(sku);
        let mut touched = vec![keys.journal(of_sku.shard)];
        touched.extend(warehouses.iter().map(|warehouse| of_sku.level(warehouse)));
        for _ in 0..LOADS {
            let answer = self.shared.look(&scripts::SNAPSHOT, &touched).await?;
            let (last, counters) = answer.split_first().ok_or_else(|| bad_answer(&answer))?;
            let numbers = |four: &[String]| [0, 1, 2, 3].map(|i: usize| four[i].parse().ok());
            let counters = counters.chunks_exact(4).map(numbers);
            if let Some(levels) = self.all_or_load(sku, warehouses, counters).await? {
                return Ok((levels, last.parse().map_err(bad_answer)?));
            }
        }
        Err(lost_again())
    }

    /// The entries of the SKU's levels that are in the journal, up to `last`.
    async fn waiting(
        &self,
        sku: &Sku,
        warehouses: &[Warehouse],
        last: EntryId,
    ) -> Result<Vec<Entry>, StoreError> {
        let keys = self.keys().await?;
        let of_sku = keys.of(sku);
        let journal = keys.journal(of_sku.shard);
        let levels: HashSet<String> = warehouses.iter().map(|w| of_sku.level(w)).collect();
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

    /// The ledger's sums up to an entry, and which of the waiting ones are in them.
    async fn ledger(
        &self,
        sku: &Sku,
        last: EntryId,
        waiting: &[Entry],
    ) -> Result<LedgerUpTo, StoreError> {
        let understood = waiting
            .iter()
            .filter_map(|entry| entry.journaled.as_ref().ok());
        let movements = understood.flat_map(|entry| entry.movements.iter());
        let operations: Vec<Uuid> = movements.map(|row| row.operation_id).collect();
        self.sql.ledger_up_to(sku, last, &operations).await
    }
}

/// The counter in Redis, with the movements that the ledger has and those on their way to it.
fn audit<'a>(
    level: &StockLevel,
    sums: Option<&Audit>,
    waiting: impl Iterator<Item = &'a Entry>,
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
        let Ok(journaled) = &entry.journaled else {
            // Nobody knows what it says, but it waits.
            audit.pending += 1;
            continue;
        };
        for row in journaled.movements.iter() {
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
