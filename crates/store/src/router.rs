//! Sends each operation to the store of its SKU's home.
//!
//! A SKU's home is fixed when it is created in SQL, so the router caches it. Statements and scripts
//! also check the home, so a mistake here is refused there.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;

use crate::redis::RedisStore;
use crate::sql::{self, LedgerQueries, SqlBackend};
use crate::{
    AttemptOutcome, JournalConsumer, RedisMethod, RedisOptions, RejectedEntry, Result,
    SharedLevels, StoreError, StoreOptions,
};
use stocklock_core::ports::{
    BatchAnswer, Condition, DeductionStore, Expiry, LateAttempt, LedgerReader, SqlMethod,
};
use stocklock_core::stock::{
    Audit, Deduction, Home, Idempotency, LedgerPage, LevelCursor, Movement, MovementFilter,
    OperationId, Sku, StockLevel, Warehouse,
};

mod level_changes;
mod operations;
mod redis_home;

/// How many SKUs' homes are cached.
const CACHED_HOMES: usize = 100_000;

/// The stores of a replica.
#[derive(Debug, Clone)]
pub struct Stores {
    /// Reads and writes stock of both homes.
    pub store: Arc<StoreRouter>,
}

impl Stores {
    /// Opens the SQL store, and the Redis whose ledger it keeps.
    ///
    /// # Errors
    /// A line that names the setting to change.
    pub fn open(
        url: &str,
        options: &StoreOptions,
        redis: Option<RedisOptions>,
    ) -> Result<Self, String> {
        let sql = sql::open(url, options).map_err(|problem| format!("DATABASE_URL: {problem}"))?;
        let redis = redis.map(|options| RedisStore::open(options, Arc::clone(&sql)));
        let redis = redis
            .transpose()
            .map_err(|problem| format!("REDIS_URL: {problem}"))?;
        let store = Arc::new(StoreRouter {
            sql,
            redis: redis.map(Arc::new),
            homes: RwLock::default(),
        });
        Ok(Self { store })
    }

    /// Whether stock can live in Redis.
    #[must_use]
    pub fn have_redis(&self) -> bool {
        self.store.redis.is_some()
    }

    /// Applies the journals of that Redis, if there is one, to the SQL ledger.
    #[must_use]
    pub fn journal_consumer(&self, replica: &str) -> Option<JournalConsumer> {
        let redis = Arc::clone(self.store.redis.as_ref()?);
        Some(JournalConsumer::new(redis, replica))
    }

    /// The cache of levels in that Redis, if there is one. Its values are at most `max_age` old.
    #[must_use]
    pub fn shared_levels(&self, max_age: Duration) -> Option<SharedLevels> {
        let redis = Arc::clone(self.store.redis.as_ref()?);
        Some(SharedLevels { redis, max_age })
    }

    /// The journal entries that SQL refuses. Empty if there is no Redis.
    ///
    /// # Errors
    /// Redis or SQL does not answer.
    pub async fn rejected_entries(&self) -> Result<Vec<RejectedEntry>> {
        match &self.store.redis {
            Some(redis) => redis.rejected_entries().await,
            None => Ok(Vec::new()),
        }
    }

    /// Removes all stock and journals of this ledger from Redis, if there is one. For a ledger that
    /// is about to be removed.
    ///
    /// # Errors
    /// Redis or SQL does not answer. Some of the stock may be left.
    pub async fn erase_redis(&self) -> Result<()> {
        match &self.store.redis {
            Some(redis) => redis.purge().await,
            None => Ok(()),
        }
    }
}

/// Opens the SQL store alone, without the router in front of it. The URL's scheme names the database:
/// `sqlite:`, `mysql:`, `mariadb:`, `postgres:` or `postgresql:`. Connections are opened when first
/// needed.
///
/// # Errors
/// A sentence that says what is wrong with the URL, without its password.
pub fn connect(url: &str, options: &StoreOptions) -> Result<Arc<dyn LedgerQueries>, String> {
    Ok(sql::open(url, options)?)
}

/// The stores of both homes behind the ports of the core.
///
/// # Cancel safety
/// Dropping the future of any method leaves no transaction open and no half of an operation
/// committed. The caller then does not know whether the operation happened, so writes run in their
/// own task (see [`stocklock_core::deduct::WritePool`]).
#[derive(Debug)]
pub struct StoreRouter {
    sql: Arc<dyn SqlBackend>,
    redis: Option<Arc<RedisStore>>,
    homes: RwLock<HashMap<Sku, Home>>,
}

