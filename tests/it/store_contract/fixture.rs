//! A store on its own database.

use std::sync::Arc;
use std::time::Duration;

use stocklock::ports::{
    AttemptOutcome, ChangeOutcome, Condition, DeductionStore, LevelStore, SqlMethod, StoreError,
};
use stocklock::stock::{
    Audit, Deduction, Durability, Home, LevelChange, Movement, Precondition, StockLevel, Warehouse,
};
use stocklock::store::{
    JournalConsumer, LedgerQueries, OnRedisLoss, RedisOptions, StoreOptions, StoreRouter, Stores,
    WatchOn,
};
use stocklock_core::model::{Decisions, MemoryStore};
use stocklock_testkit::assert_matches;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) use crate::support::rival::{Raw, until_found};
use crate::support::services::{
    Backend, TestDatabase, TestRedis, connect_to_redis, fresh_database, fresh_redis,
};

mod arguments;

pub(crate) use arguments::*;

/// The wait limit of the tests' stores. MariaDB cannot wait for a lock for less than a second.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(1);
/// A time limit for operations that usually take milliseconds.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A back end that must fulfil the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum On {
    /// Stock in SQL.
    Sql(Backend),
    /// Stock in Redis, with the ledger in `SQLite`.
    Redis,
    /// The database of the explorer.
    Model,
}

/// What every back end does.
pub(crate) trait Contract: DeductionStore + LevelStore {}

impl<T: DeductionStore + LevelStore> Contract for T {}

pub(crate) const SQLITE: On = On::Sql(Backend::Sqlite);
pub(crate) const MYSQL: On = On::Sql(Backend::Mysql);
pub(crate) const POSTGRES: On = On::Sql(Backend::Postgres);
pub(crate) const REDIS: On = On::Redis;
pub(crate) const MODEL: On = On::Model;

impl On {
    /// Its SQL database.
    pub(crate) fn backend(self) -> Backend {
        match self {
            Self::Sql(backend) => backend,
            Self::Redis => Backend::Sqlite,
            Self::Model => panic!("the model has no SQL database"),
        }
    }

    pub(crate) fn home(self) -> Home {
        match self {
            Self::Sql(_) | Self::Model => Home::Sql,
            Self::Redis => Home::Redis,
        }
    }

    /// The result of a successful deduction.
    pub(crate) fn done(self, remaining: i64) -> AttemptOutcome {
        let durability = match self {
            Self::Sql(_) | Self::Model => Durability::Committed,
            Self::Redis => Durability::Redis,
        };
        AttemptOutcome::Deducted {
            remaining,
            durability,
        }
    }

    /// The result of a deduction of more units than are available. In Redis, the script has also looked
    /// for the operation.
    pub(crate) fn short(self, available: i64) -> AttemptOutcome {
        match self {
            Self::Sql(_) | Self::Model => AttemptOutcome::Insufficient { available },
            Self::Redis => AttemptOutcome::Unrecorded { available },
        }
    }
}

/// The result of a successful deduction on a database.
pub(crate) fn committed(remaining: i64) -> AttemptOutcome {
    SQLITE.done(remaining)
}

/// A store on a migrated database.
pub(crate) struct Fixture {
    pub(crate) backend: Backend,
    pub(crate) url: String,
    pub(crate) store: Arc<StoreRouter>,
    on: On,
    stores: Option<Stores>,
    redis: Option<TestRedis>,
    model: Option<MemoryStore>,
    _database: Option<TestDatabase>,
}

impl Fixture {
    /// A store on a fresh database, with a pool of eight connections.
    pub(crate) async fn new(backend: Backend) -> Self {
        let database = fresh_database(backend).await;
        let url = database.url.clone();
        Self {
            _database: Some(database),
            ..Self::at(backend, url).await
        }
    }

    /// A store with its stock in a fresh Redis and its ledger in a fresh database.
    pub(crate) async fn in_redis(
        backend: Backend,
        options: impl FnOnce(RedisOptions) -> RedisOptions,
    ) -> Self {
        let fixture = Self::new(backend).await;
        let redis = fresh_redis().await;
        let fixture = fixture.with(options(redis_options(&redis.url)));
        Self {
            redis: Some(redis),
            ..fixture
        }
    }

