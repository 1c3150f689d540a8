//! Both homes behind one door: each operation goes to the store that its SKU lives in.
//!
//! A SKU's home is fixed when it is created, which happens in SQL; so what was read of it once
//! stays true, and is kept. The statements and the scripts themselves touch only stock of their own
//! home: a mistake made here is refused there.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use async_trait::async_trait;

use super::level_change::plan_level;
use super::mirror::Mirror;
use super::redis::{Guard, RedisStore};
use super::{
    AttemptOutcome, ChangeOutcome, JournalConsumer, RedisMethod, RedisOptions, StockStore,
    StoreError, StoreOptions, connect_sql,
};
use stocklock_core::ports::{Condition, DeductionStore, LedgerReader, LevelStore};
use stocklock_core::stock::{
    Adjustment, Audit, Deduction, Fence, Home, Idempotency, LevelChange, LevelCursor, Movement,
    MovementFilter, OperationId, Sku, StockLevel, Warehouse,
};

/// How many SKUs' homes are kept.
const KEPT: usize = 100_000;

/// A store of both homes, and what makes the SQL ledger follow the one in Redis.
#[derive(Debug, Clone)]
pub struct Stores {
    /// The door to both.
    pub store: Arc<StoreRouter>,
    redis: Option<Arc<RedisStore>>,
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
        let sql =
            connect_sql(url, options).map_err(|problem| format!("DATABASE_URL: {problem}"))?;
        let redis = redis.map(|options| RedisStore::open(options, Arc::clone(&sql)));
        let redis = redis
            .transpose()
            .map_err(|problem| format!("REDIS_URL: {problem}"))?;
        let redis = redis.map(Arc::new);
        let store = Arc::new(StoreRouter::new(sql, redis.clone()));
        Ok(Self { store, redis })
    }

    /// Whether stock can live in Redis.
    #[must_use]
    pub fn have_redis(&self) -> bool {
        self.redis.is_some()
    }

    /// What brings the journals of that Redis, if there is one, into the SQL ledger.
    #[must_use]
    pub fn journal_consumer(&self, replica: &str) -> Option<JournalConsumer> {
        let redis = Arc::clone(self.redis.as_ref()?);
        Some(JournalConsumer::new(redis, replica))
    }

    /// Removes all stock of this ledger from Redis, journals and all, if there is a Redis: for a
    /// ledger that is about to be removed itself.
    ///
    /// # Errors
    /// Redis or SQL does not answer: some of it may be left.
    pub async fn erase_redis(&self) -> Result<(), StoreError> {
        match &self.redis {
            Some(redis) => redis.purge().await,
            None => Ok(()),
        }
    }
}

/// The SQL store, and the Redis store where there is one.
#[derive(Debug)]
pub struct StoreRouter {
    sql: Arc<dyn Mirror>,
    redis: Option<Arc<RedisStore>>,
    known: RwLock<HashMap<Sku, Home>>,
}

impl StoreRouter {
    fn new(sql: Arc<dyn Mirror>, redis: Option<Arc<RedisStore>>) -> Self {
        Self {
            sql,
            redis,
            known: RwLock::default(),
        }
    }

    /// The Redis store, which a SKU that lives there needs.
    fn redis(&self) -> Result<&RedisStore, StoreError> {
        self.redis.as_deref().ok_or(StoreError::NoRedis)
    }

    /// Where the SKU's stock lives; `None` where there is none.
    async fn home_of(&self, sku: &Sku) -> Result<Option<Home>, StoreError> {
        if let Some(home) = self.known().get(sku) {
            return Ok(Some(*home));
        }
        let home = self
            .sql
            .levels_of(sku)
            .await?
            .first()
            .map(|level| level.home);
        if let Some(home) = home {
            self.learn(sku, home);
        }
        Ok(home)
    }

    fn known(&self) -> std::sync::RwLockReadGuard<'_, HashMap<Sku, Home>> {
        // Nothing panics while it is held.
        self.known
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn learn(&self, sku: &Sku, home: Home) {
        let known = self.known.write();
        let mut known = known.unwrap_or_else(std::sync::PoisonError::into_inner);
        if known.len() >= KEPT {
            // They are all a read away.
            known.clear();
        }
        known.insert(sku.clone(), home);
    }

    async fn warehouses_of(&self, sku: &Sku) -> Result<Vec<Warehouse>, StoreError> {
        let levels = self.sql.levels_of(sku).await?;
        Ok(levels.into_iter().map(|level| level.warehouse).collect())
    }