impl StoreRouter {
    /// The SQL database: `sqlite`, `mysql` or `postgres`.
    #[must_use]
    pub fn backend(&self) -> &'static str {
        self.sql.backend()
    }

    /// Asks the database whether it accepts writes.
    ///
    /// # Errors
    /// The database does not answer, or refuses writes.
    pub async fn check_writable(&self) -> Result<()> {
        self.sql.check_writable().await
    }

    /// Settings of the servers under which a promise does not hold. Each sentence says what to set.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn unsafe_settings(&self) -> Result<Vec<String>> {
        let mut problems = self.sql.unsafe_settings().await?;
        if let Some(redis) = &self.redis {
            let of_redis = redis.unsafe_settings().await;
            problems.extend(of_redis.unwrap_or_else(|error| {
                vec![format!("Redis's settings could not be checked: {error}")]
            }));
        }
        Ok(problems)
    }

    /// The home of a SKU that is to be written. SQL if there is no such SKU, or no Redis.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn home(&self, sku: &Sku) -> Result<Home> {
        if self.redis.is_none() {
            return Ok(Home::Sql);
        }
        Ok(self.home_of(sku).await?.unwrap_or_default())
    }

    /// All levels of one SKU, in warehouse order. A level whose home is Redis, and that Redis does not
    /// have, is as SQL has it: movements that wait in a journal are missing.
    ///
    /// # Errors
    /// A store does not answer.
    pub async fn levels_of(&self, sku: &Sku) -> Result<Vec<StockLevel>> {
        let mut levels = self.sql.levels_of(sku).await?;
        self.show_redis(&mut levels).await?;
        Ok(levels)
    }

    /// The same of at most `limit` levels of all SKUs in (SKU, warehouse) order, starting after `after`.
    /// If Redis does not answer, the second value says why. Then all levels are as SQL has them.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn levels(
        &self,
        after: Option<&LevelCursor>,
        limit: u32,
    ) -> Result<(Vec<StockLevel>, Option<StoreError>)> {
        let levels = self.sql.levels(after, limit).await?;
        let mut shown = levels.clone();
        Ok(match self.show_redis(&mut shown).await {
            Ok(()) => (shown, None),
            Err(error) => (levels, Some(error)),
        })
    }

    /// The same as [`levels`](Self::levels), as SQL has them: stock in Redis may be later.
    pub(crate) async fn sql_levels(
        &self,
        after: Option<&LevelCursor>,
        limit: u32,
    ) -> Result<Vec<StockLevel>> {
        self.sql.levels(after, limit).await
    }

    /// A page of the ledger of one SKU, newest movement first.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn movements(&self, filter: &MovementFilter) -> Result<LedgerPage> {
        self.sql.movements(filter).await
    }

    /// Counter and ledger of each warehouse of the SKU, from one consistent snapshot.
    ///
    /// # Errors
    /// A store does not answer.
    pub async fn audit(&self, sku: &Sku) -> Result<Vec<Audit>> {
        // Not `home_of`, which uses the connections for writes.
        let levels = self.sql.levels_of(sku).await?;
        match levels.first().map(|level| level.home) {
            Some(Home::Redis) => self.redis()?.audit(sku).await,
            Some(Home::Sql) | None => self.sql.audit(sku).await,
        }
    }

    /// Writes the checkpoints that are due, so that audits stay short. Any number of replicas may do so
    /// at once.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn write_checkpoints(&self) -> Result<()> {
        self.sql.write_due().await
    }

    /// Closes all connections. Those in use are closed after their operation.
    pub async fn close(&self) {
        if let Some(redis) = &self.redis {
            redis.close();
        }
        self.sql.close().await;
    }

    /// The Redis store, which Redis-home stock needs.
    fn redis(&self) -> Result<&RedisStore> {
        self.redis.as_deref().ok_or(StoreError::NoRedis)
    }

    /// The home of a SKU that is to be written, if there is such a SKU.
    async fn home_of(&self, sku: &Sku) -> Result<Option<Home>> {
        if let Some(home) = self.cached_home(sku) {
            return Ok(Some(home));
        }
        let home = self.sql.home(sku).await?;
        if let Some(home) = home {
            self.cache_home(sku, home);
        }
        Ok(home)
    }

    fn cached_home(&self, sku: &Sku) -> Option<Home> {
        // No code panics while it holds the lock.
        let homes = self.homes.read().unwrap_or_else(PoisonError::into_inner);
        homes.get(sku).copied()
    }

    fn cache_home(&self, sku: &Sku, home: Home) {
        let mut homes = self.homes.write().unwrap_or_else(PoisonError::into_inner);
        if homes.len() >= CACHED_HOMES {
            // Cheap to rebuild: one query per SKU.
            homes.clear();
        }
        homes.insert(sku.clone(), home);
    }

    /// Replaces the mirrors of Redis-home levels by the levels in Redis.
    async fn show_redis(&self, levels: &mut [StockLevel]) -> Result<()> {
        let levels = levels.iter_mut();
        let in_redis: Vec<_> = levels.filter(|level| level.home == Home::Redis).collect();
        if in_redis.is_empty() {
            return Ok(());
        }
        self.redis()?.show(in_redis).await
    }
}