    /// A store on any back end of the contract.
    pub(crate) async fn on(on: On) -> Self {
        match on {
            On::Sql(backend) => Self::new(backend).await,
            On::Redis => Self::in_redis(on.backend(), |options| options).await,
            On::Model => Self {
                model: Some(MemoryStore::new(&Decisions::default())),
                ..Self::of(
                    on,
                    Backend::Sqlite,
                    "sqlite:///no/such/directory/stock.db".into(),
                )
            },
        }
    }

    /// The back end under test.
    pub(crate) fn subject(&self) -> &dyn Contract {
        match &self.model {
            Some(model) => model,
            None => &*self.store,
        }
    }

    /// The model, if it is the back end under test.
    pub(crate) fn model(&self) -> Option<&MemoryStore> {
        self.model.as_ref()
    }

    /// The same database, with the stock in Redis.
    pub(crate) fn with(self, redis: RedisOptions) -> Self {
        let stores = Stores::open(&self.url, &options(8), Some(redis)).expect("valid URLs");
        Self {
            on: On::Redis,
            store: Arc::clone(&stores.store),
            stores: Some(stores),
            ..self
        }
    }

    /// The SQL store alone, without the router in front of it.
    pub(crate) fn sql(&self) -> Arc<dyn LedgerQueries> {
        stocklock::store::connect(&self.url, &options(8)).expect("a valid URL")
    }

    /// Keeps the Redis that the stock is in until the fixture is dropped.
    pub(crate) fn with_redis(self, redis: TestRedis) -> Self {
        Self {
            redis: Some(redis),
            ..self
        }
    }

    /// The Redis that the stock is in, if any.
    pub(crate) fn redis_url(&self) -> Option<&str> {
        self.redis.as_ref().map(|redis| &*redis.url)
    }

    /// Runs a command on the Redis that the stock is in, bypassing the store.
    pub(crate) async fn redis<T: redis::FromRedisValue>(&self, command: &redis::Cmd) -> T {
        let url = self.redis_url().expect("the stock is in Redis");
        let connection = connect_to_redis(url).await;
        let mut connection = connection.expect("the test can connect");
        let answer = command.query_async(&mut connection).await;
        answer.expect("the command succeeds")
    }

    /// The key in Redis that matches a pattern. Exactly one key must match.
    pub(crate) async fn key(&self, pattern: &str) -> String {
        let mut keys: Vec<String> = self.redis(redis::cmd("KEYS").arg(pattern)).await;
        assert_eq!(keys.len(), 1, "{keys:?}");
        keys.remove(0)
    }

    /// Applies all journal entries in Redis to the ledger.
    pub(crate) async fn settle(&self) {
        if self.stores.is_some() {
            let stop = CancellationToken::new();
            stop.cancel();
            self.consumer().run(stop, |_| ()).await;
        }
    }

    /// A consumer of the journals. The stock must be in Redis.
    pub(crate) fn consumer(&self) -> JournalConsumer {
        let stores = self.stores.as_ref();
        let consumer = stores.and_then(|stores| stores.journal_consumer("test"));
        consumer.expect("the stock is in Redis")
    }

    /// A store on the database at `url`, which is migrated first.
    pub(crate) async fn at(backend: Backend, url: String) -> Self {
        let migrated = stocklock::store::migrate(&url).await;
        migrated.expect("the database can be migrated");
        Self::of(On::Sql(backend), backend, url)
    }

    /// Nothing is opened before it is used.
    fn of(on: On, backend: Backend, url: String) -> Self {
        Self {
            backend,
            store: open(&url, 8),
            on,
            stores: None,
            redis: None,
            model: None,
            url,
            _database: None,
        }
    }

    /// Sets the level in the default warehouse.
    pub(crate) async fn put(&self, sku: &str, on_hand: i64) -> StockLevel {
        self.set(level_change(sku, on_hand)).await
    }

    /// Applies a change, which must succeed, to a new level or to one in any state. Its home defaults
    /// to that of the fixture.
    pub(crate) async fn set(&self, mut change: LevelChange) -> StockLevel {
        change.home.get_or_insert(self.on.home());
        loop {
            match self.subject().set_level(&change).await.expect("no error") {
                ChangeOutcome::Done { level, .. } => return level,
                ChangeOutcome::PreconditionRequired => {
                    change.precondition = Some(Precondition::Exists);
                }
                refused => panic!("{refused:?}"),
            }
        }
    }

