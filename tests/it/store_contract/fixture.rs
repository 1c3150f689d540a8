//! A store on its own database.

use std::sync::Arc;
use std::time::Duration;

use stocklock::ports::{
    AttemptOutcome, BatchAnswer, Condition, DeductionStore, OperationStore, SharedAnswer,
    StoreError,
};
use stocklock::stock::{
    Audit, Movement, Operation, Precondition, Refusal, Reversal, StockLevel, Warehouse,
};
use stocklock::store::{Store, StoreOptions};
use stocklock_core::model::{Decisions, MemoryStore};
use stocklock_testkit::assert_matches;
use tokio::task::JoinHandle;

pub(crate) use crate::support::rival::Raw;
use crate::support::rival::lock_is_waited_for;
use crate::support::services::{Backend, TestDatabase, fresh_database};

mod arguments;

pub(crate) use arguments::*;

/// The wait limit of the tests' stores. MariaDB cannot wait for a lock for less than a second.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(1);
/// A time limit for operations that usually take milliseconds.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A back end that must fulfil the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum On {
    /// A database.
    Sql(Backend),
    /// The database of the explorer.
    Model,
}

pub(crate) const SQLITE: On = On::Sql(Backend::Sqlite);
pub(crate) const MYSQL: On = On::Sql(Backend::Mysql);
pub(crate) const POSTGRES: On = On::Sql(Backend::Postgres);
pub(crate) const MODEL: On = On::Model;

impl From<Backend> for On {
    fn from(backend: Backend) -> Self {
        Self::Sql(backend)
    }
}

impl On {
    pub(crate) fn backend(self) -> Backend {
        match self {
            Self::Sql(backend) => backend,
            Self::Model => panic!("the model has no SQL database"),
        }
    }
}

pub(crate) fn committed(remaining: i64) -> AttemptOutcome {
    AttemptOutcome::Deducted { remaining }
}

/// The result of a deduction of more units than are available.
pub(crate) fn short(available: i64) -> AttemptOutcome {
    AttemptOutcome::Insufficient { available }
}

/// A store on a migrated database.
pub(crate) struct Fixture {
    pub(crate) backend: Backend,
    pub(crate) url: String,
    pub(crate) store: Arc<dyn Store>,
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

    /// The same, and a connection of the test.
    pub(crate) async fn with_raw(backend: Backend) -> (Self, Raw) {
        let fixture = Self::new(backend).await;
        let raw = Raw::connect(backend, &fixture.url).await;
        (fixture, raw)
    }

    /// A store on any back end of the contract.
    pub(crate) async fn on(on: On) -> Self {
        match on {
            On::Sql(backend) => Self::new(backend).await,
            On::Model => Self {
                model: Some(MemoryStore::new(&Decisions::default())),
                ..Self::of(
                    Backend::Sqlite,
                    "sqlite:///no/such/directory/stock.db".into(),
                )
            },
        }
    }

    /// A store on any back end of the contract, with one level.
    pub(crate) async fn with(on: impl Into<On>, sku: &str, on_hand: i64) -> Self {
        let fixture = Self::on(on.into()).await;
        fixture.put(sku, on_hand).await;
        fixture
    }

    pub(crate) async fn until_waiting(&self) {
        lock_is_waited_for(self.backend, &self.url).await;
    }

    /// The deductions of the back end under test.
    pub(crate) fn deductions(&self) -> &dyn DeductionStore {
        match &self.model {
            Some(model) => model,
            None => &*self.store,
        }
    }

    /// The changes of levels of the back end under test.
    pub(crate) fn changes(&self) -> &dyn OperationStore {
        match &self.model {
            Some(model) => model,
            None => &*self.store,
        }
    }

    pub(crate) fn model(&self) -> Option<&MemoryStore> {
        self.model.as_ref()
    }

    /// A store on the database at `url`, which is migrated first.
    pub(crate) async fn at(backend: Backend, url: String) -> Self {
        let migrated = stocklock::store::migrate(&url).await;
        migrated.expect("the database can be migrated");
        Self::of(backend, url)
    }

    /// Nothing is opened before it is used.
    fn of(backend: Backend, url: String) -> Self {
        Self {
            backend,
            store: open(&url, 8),
            model: None,
            url,
            _database: None,
        }
    }

    /// Sets the level in the default warehouse.
    pub(crate) async fn put(&self, sku: &str, on_hand: i64) -> StockLevel {
        self.set(level_change(sku, on_hand)).await
    }

    /// Applies a change, which must succeed, to a new level or to one in any state.
    pub(crate) async fn set(&self, mut change: Operation) -> StockLevel {
        loop {
            match self.changes().write(&change).await.expect("no error") {
                AttemptOutcome::Changed(changed) => return changed.level,
                AttemptOutcome::Refused(Refusal::PreconditionRequired) => {
                    setting(&mut change).precondition = Some(Precondition::Exists);
                }
                refused => panic!("{refused:?}"),
            }
        }
    }

    /// Sets the held units of a SKU to three; in a database those of every SKU.
    /// Stores have no operation for this yet.
    pub(crate) async fn hold_three(&self, sku: &str) {
        if let Some(model) = &self.model {
            model.hold(&name(sku), 3);
        } else {
            let mut raw = Raw::connect(self.backend, &self.url).await;
            let held = raw.run("UPDATE stock SET held = 3").await;
            held.expect("units can be held");
        }
    }

