//! Asks the counter of a level before a deduction, and corrects it afterwards.
//!
//! Guarantees: a counter only refuses. What it admits is decided by SQL; what it refuses is final only if
//! the request has no key, because only the ledger knows retries. One deduction per level and replica loads a
//! counter, and the others wait for it. If a replica dies in between, the counter hides units until it expires.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::OnceCell;

use super::RetryPolicy;
use crate::ports::{
    CounterAnswer, CounterError, CounterMethod, CounterStore, DeductionMetrics, DeductionStore,
    Dependency, StoreError,
};
use crate::stock::{Deducted, Operation, Sku, StockError, Warehouse};

/// How often a deduction loads the counter. It is missing again if it is deleted or expires meanwhile.
const LOADS: u32 = 3;

/// The refusal if no connection is free.
const BUSY: StockError = StockError::Overloaded {
    what: "every connection to Redis that REDIS_POOL_SIZE allows is busy",
};

/// The counters of the levels, as one replica sees them.
#[derive(Debug)]
pub struct Counters {
    store: Arc<dyn CounterStore>,
    /// The loads in flight.
    loads: Mutex<HashMap<(Sku, Warehouse), Load>>,
}

/// A load that several deductions wait for.
type Load = Arc<OnceCell<Loaded>>;

/// How a load ended.
#[derive(Debug)]
enum Loaded {
    /// The counter exists, or has existed.
    Done,
    /// There is no such level.
    UnknownSku,
    /// Redis does not answer: why.
    NoCounter(String),
    /// The level could not be read.
    NotRead(StoreError),
}

/// What the counter said before the first attempt.
#[derive(Debug)]
pub(crate) enum Asked {
    /// The units are taken from the counter, and this many are left in it.
    Admitted {
        /// Units left.
        left: i64,
    },
    /// The refusal.
    Refused(StockError),
}

impl Counters {
    /// No counter is asked until a deduction comes.
    #[must_use]
    pub fn new(store: Arc<dyn CounterStore>) -> Self {
        let loads = Mutex::default();
        Self { store, loads }
    }

    /// Deletes the counter of a level that was changed. Best effort.
    pub(crate) async fn forget(&self, (sku, warehouse): &(Sku, Warehouse)) {
        self.store.delete(sku, warehouse).await;
    }

    /// Asks the counter of the deduction's level for its units. Loads it first if there is none.
    ///
    /// # Errors
    /// Nothing was sold: Redis does not answer, the level could not be read, or other clients changed the
    /// counter until the policy's bounds.
    pub(super) async fn ask(
        &self,
        deduction: &Operation,
        method: CounterMethod,
        levels: &dyn DeductionStore,
        policy: &RetryPolicy,
        metrics: &dyn DeductionMetrics,
    ) -> Result<Asked, StockError> {
        let ((sku, warehouse), units) = (deduction.level(), deduction.units());
        let unavailable = |problem: &str, cause: String| {
            metrics.counter_asked("unavailable");
            unavailable(deduction.strategy.unwrap_or_default(), problem, cause)
        };
        let (mut retry, mut loads) = (policy.start(), 0);
        loop {
            let taken = self.store.take(sku, warehouse, units, method).await;
            let answer = match taken {
                Ok(answer) => answer,
                Err(CounterError::Busy) => {
                    metrics.counter_asked("busy");
                    return Err(BUSY);
                }
                Err(error) => return Err(unavailable(FAILS, text(&error))),
            };
            match answer {
                CounterAnswer::Admitted { left } => {
                    metrics.counter_asked("admitted");
                    return Ok(Asked::Admitted { left });
                }
                CounterAnswer::Refused { available } => {
                    metrics.counter_asked("refused");
                    return Ok(Asked::Refused(deduction.insufficient(available)));
                }
                CounterAnswer::Conflict => {
                    if !retry.again().await {
                        metrics.counter_asked("contended");
                        let attempts = retry.attempts();
                        return Err(StockError::Contended { attempts });
                    }
                }
                CounterAnswer::Missing if loads == LOADS => {
                    let problem = "loses the counter before it can be asked; try again";
                    return Err(unavailable(problem, format!("missing after {LOADS} loads")));
                }
                CounterAnswer::Missing => {
                    loads += 1;
                    metrics.counter_asked("loaded");
                    let load = self.load(deduction, levels).await;
                    match &*load {
                        Loaded::Done => {}
                        // The other deduction's load may have read before this one came.
                        Loaded::UnknownSku if load.is_joined && loads == 1 => {}
                        Loaded::UnknownSku => return Ok(Asked::Refused(StockError::UnknownSku)),
                        Loaded::NoCounter(error) => return Err(unavailable(FAILS, error.clone())),
                        Loaded::NotRead(error) => return Err(error.clone().into()),
                    }
                }
            }
        }
    }

