//! The Redis that has stock: whether it is the one of the ledger, its memory and journals, and repairs.

use std::time::Duration;

use super::StoreRouter;
use crate::{Repair, Result};
use stocklock_core::stock::{Home, Sku};

impl StoreRouter {
    /// Makes one cheap round trip to the Redis that holds stock.
    ///
    /// # Errors
    /// Redis does not answer, or is not configured.
    pub async fn ping_redis(&self) -> Result<()> {
        self.redis()?.ping().await
    }

    /// Checks that Redis is still the one that has the stock of this ledger, and shows other replicas
    /// that it is used: increases a beat in the database if it is still `seen`. Returns the beat.
    ///
    /// # Errors
    /// A server does not answer. [`crate::StoreError::NotBound`] if the stock is not in this Redis.
    pub async fn confirm_redis(&self, seen: i64) -> Result<i64> {
        self.redis()?.beat(seen).await
    }

    /// Asks Redis for its memory. From then on, changes are refused if it is almost full. Returns the
    /// used share of `maxmemory`, or `None` if there is no maximum.
    ///
    /// # Errors
    /// Redis does not answer, or has not the stock of this ledger.
    pub async fn check_redis_memory(&self) -> Result<Option<f64>> {
        self.redis()?.check_memory().await
    }

    /// Asks Redis how many bytes the journals take. From then on, changes are refused if these are as many
    /// as the limit.
    ///
    /// # Errors
    /// Redis does not answer, or has not the stock of this ledger.
    pub async fn check_journals(&self) -> Result<u64> {
        self.redis()?.check_journals().await
    }

    /// How long the oldest movement waits in the journals in Redis; zero if none waits.
    ///
    /// # Errors
    /// Redis does not answer, or has not the stock of this ledger.
    pub async fn oldest_movement_waits(&self) -> Result<Duration> {
        self.redis()?.oldest_waits().await
    }

    /// Makes the configured Redis the one that has the stock of this ledger, because an operator says
    /// so. Its levels are loaded again, from its journals or from SQL, whichever is later. Returns
    /// whether that changed anything.
    ///
    /// # Errors
    /// A server does not answer. It can be repeated.
    pub async fn adopt_redis(&self) -> Result<bool> {
        self.redis()?.adopt().await
    }

    /// Corrects levels in Redis that are too high because Redis has lost sales that SQL has. Returns
    /// what it did in each warehouse; nothing if there is no such SKU. `None` if its home is SQL.
    ///
    /// # Errors
    /// A store does not answer. It can be repeated.
    pub async fn repair(&self, sku: &Sku) -> Result<Option<Vec<Repair>>> {
        match self.home_of(sku).await? {
            None => Ok(Some(Vec::new())),
            Some(Home::Sql) => Ok(None),
            Some(Home::Redis) => self.redis()?.repair(sku).await.map(Some),
        }
    }
}
