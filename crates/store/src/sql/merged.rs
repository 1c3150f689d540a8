//! Batches of several levels, written together.
//!
//! One message takes the units of each level whose row is not locked and that has enough, with all
//! movements, and commits. It waits for no row, so no level waits for another. If an index of the ledger
//! refuses a movement, or the message comes too late, nothing is written.

use std::collections::{HashMap, HashSet};

use tokio::time::Instant;

use super::batch::{BatchWrite, recorded_among};
use super::dialect::Dialect;
use super::sold::{Sold, json};
use super::{READ, SqlStore};
use crate::Result;
use stocklock_core::ports::BatchPlan;
use stocklock_core::stock::{Deduction, Movement};

/// The sales of several levels.
#[derive(Debug)]
pub(crate) struct MergedWrite<'a> {
    levels: Vec<MergedLevel<'a>>,
    /// In milliseconds since 1970, on the server's clock.
    pub(crate) expires_at: i64,
}

/// One of the levels.
#[derive(Debug)]
pub(crate) struct MergedLevel<'a> {
    /// How many sales of the levels before it there are. No other level has this number.
    pub(crate) first_sale: i64,
    pub(crate) batch: BatchWrite<'a>,
    /// The place of its plan.
    place: usize,
}

/// The [`MergedLevel::first_sale`] of a level that was written, and the units that are available then.
pub(crate) type WrittenLevel = (i64, i64);

impl<'a> MergedLevel<'a> {
    fn first(&self) -> &'a Deduction {
        self.batch.sales[0].deduction
    }

    pub(crate) fn sku(&self) -> &'a str {
        self.first().sku.as_str()
    }

    pub(crate) fn warehouse(&self) -> &'a str {
        self.first().warehouse.as_str()
    }
}

impl<'a> MergedWrite<'a> {
    fn new(plans: &[&'a BatchPlan<'_>], expires_at: i64) -> Self {
        let mut write = Self {
            levels: Vec::new(),
            expires_at,
        };
        let (mut named, mut first_sale) = (HashSet::new(), 0);
        for (place, plan) in plans.iter().enumerate() {
            let Some(batch) = BatchWrite::new(plan, expires_at) else {
                continue;
            };
            let level = MergedLevel {
                first_sale,
                batch,
                place,
            };
            // A level that is named twice would lose the units of one batch.
            if named.insert((level.sku(), level.warehouse())) {
                first_sale += level.batch.movements();
                write.levels.push(level);
            }
        }
        write
    }

    pub(crate) fn levels(&self) -> &[MergedLevel<'a>] {
        &self.levels
    }

    pub(crate) fn level(&self, sku: &str, warehouse: &str) -> Option<&MergedLevel<'a>> {
        let mut levels = self.levels.iter();
        levels.find(|level| level.sku() == sku && level.warehouse() == warehouse)
    }

    /// The strategy, which all sales have in common.
    pub(crate) fn strategy(&self) -> &'a str {
        self.levels[0].first().strategy
    }

    /// The movements with their levels, in the order of the levels.
    pub(crate) fn sales(&self) -> impl Iterator<Item = (&MergedLevel<'a>, Sold<'a>)> {
        let levels = self.levels.iter();
        levels.flat_map(|level| level.batch.sold().map(move |sale| (level, sale)))
    }

    /// A JSON array with an array for each level: first sale, SKU, warehouse, units, movements.
    pub(crate) fn levels_json(&self) -> String {
        json(self.levels.iter().map(|level| {
            let MergedLevel {
                first_sale, batch, ..
            } = level;
            let (sku, warehouse) = (level.sku(), level.warehouse());
            (first_sale, sku, warehouse, batch.units, batch.movements())
        }))
    }

    /// A JSON array with an array for each movement: first sale, SKU and warehouse of its level, the
    /// number of later sales of the level, [`Sold::json`].
    pub(crate) fn sales_json(&self) -> String {
        json(self.sales().map(|(level, sale)| {
            let (sku, warehouse) = (level.sku(), level.warehouse());
            (
                level.first_sale,
                sku,
                warehouse,
                sale.sales_after,
                sale.json(),
            )
        }))
    }
}

impl<D: Dialect> SqlStore<D> {
    /// [`BatchStore::write_merged`](stocklock_core::ports::BatchStore::write_merged).
    pub(super) async fn write_levels(
        &self,
        plans: &[&BatchPlan<'_>],
    ) -> Result<Option<Vec<Option<i64>>>> {
        let deadlines = plans.iter().map(|plan| plan.deadline());
        let deadline = deadlines.min().unwrap_or_else(Instant::now);
        // Not in the queue of one SKU, whose share of the connections may be busy.
        let connection = self.read(READ, self.writers.acquire()).await?;
        let expiry = connection.expiry(deadline);
        let write = MergedWrite::new(plans, expiry.at);
        let written = self.write(D::write_merged(connection, &write)).await;
        let Some(written) = written.map_err(|error| error.expiring(expiry))? else {
            return Ok(None);
        };
        let written: HashMap<_, _> = written.into_iter().collect();
        let mut available = vec![None; plans.len()];
        for level in &write.levels {
            available[level.place] = written.get(&level.first_sale).copied();
        }
        Ok(Some(available))
    }

    /// [`BatchStore::recorded_sales`](stocklock_core::ports::BatchStore::recorded_sales).
    pub(super) async fn recorded_in_levels(
        &self,
        plans: &[&BatchPlan<'_>],
    ) -> Result<Vec<Movement>> {
        let sales = plans.iter().flat_map(|plan| &plan.sales);
        let sales: Vec<_> = sales.map(|sale| sale.deduction).collect();
        self.read(3 * READ, async {
            let mut connection = self.writers.acquire().await?;
            recorded_among(&mut connection, sales).await
        })
        .await
    }
}