    /// Sets the held units of a SKU with one warehouse to three. In SQL this changes every level.
    /// Stores have no operation for this yet.
    pub(crate) async fn hold_three(&self, sku: &str) {
        if let Some(model) = &self.model {
            model.hold(&name(sku), 3);
        } else if self.redis.is_some() {
            let key = self.key(&format!("stock:*:{sku}:*")).await;
            let mut hold = redis::cmd("HSET");
            self.redis::<()>(hold.arg(key).arg("held").arg(3)).await;
        } else {
            let mut raw = Raw::connect(self.backend, &self.url).await;
            let held = raw.run("UPDATE stock SET held = 3").await;
            held.expect("units can be held");
        }
    }

    /// Deducts one unit from a level that was read before.
    pub(crate) async fn write_back(&self, read: &StockLevel, condition: Condition<'_>) -> Attempt {
        let sale = deduction(read.sku.as_str(), 1);
        self.subject().write_back(&sale, read, condition).await
    }

    /// The level of a SKU in the default warehouse. It must exist.
    pub(crate) async fn level(&self, sku: &str) -> StockLevel {
        let (sku, warehouse) = (name(sku), Warehouse::default());
        let level = self.subject().level(&sku, &warehouse).await;
        level.expect("no error").expect("the level exists")
    }

    /// All levels of a SKU, in warehouse order.
    pub(crate) async fn levels_of(&self, sku: &str) -> Vec<StockLevel> {
        match &self.model {
            Some(model) => model.levels_now(&name(sku)),
            None => self.store.levels_of(&name(sku)).await.expect("no error"),
        }
    }

    /// All movements of a SKU, newest first.
    pub(crate) async fn movements(&self, sku: &str) -> Vec<Movement> {
        if let Some(model) = &self.model {
            let mut movements = model.movements_now();
            movements.retain(|movement| movement.sku == name(sku));
            movements.reverse();
            return movements;
        }
        self.settle().await;
        let page = self.store.movements(&all_of(sku)).await;
        page.expect("no error").movements
    }

    /// The audit of a SKU with one warehouse.
    pub(crate) async fn audit(&self, sku: &str) -> Audit {
        if let Some(model) = &self.model {
            return model.audit_now(&name(sku));
        }
        self.settle().await;
        let mut audits = self.store.audit(&name(sku)).await.expect("no error");
        assert_eq!(audits.len(), 1, "{audits:?}");
        audits.remove(0)
    }
}

/// Options for a store with stock in Redis. A test that needs lower limits changes them.
pub(crate) fn redis_options(url: &str) -> RedisOptions {
    RedisOptions {
        url: url.into(),
        wait_limit: WAIT_LIMIT,
        request_deadline: Duration::from_secs(5),
        watch_connections: 8,
        watch_on: WatchOn::Exclusive,
        wait_replicas: 0,
        journal_limit: 10_000,
        journal_limit_bytes: u64::MAX,
        on_loss: OnRedisLoss::Refuse,
    }
}

pub(crate) fn options(pool_size: u32) -> StoreOptions {
    StoreOptions {
        pool_size,
        wait_limit: WAIT_LIMIT,
    }
}

/// A store with its own pool on a migrated database.
pub(crate) fn open(url: &str, pool_size: u32) -> Arc<StoreRouter> {
    let stores = Stores::open(url, &options(pool_size), None);
    stores.expect("a valid URL").store
}

/// The result of one attempt to deduct.
pub(crate) type Attempt = Result<AttemptOutcome, StoreError>;

/// Deducts by a guarded statement.
pub(crate) async fn guarded(store: &StoreRouter, deduction: &Deduction) -> Attempt {
    store.deduct_in_sql(deduction, SqlMethod::Guarded).await
}

/// Starts a guarded deduction in its own task.
pub(crate) fn start_deduction(
    store: &Arc<StoreRouter>,
    deduction: Deduction,
) -> JoinHandle<Attempt> {
    let store = Arc::clone(store);
    tokio::spawn(async move { guarded(&store, &deduction).await })
}

#[track_caller]
pub(crate) fn assert_deducted(attempt: &Attempt) {
    assert_matches!(attempt, Ok(AttemptOutcome::Deducted { .. }));
}
