//! What the core requires of the outside: stores, counters, distributed locks, and metrics.
//!
//! `batch` and `shared` are algorithms of the core on the port [`BatchStore`]: they choose the form of
//! each write, and handle conflicts, recorded keys, and operations that must be made alone.
//!
//! Each trait is small and has no default methods. Each store method makes whole transactions,
//! and returns with none open. No connection and no transaction crosses a
//! trait, so no strategy can hold one while it waits for something else.

mod batch;
mod counter;
mod dependency;
mod expiry;
mod lock;
mod metrics;
mod outcomes;
mod shared;
mod store;
mod store_error;

pub use batch::{BatchAttempt, BatchGuard, BatchStore, write_batch};
pub use counter::{CounterAnswer, CounterError, CounterMethod, CounterStore, LIFE};
pub use dependency::Dependency;
pub use expiry::{Expiry, LateAttempt};
pub use lock::{HeldLock, Lock, LockError};
pub use metrics::{DeductionMetrics, NoMetrics};
pub use outcomes::{AttemptOutcome, BatchAnswer, ChangedLevel};
pub use shared::{SharedAnswer, write_shared};
pub use store::{
    CachedLevels, Condition, DeductionStore, HoldStore, LedgerReader, OperationStore, ReadLevel,
};
pub use store_error::StoreError;