#[async_trait]
impl LedgerReader for StoreRouter {
    async fn level(&self, sku: &Sku, warehouse: &Warehouse) -> Result<Option<StockLevel>> {
        match self.home_of(sku).await? {
            None => Ok(None),
            Some(Home::Sql) => self.sql.level(sku, warehouse).await,
            Some(Home::Redis) => self.redis()?.level(sku, warehouse).await,
        }
    }

    async fn recorded(
        &self,
        sku: &Sku,
        operation: OperationId,
        idempotency: Option<&Idempotency>,
    ) -> Result<Option<Movement>> {
        if self.home_of(sku).await? == Some(Home::Redis) {
            let redis = self.redis()?;
            let found = redis.remembered(sku, operation, idempotency).await?;
            // An operation with a key did not create the SKU, so SQL alone cannot have it. If Redis
            // may have lost keys, it has asked SQL already. Asking again for each refusal would cost
            // what the home in Redis saves.
            if found.is_some() || idempotency.is_some() {
                return Ok(found);
            }
        }
        self.sql.recorded(sku, operation, idempotency).await
    }
}

#[async_trait]
impl DeductionStore for StoreRouter {
    async fn deduct_in_sql(
        &self,
        deduction: &Deduction,
        method: SqlMethod,
    ) -> Result<AttemptOutcome> {
        self.sql.deduct_in_sql(deduction, method).await
    }

    fn max_batch(&self) -> usize {
        self.sql.max_batch()
    }

    async fn deduct_all(&self, deductions: &[Deduction], read_first: bool) -> Vec<BatchAnswer> {
        self.sql.deduct_all(deductions, read_first).await
    }

    async fn deduct_merged(&self, batches: &[Vec<Deduction>]) -> Vec<Option<Vec<BatchAnswer>>> {
        self.sql.deduct_merged(batches).await
    }

    async fn write_back(
        &self,
        deduction: &Deduction,
        read: &StockLevel,
        condition: Condition<'_>,
    ) -> Result<AttemptOutcome> {
        match read.home {
            Home::Sql => self.sql.write_back(deduction, read, condition).await,
            Home::Redis => self.redis()?.write_from(deduction, read, condition).await,
        }
    }

    async fn deduct_in_redis(
        &self,
        deduction: &Deduction,
        method: RedisMethod,
    ) -> Result<AttemptOutcome> {
        self.redis()?.deduct(deduction, method).await
    }

    async fn late_attempt(&self, deduction: &Deduction, expiry: Expiry) -> Result<LateAttempt> {
        let Deduction { sku, operation, .. } = deduction;
        if self.home_of(sku).await? != Some(Home::Redis) {
            return self.sql.late_attempt(deduction, expiry).await;
        }
        if !self.redis()?.has_passed(sku, expiry).await? {
            return Ok(LateAttempt::Alive);
        }
        // Redis executes one script after the other, so no earlier one is still to come.
        let key = deduction.idempotency.as_ref();
        if let Some(movement) = self.recorded(sku, *operation, key).await? {
            return Ok(Some(movement).into());
        }
        // Redis may have lost everything since the last attempt.
        let recorded = self.sql.recorded(sku, *operation, key).await?;
        Ok(recorded.filter(|movement| movement.sku == *sku).into())
    }
}
