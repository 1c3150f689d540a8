//! A store on a database of its own, short ways to say what is done with it, and a raw connection
//! to do what no store would.

use std::sync::Arc;
use std::time::Duration;

use sqlx::{Connection, MySqlConnection, PgConnection, SqliteConnection};
use stocklock::stock::{
    Adjustment, Audit, Caller, Deduction, Fence, Home, Idempotency, IdempotencyKey, LevelChange,
    Movement, MovementFilter, OperationId, Precondition, Quantity, Reason, RequestHash, Sku,
    StockLevel, Warehouse,
};
use stocklock::store::{self, Change, StockStore, StoreOptions};

use crate::support::services::{Backend, TestDatabase, fresh_database};

/// How long the stores of the tests wait: no shorter than MariaDB can wait for a lock.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(1);
/// A bound for what takes milliseconds.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A store on a migrated database.
pub(crate) struct Fixture {
    pub(crate) backend: Backend,
    pub(crate) url: String,
    pub(crate) store: Arc<dyn StockStore>,
    _database: Option<TestDatabase>,
}

impl Fixture {
    /// A store on a fresh database, with a pool of eight.
    pub(crate) async fn new(backend: Backend) -> Self {
        let database = fresh_database(backend).await;
        let url = database.url.clone();
        Self {
            _database: Some(database),
            ..Self::at(backend, url).await
        }
    }

    /// A store on the database behind `url`, which is migrated first.
    pub(crate) async fn at(backend: Backend, url: String) -> Self {
        store::migrate(&url)
            .await
            .expect("the schema can be brought up to date");
        Self {
            backend,
            store: open(&url, 8),
            url,
            _database: None,
        }
    }

    /// Sets a level, without conditions.
    pub(crate) async fn put(&self, sku: &str, on_hand: i64) -> StockLevel {
        self.set(level_change(sku, on_hand)).await
    }

    /// Sets a level; it must be possible.
    pub(crate) async fn set(&self, change: LevelChange) -> StockLevel {
        match self.store.set_level(&change).await.expect("no error") {
            Change::Done { level, .. } => level,
            refused => panic!("refused: {refused:?}"),
        }
    }

    /// The level of a SKU in the default warehouse, which must exist.
    pub(crate) async fn level(&self, sku: &str) -> StockLevel {
        let level = self.store.level(&name(sku), &Warehouse::default()).await;
        level.expect("no error").expect("the level exists")
    }

    /// The whole ledger of a SKU, newest first.
    pub(crate) async fn movements(&self, sku: &str) -> Vec<Movement> {
        let movements = self.store.movements(&all_of(sku)).await;
        movements.expect("no error")
    }

    /// The audit of a SKU that has one warehouse.
    pub(crate) async fn audit(&self, sku: &str) -> Audit {
        let mut audits = self.store.audit(&name(sku)).await.expect("no error");
        assert_eq!(audits.len(), 1, "one warehouse: {audits:?}");
        audits.remove(0)
    }
}

/// A store on a migrated database, with a pool of its own.
pub(crate) fn open(url: &str, pool_size: u32) -> Arc<dyn StockStore> {
    let options = StoreOptions {
        pool_size,
        wait_limit: WAIT_LIMIT,
    };
    store::connect(url, &options).expect("the URL is one")
}

pub(crate) fn name(sku: &str) -> Sku {
    Sku::parse(sku).expect("a SKU")
}

pub(crate) fn place(warehouse: &str) -> Warehouse {
    Warehouse::parse(warehouse).expect("a warehouse")
}

pub(crate) fn units(units: u32) -> Quantity {
    Quantity::try_from(units).expect("a quantity")
}

/// A deduction in the default warehouse, without a key.
pub(crate) fn deduction(sku: &str, quantity: u32) -> Deduction {
    Deduction {
        operation: OperationId::mint(),
        sku: name(sku),
        warehouse: Warehouse::default(),
        quantity: units(quantity),
        idempotency: None,
        strategy: "single-sql",
    }
}

/// The same with a key.
pub(crate) fn deduction_with_key(sku: &str, quantity: u32, key: &str) -> Deduction {
    let deduction = deduction(sku, quantity);
    let hash = RequestHash::of_deduction(&deduction.sku, &deduction.warehouse, deduction.quantity);
    Deduction {
        idempotency: Some(idempotency(key, hash)),
        ..deduction
    }
}

pub(crate) fn fence(token: i64, source: &str) -> Fence {
    Fence {
        token,
        source: source.into(),
    }
}