    /// Corrects the counter after the deduction was answered.
    pub(super) async fn answered(
        &self,
        deduction: &Operation,
        asked: &Asked,
        answer: &Result<Deducted, StockError>,
    ) {
        use StockError::{Insufficient, OutcomeUnknown, UnknownSku};
        let (sku, warehouse) = deduction.level();
        match (asked, answer) {
            (Asked::Admitted { .. }, Ok(sold)) if !sold.replayed => {}
            // The units are hidden until the counter expires.
            (Asked::Admitted { .. }, Err(OutcomeUnknown { .. })) | (Asked::Refused(_), Err(_)) => {}
            (Asked::Refused(_), Ok(replayed)) if replayed.replayed => {}
            // SQL was short, or sold what the counter had refused: the counter is wrong.
            (Asked::Admitted { .. }, Err(Insufficient { .. } | UnknownSku))
            | (Asked::Refused(_), Ok(_)) => self.store.delete(sku, warehouse).await,
            (Asked::Admitted { .. }, Ok(_) | Err(_)) => {
                let units = deduction.units();
                self.store.give_back(sku, warehouse, units).await;
            }
        }
    }

    /// Loads the counter, or waits for the load that is in flight.
    async fn load(&self, deduction: &Operation, levels: &dyn DeductionStore) -> LoadGuard<'_> {
        let level = deduction.owned_level();
        let load = Arc::clone(self.loads.lock().entry(level.clone()).or_default());
        let mut guard = LoadGuard {
            loads: &self.loads,
            level,
            load,
            is_joined: true,
        };
        let (sku, warehouse) = &guard.level;
        let loading = async {
            guard.is_joined = false;
            self.load_once(sku, warehouse, levels).await
        };
        guard.load.get_or_init(|| loading).await;
        guard
    }

    async fn load_once(
        &self,
        sku: &Sku,
        warehouse: &Warehouse,
        levels: &dyn DeductionStore,
    ) -> Loaded {
        let failed = |error: CounterError| Loaded::NoCounter(text(&error));
        let read_at = match self.store.now(sku, warehouse).await {
            Ok(read_at) => read_at,
            Err(error) => return failed(error),
        };
        let available = match levels.level(sku, warehouse).await {
            Ok(Some(level)) => level.available(),
            Ok(None) => return Loaded::UnknownSku,
            Err(error) => return Loaded::NotRead(error),
        };
        let loaded = self.store.load(sku, warehouse, available, read_at).await;
        loaded.map_or_else(failed, |()| Loaded::Done)
    }
}

/// A load that has ended. The first guard to be dropped lets the next load begin.
struct LoadGuard<'a> {
    loads: &'a Mutex<HashMap<(Sku, Warehouse), Load>>,
    level: (Sku, Warehouse),
    load: Load,
    /// Whether another deduction began it.
    is_joined: bool,
}

impl std::ops::Deref for LoadGuard<'_> {
    type Target = Loaded;

    fn deref(&self) -> &Loaded {
        self.load.get().expect("the load has ended")
    }
}

impl Drop for LoadGuard<'_> {
    fn drop(&mut self) {
        let mut loads = self.loads.lock();
        // If this future was cancelled, another one that waits goes on with the load.
        let has_ended = self.load.initialized() || Arc::strong_count(&self.load) == 2;
        let is_this = |load: &Load| Arc::ptr_eq(load, &self.load);
        if has_ended && loads.get(&self.level).is_some_and(is_this) {
            loads.remove(&self.level);
        }
    }
}

/// What is wrong if a call fails.
const FAILS: &str = "does not answer in time, or refuses; see the log";

/// The refusal if the counter cannot be asked.
fn unavailable(strategy: &'static str, problem: &str, cause: String) -> StockError {
    let (title, variable) = (Dependency::Redis.title(), Dependency::Redis.variable());
    StockError::StrategyUnavailable {
        strategy,
        reason: format!("{title}, which {variable} names, {problem}"),
        source: Some(cause.into()),
    }
}

/// The cause of the error.
fn text(error: &CounterError) -> String {
    match error {
        CounterError::Unavailable(source) => source.to_string(),
        CounterError::Busy => error.to_string(),
    }
}