    /// Deducts one unit from a level that was read before.
    pub(crate) async fn write_back(&self, read: &StockLevel, condition: Condition<'_>) -> Attempt {
        let sale = deduction(read.sku.as_str(), 1);
        let read = read.into();
        self.deductions().write_back(&sale, read, condition).await
    }

    /// The level of a SKU in the default warehouse. It must exist.
    pub(crate) async fn level(&self, sku: &str) -> StockLevel {
        let (sku, warehouse) = (name(sku), Warehouse::default());
        let level = self.changes().level(&sku, &warehouse).await;
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
        let page = self.store.movements(&all_of(sku)).await;
        page.expect("no error").movements
    }

    /// Asserts that the ledger of a SKU agrees with its level, and has every version from 1 on. Returns its
    /// movements, newest first.
    pub(crate) async fn assert_in_order(&self, sku: &str) -> Vec<Movement> {
        let movements = self.movements(sku).await;
        let versions: Vec<_> = movements.iter().map(|one| one.level_version).collect();
        let last = self.level(sku).await.version;
        assert_eq!(versions, (1..=last).rev().collect::<Vec<_>>(), "{sku}");
        assert!(self.audit(sku).await.consistent(), "{sku}");
        movements
    }

    /// The audit of a SKU with one warehouse.
    pub(crate) async fn audit(&self, sku: &str) -> Audit {
        if let Some(model) = &self.model {
            return model.audit_now(&name(sku));
        }
        let mut audits = self.store.audit(&name(sku)).await.expect("no error");
        assert_eq!(audits.len(), 1, "{audits:?}");
        audits.remove(0)
    }
}

/// A store with its own pool on a migrated database.
pub(crate) fn open(url: &str, pool_size: u32) -> Arc<dyn Store> {
    open_waiting(url, pool_size, WAIT_LIMIT)
}

/// The same with one connection, and a wait limit that no test reaches.
pub(crate) fn open_patient(url: &str) -> Arc<dyn Store> {
    open_waiting(url, 1, 2 * SOON)
}

/// The same with another wait limit.
pub(crate) fn open_waiting(url: &str, pool_size: u32, wait_limit: Duration) -> Arc<dyn Store> {
    let options = StoreOptions {
        pool_size,
        wait_limit,
    };
    stocklock::store::connect(url, &options).expect("a valid URL")
}

/// Asserts that a sale in the ledger has all fields of its order.
#[track_caller]
pub(crate) fn assert_records(sale: &Movement, order: &Operation) {
    assert_eq!(sale.operation, order.id);
    assert_eq!(sale.delta, -order.units());
    assert_eq!(sale.reason, order.remarks.reason);
    assert_eq!(sale.reference, order.remarks.reference);
    assert_eq!(sale.strategy.as_deref(), order.strategy);
    assert_eq!((sale.read_version, &*sale.caller), (None, "anonymous"));
    let key = order.idempotency.as_ref();
    assert_eq!(sale.request_hash, key.map(|key| key.hash));
    let key = key.map(|key| key.key.as_str());
    assert_eq!(sale.idempotency_key.as_deref(), key);
}

pub(crate) type Attempt = Result<AttemptOutcome, StoreError>;

/// The operations of a store, from what the tests have.
pub(crate) trait Operations: OperationStore {
    fn reverse(
        &self,
        reversal: &Reversal,
        sale: &Movement,
    ) -> impl Future<Output = Attempt> + Send {
        let operation = reversal
            .clone()
            .of_sale(vec![sale.clone()])
            .expect("a sale");
        async move { self.write(&operation).await }
    }

    /// Deducts from several levels: a batch of each.
    fn deduct_levels(
        &self,
        batches: &[Vec<Operation>],
    ) -> impl Future<Output = Vec<Option<Vec<BatchAnswer>>>> + Send {
        let sizes: Vec<_> = batches.iter().map(Vec::len).collect();
        let operations = batches.concat();
        async move {
            let answers = self.write_shared(&operations, false).await;
            let made = |answer| match answer {
                SharedAnswer::Made(answer) => Some(answer),
                SharedAnswer::Missed(_) | SharedAnswer::Apart => None,
            };
            let mut answers: Vec<_> = answers.into_iter().map(made).collect();
            let own = |size: usize| answers.drain(..size).collect::<Vec<_>>();
            let own = sizes.into_iter().map(own).collect::<Vec<_>>();
            own.into_iter()
                .map(|one| one.into_iter().collect())
                .collect()
        }
    }
}

impl<S: OperationStore + ?Sized> Operations for S {}

pub(crate) fn start_deduction(store: &Arc<dyn Store>, deduction: Operation) -> JoinHandle<Attempt> {
    let store = Arc::clone(store);
    tokio::spawn(async move { store.deduct(&deduction).await })
}

#[track_caller]
pub(crate) fn assert_deducted(attempt: &Attempt) {
    assert_matches!(attempt, Ok(AttemptOutcome::Deducted { .. }));
}