pub(crate) fn idempotency(key: &str, hash: RequestHash) -> Idempotency {
    Idempotency {
        caller: Caller::anonymous(),
        key: IdempotencyKey::parse(key).expect("a key"),
        hash,
    }
}

/// Sets a level in the default warehouse, without conditions.
pub(crate) fn level_change(sku: &str, on_hand: i64) -> LevelChange {
    LevelChange {
        operation: OperationId::mint(),
        sku: name(sku),
        warehouse: Warehouse::default(),
        on_hand,
        backorder_limit: None,
        home: None,
        reason: None,
        precondition: None,
    }
}

/// The same, for a SKU that must not exist yet.
pub(crate) fn creation(sku: &str, warehouse: &str, home: Home) -> LevelChange {
    LevelChange {
        warehouse: place(warehouse),
        home: Some(home),
        precondition: Some(Precondition::Absent),
        ..level_change(sku, 1)
    }
}

pub(crate) fn adjustment(sku: &str, delta: i64) -> Adjustment {
    Adjustment {
        operation: OperationId::mint(),
        sku: name(sku),
        warehouse: Warehouse::default(),
        delta,
        reason: Reason::parse("count").expect("a reason"),
        reference: None,
        idempotency: None,
    }
}

/// A filter that lets everything of a SKU pass.
pub(crate) fn all_of(sku: &str) -> MovementFilter {
    MovementFilter {
        sku: name(sku),
        warehouse: None,
        kind: None,
        reference: None,
        before: None,
        limit: 1000,
    }
}

/// A connection past the stores.
pub(crate) enum Raw {
    Sqlite(SqliteConnection),
    Mysql(MySqlConnection),
    Postgres(PgConnection),
}

impl Raw {
    pub(crate) async fn connect(backend: Backend, url: &str) -> Self {
        match backend {
            Backend::Sqlite => SqliteConnection::connect(url).await.map(Self::Sqlite),
            Backend::Mysql => MySqlConnection::connect(url).await.map(Self::Mysql),
            Backend::Postgres => PgConnection::connect(url).await.map(Self::Postgres),
        }
        .expect("the database lets the test in")
    }

    /// Executes one statement.
    pub(crate) async fn run(&mut self, statement: &'static str) -> Result<(), sqlx::Error> {
        let statement = sqlx::raw_sql(statement);
        match self {
            Self::Sqlite(connection) => statement.execute(connection).await.map(drop),
            Self::Mysql(connection) => statement.execute(connection).await.map(drop),
            Self::Postgres(connection) => statement.execute(connection).await.map(drop),
        }
    }

    /// Reads one value, `None` where there is no row.
    pub(crate) async fn text(&mut self, query: &'static str) -> Option<String> {
        match self {
            Self::Sqlite(connection) => sqlx::query_scalar(query).fetch_optional(connection).await,
            Self::Mysql(connection) => sqlx::query_scalar(query).fetch_optional(connection).await,
            Self::Postgres(connection) => {
                sqlx::query_scalar(query).fetch_optional(connection).await
            }
        }
        .expect("the query is answered")
    }

    /// Begins a transaction that writes.
    pub(crate) async fn begin(&mut self) {
        let begin = match self {
            Self::Sqlite(_) => "BEGIN IMMEDIATE",
            Self::Mysql(_) | Self::Postgres(_) => "BEGIN",
        };
        self.run(begin).await.expect("a transaction can begin");
    }

    /// Inserts a movement that carries the key `K` of an anonymous caller.
    pub(crate) async fn record_key(&mut self) {
        let statement = match self {
            Self::Sqlite(_) | Self::Mysql(_) => {
                "INSERT INTO movement (operation_id, line, sku, warehouse, kind, delta,
                    available_after, durability, caller, idempotency_key)
                 VALUES (x'00000000000000000000000000000001', 0, 'raw', 'main', 'deducted', -1, 0,
                    'committed', 'anonymous', 'K')"
            }
            Self::Postgres(_) => {
                "INSERT INTO movement (operation_id, line, sku, warehouse, kind, delta,
                    available_after, durability, caller, idempotency_key)
                 VALUES ('00000000-0000-0000-0000-000000000001', 0, 'raw', 'main', 'deducted', -1,
                    0, 'committed', 'anonymous', 'K')"
            }
        };
        self.run(statement)
            .await
            .expect("a movement can be inserted");
    }
}
