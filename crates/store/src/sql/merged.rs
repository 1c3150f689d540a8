//! Batches of several levels, written together.
//!
//! One message takes the units of each level whose row is not locked and that has enough, with all
//! movements, and commits. It waits for no row, so no level waits for another. If an index of the ledger
//! refuses a movement, or the message comes too late, nothing is written.

use std::collections::HashMap;

use tokio::time::Instant;

use super::batch::BatchWrite;
use super::dialect::Dialect;
use super::sold::{Sold, json};
use super::{READ, SqlStore};
use crate::Result;
use stocklock_core::ports::BatchPlan;
use stocklock_core::stock::Deduction;

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
}

/// The [`MergedLevel::first_sale`] of a level that was written, and the units that are available then.
pub(crate) type Available = (i64, i64);

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
        let mut first_sale = 0;
        let batches = plans
            .iter()
            .filter_map(|plan| BatchWrite::new(plan, expires_at));
        let levels = batches.map(|batch| {
            let level = MergedLevel { first_sale, batch };
            first_sale += level.batch.movements();
            level
        });
        Self {
            levels: levels.collect(),
            expires_at,
        }
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
            let MergedLevel { first_sale, batch } = level;
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
    /// Writes the plans, which all have sales. Returns the units that are available after each, or `None`
    /// if its sales were not written.
    pub(super) async fn write_levels(&self, plans: &[&BatchPlan<'_>]) -> Result<Vec<Option<i64>>> {
        let deadlines = plans.iter().map(|plan| plan.deadline());
        let deadline = deadlines.min().unwrap_or_else(Instant::now);
        let Some(first) = plans.first().and_then(|plan| plan.sales.first()) else {
            return Ok(Vec::new());
        };
        let pool = self.writers.for_sku(&first.deduction.sku);
        let connection = self.read(READ, pool.acquire()).await?;
        let expiry = connection.expiry(deadline);
        let write = MergedWrite::new(plans, expiry.at);
        let written = self.write(D::write_merged(connection, &write)).await;
        let written = written.map_err(|error| error.expiring(expiry))?;
        let written: HashMap<_, _> = written.into_iter().collect();
        let levels = write.levels.iter();
        Ok(levels
            .map(|level| written.get(&level.first_sale).copied())
            .collect())
    }
}