    /// Sets a level of a SKU that lives, or shall live, in Redis.
    async fn set_in_redis(&self, change: &LevelChange) -> Result<ChangeOutcome, StoreError> {
        let redis = self.redis()?;
        let warehouses = self.warehouses_of(&change.sku).await?;
        if warehouses.contains(&change.warehouse) {
            return redis.set_level(change, &warehouses).await;
        }
        let mut creation = change.clone();
        if !warehouses.is_empty() {
            let levels = redis.levels_in(&change.sku, &warehouses).await?;
            if let Err(refused) = plan_level(change, &levels) {
                return Ok(refused);
            }
            // It holds of Redis, which the mirrors only follow.
            creation.precondition = None;
        }
        match self.sql.set_level(&creation).await? {
            // Another one created it first.
            ChangeOutcome::WrongHome(Home::Redis) => Ok(ChangeOutcome::Conflict),
            ChangeOutcome::Done { level, created } => {
                self.learn(&level.sku, level.home);
                let level = self.loaded(level).await;
                Ok(ChangeOutcome::Done { level, created })
            }
            refused => Ok(refused),
        }
    }

    /// The level as Redis has it, which was just created in SQL. It is there, or will be when it
    /// is first asked for: that Redis is away does not undo the creation.
    async fn loaded(&self, level: StockLevel) -> StockLevel {
        if level.home == Home::Sql {
            return level;
        }
        match StockStore::level(self, &level.sku, &level.warehouse).await {
            Ok(Some(loaded)) => loaded,
            Ok(None) => level,
            Err(error) => {
                tracing::warn!(%error, "a level was created, and could not be loaded into Redis");
                level
            }
        }
    }

    /// The levels of a page, those that live in Redis as they are there.
    async fn as_they_are(
        &self,
        mut levels: Vec<StockLevel>,
    ) -> Result<Vec<StockLevel>, StoreError> {
        for same_sku in levels.chunk_by_mut(|a, b| a.sku == b.sku) {
            if same_sku[0].home == Home::Redis {
                let sku = same_sku[0].sku.clone();
                let warehouses: Vec<_> = same_sku.iter().map(|l| l.warehouse.clone()).collect();
                let truth = self.redis()?.levels_in(&sku, &warehouses).await?;
                same_sku.clone_from_slice(&truth);
            }
        }
        Ok(levels)
    }
}

#[async_trait]
impl StockStore for StoreRouter {
    fn backend(&self) -> &'static str {
        self.sql.backend()
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.sql.ping().await
    }

    async fn ping_redis(&self) -> Result<(), StoreError> {
        self.redis()?.ping().await
    }

    async fn unsafe_settings(&self) -> Result<Vec<String>, StoreError> {
        let mut problems = self.sql.unsafe_settings().await?;
        if let Some(redis) = &self.redis {
            let told = async {
                let mut told = redis.unsafe_settings().await?;
                told.extend(redis.cluster_problem().await?.map(str::to_owned));
                Ok::<_, StoreError>(told)
            };
            // That Redis is away hides nothing of what is wrong with SQL.
            problems.extend(told.await.unwrap_or_else(|error| {
                vec![format!("Redis's settings could not be checked: {error}")]
            }));
        }
        Ok(problems)
    }

    async fn level(
        &self,
        sku: &Sku,
        warehouse: &Warehouse,
    ) -> Result<Option<StockLevel>, StoreError> {
        match self.home_of(sku).await? {
            None => Ok(None),
            Some(Home::Sql) => self.sql.level(sku, warehouse).await,
            Some(Home::Redis) => self.redis()?.level(sku, warehouse).await,
        }
    }

    async fn deduct_if_available(
        &self,
        deduction: &Deduction,
    ) -> Result<AttemptOutcome, StoreError> {
        self.sql.deduct_if_available(deduction).await
    }

    async fn deduct_under_row_lock(
        &self,
        deduction: &Deduction,
    ) -> Result<AttemptOutcome, StoreError> {
        self.sql.deduct_under_row_lock(deduction).await
    }

    async fn deduct_if_version(
        &self,
        deduction: &Deduction,
        read: &StockLevel,
    ) -> Result<AttemptOutcome, StoreError> {
        match read.home {
            Home::Sql => self.sql.deduct_if_version(deduction, read).await,
            Home::Redis => {
                self.redis()?
                    .write_from(deduction, read, Guard::Version)
                    .await
            }
        }
    }

    async fn deduct_if_fenced(
        &self,
        deduction: &Deduction,
        read: &StockLevel,
        fence: &Fence,
    ) -> Result<AttemptOutcome, StoreError> {
        match read.home {
            Home::Sql => self.sql.deduct_if_fenced(deduction, read, fence).await,
            Home::Redis => {
                let guard = Guard::Fence(fence);
                self.redis()?.write_from(deduction, read, guard).await
            }
        }
    }

    async fn overwrite(
        &self,
        deduction: &Deduction,
        read: &StockLevel,
    ) -> Result<AttemptOutcome, StoreError> {
        match read.home {
            Home::Sql => self.sql.overwrite(deduction, read).await,
            Home::Redis => self.redis()?.write_from(deduction, read, Guard::None).await,
        }
    }

    async fn deduct_in_redis(
        &self,
        deduction: &Deduction,
        how: RedisMethod,
    ) -> Result<AttemptOutcome, StoreError> {
        self.redis()?.deduct(deduction, how).await
    }

    async fn recorded(
        &self,
        sku: &Sku,
        operation: OperationId,
        idempotency: Option<&Idempotency>,
    ) -> Result<Option<Movement>, StoreError> {
        if self.home_of(sku).await? == Some(Home::Redis) {
            let remembered = self
                .redis()?
                .remembered(sku, operation, idempotency)
                .await?;
            // What has a key was not created in SQL; and where Redis may have forgotten keys, it has
            // asked SQL already. To ask for each refusal would cost what the home in Redis saves.
            if remembered.is_some() || idempotency.is_some() {
                return Ok(remembered);
            }
        }
        self.sql.recorded(sku, operation, idempotency).await
    }

    async fn set_level(&self, change: &LevelChange) -> Result<ChangeOutcome, StoreError> {
        let home = self.home_of(&change.sku).await?;
        match home.or(change.home).unwrap_or_default() {
            Home::Sql => self.sql.set_level(change).await,
            Home::Redis => self.set_in_redis(change).await,
        }
    }

    async fn adjust(&self, adjustment: &Adjustment) -> Result<ChangeOutcome, StoreError> {
        match self.home_of(&adjustment.sku).await? {
            None => Ok(ChangeOutcome::UnknownSku),
            Some(Home::Sql) => self.sql.adjust(adjustment).await,
            Some(Home::Redis) => self.redis()?.adjust(adjustment).await,
        }
    }

    async fn levels_of(&self, sku: &Sku) -> Result<Vec<StockLevel>, StoreError> {
        self.as_they_are(self.sql.levels_of(sku).await?).await
    }

    async fn levels(
        &self,
        after: Option<&LevelCursor>,
        limit: u32,
    ) -> Result<Vec<StockLevel>, StoreError> {
        self.as_they_are(self.sql.levels(after, limit).await?).await
    }

    async fn movements(&self, filter: &MovementFilter) -> Result<Vec<Movement>, StoreError> {
        self.sql.movements(filter).await
    }

    async fn audit(&self, sku: &Sku) -> Result<Vec<Audit>, StoreError> {
        match self.home_of(sku).await? {
            Some(Home::Redis) => self.redis()?.audit(sku).await,
            Some(Home::Sql) | None => self.sql.audit(sku).await,
        }
    }

    async fn close(&self) {
        if let Some(redis) = &self.redis {
            redis.close();
        }
        self.sql.close().await;
    }
}

