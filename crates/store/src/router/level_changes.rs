//! Changes of levels of both homes.

use async_trait::async_trait;

use super::StoreRouter;
use crate::{ChangeOutcome, Result};
use stocklock_core::ports::{LedgerReader as _, LevelStore, PlannedLevel, ReversalOutcome};
use stocklock_core::stock::{
    Adjustment, Home, LevelChange, Movement, OperationId, Reversal, StockLevel, Warehouse,
};

#[async_trait]
impl LevelStore for StoreRouter {
    async fn set_level(&self, change: &LevelChange) -> Result<ChangeOutcome> {
        let home = self.home_of(&change.sku).await?;
        match home.or(change.home).unwrap_or_default() {
            Home::Sql => self.sql.set_level(change).await,
            Home::Redis => self.set_in_redis(change).await,
        }
    }

    async fn adjust(&self, adjustment: &Adjustment) -> Result<ChangeOutcome> {
        match self.home_of(&adjustment.sku).await? {
            None => Ok(ChangeOutcome::UnknownSku),
            Some(Home::Sql) => self.sql.adjust(adjustment).await,
            Some(Home::Redis) => self.redis()?.adjust(adjustment).await,
        }
    }

    async fn operation(&self, operation: OperationId) -> Result<Option<Movement>> {
        self.sql.operation(operation).await
    }

    async fn reverse(&self, reversal: &Reversal, sale: &Movement) -> Result<ReversalOutcome> {
        match self.home_of(&sale.sku).await? {
            None => Ok(ReversalOutcome::UnknownSku),
            Some(Home::Sql) => self.sql.reverse(reversal, sale).await,
            Some(Home::Redis) => Ok(ReversalOutcome::WrongHome(Home::Redis)),
        }
    }
}

impl StoreRouter {
    /// Sets a level of a SKU whose home is Redis, or creates it.
    async fn set_in_redis(&self, change: &LevelChange) -> Result<ChangeOutcome> {
        let redis = self.redis()?;
        let levels = self.sql.levels_of(&change.sku).await?;
        let warehouses: Vec<Warehouse> = levels.into_iter().map(|level| level.warehouse).collect();
        if warehouses.contains(&change.warehouse) {
            return redis.set_level(change, &warehouses).await;
        }
        let mut creation = change.clone();
        if !warehouses.is_empty() {
            let levels = redis.levels_in(&change.sku, &warehouses).await?;
            if let Err(refused) = PlannedLevel::new(change, &levels) {
                return Ok(refused);
            }
            // The precondition was checked on Redis. The mirrors in SQL may be older.
            creation.precondition = None;
        }
        Ok(match self.sql.set_level(&creation).await? {
            // Another request created it first.
            ChangeOutcome::WrongHome(Home::Redis) => ChangeOutcome::Conflict,
            ChangeOutcome::Done { level, created } => {
                self.cache_home(&level.sku, level.home);
                let level = self.loaded(level).await;
                ChangeOutcome::Done { level, created }
            }
            refused => refused,
        })
    }

    /// Loads a level that was just created in SQL into Redis. If Redis does not answer, the level
    /// is created nevertheless, and loaded when it is first read.
    async fn loaded(&self, level: StockLevel) -> StockLevel {
        if level.home == Home::Sql {
            return level;
        }
        match self.level(&level.sku, &level.warehouse).await {
            Ok(loaded) => loaded.unwrap_or(level),
            Err(error) => {
                tracing::warn!(%error, "a level was created but could not be loaded into Redis");
                level
            }
        }
    }
}