#[async_trait]
impl LedgerReader for StoreRouter {
    async fn level(
        &self,
        sku: &Sku,
        warehouse: &Warehouse,
    ) -> Result<Option<StockLevel>, StoreError> {
        StockStore::level(self, sku, warehouse).await
    }

    async fn recorded(
        &self,
        sku: &Sku,
        operation: OperationId,
        idempotency: Option<&Idempotency>,
    ) -> Result<Option<Movement>, StoreError> {
        StockStore::recorded(self, sku, operation, idempotency).await
    }
}

#[async_trait]
impl DeductionStore for StoreRouter {
    async fn deduct_if_available(
        &self,
        deduction: &Deduction,
    ) -> Result<AttemptOutcome, StoreError> {
        StockStore::deduct_if_available(self, deduction).await
    }

    async fn deduct_under_row_lock(
        &self,
        deduction: &Deduction,
    ) -> Result<AttemptOutcome, StoreError> {
        StockStore::deduct_under_row_lock(self, deduction).await
    }

    async fn write_back(
        &self,
        deduction: &Deduction,
        read: &StockLevel,
        condition: Condition<'_>,
    ) -> Result<AttemptOutcome, StoreError> {
        match condition {
            Condition::None => self.overwrite(deduction, read).await,
            Condition::Version => self.deduct_if_version(deduction, read).await,
            Condition::Fence(fence) => self.deduct_if_fenced(deduction, read, fence).await,
        }
    }

    async fn deduct_in_redis(
        &self,
        deduction: &Deduction,
        method: RedisMethod,
    ) -> Result<AttemptOutcome, StoreError> {
        StockStore::deduct_in_redis(self, deduction, method).await
    }
}

#[async_trait]
impl LevelStore for StoreRouter {
    async fn set_level(&self, change: &LevelChange) -> Result<ChangeOutcome, StoreError> {
        StockStore::set_level(self, change).await
    }

    async fn adjust(&self, adjustment: &Adjustment) -> Result<ChangeOutcome, StoreError> {
        StockStore::adjust(self, adjustment).await
    }
}
