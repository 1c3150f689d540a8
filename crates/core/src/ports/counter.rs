//! The counters in Redis that stand in front of the levels. A counter can refuse; it cannot sell.
//!
//! A counter says how many units of a level can be sold. It lives for at most [`LIFE`], counted from
//! before the level was read, so a wrong value hides units or admits too many deductions for that long.
//! SQL decides about each deduction that a counter has admitted.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use crate::stock::{DriverError, Sku, Warehouse};

/// How long a counter lives.
pub const LIFE: Duration = Duration::from_millis(500);

/// How a deduction takes its units from a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CounterMethod {
    /// `GET`, check, `SET`: not atomic, on purpose.
    GetSet,
    /// `WATCH`, `GET`, check, `MULTI`, `SET`, `EXEC`.
    Watch,
    /// One Lua script.
    Script,
}

/// What a counter answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CounterAnswer {
    /// The units are taken from the counter, and `left` are left.
    Admitted {
        /// Units left.
        left: i64,
    },
    /// Fewer units are available than requested.
    Refused {
        /// Units available.
        available: i64,
    },
    /// There is no counter; it must be loaded.
    Missing,
    /// Another client changed the counter in between. Only for [`CounterMethod::Watch`].
    Conflict,
}

/// Why a counter could not be asked. Whether units were taken from it is unknown; nothing was sold.
#[derive(Debug, thiserror::Error)]
pub enum CounterError {
    /// Redis does not answer in time, or refuses.
    #[error("the counter does not answer")]
    Unavailable(#[source] DriverError),
    /// All connections for [`CounterMethod::Watch`] stayed busy.
    #[error("every connection to Redis is busy")]
    Busy,
}

/// Holds the counters.
///
/// # Cancel safety
/// Dropping the future of any method may leave units taken from the counter until it expires.
#[async_trait]
pub trait CounterStore: Send + Sync + fmt::Debug {
    /// Takes `units` from the counter of a level, if it has that many.
    async fn take(
        &self,
        sku: &Sku,
        warehouse: &Warehouse,
        units: i64,
        method: CounterMethod,
    ) -> Result<CounterAnswer, CounterError>;

    /// The clock of the server that holds the counter, in milliseconds since 1970.
    async fn now(&self, sku: &Sku, warehouse: &Warehouse) -> Result<i64, CounterError>;

    /// Creates the counter, unless it exists or [`LIFE`] has passed since `read_at`, which is when the
    /// server's clock was read before the level. It expires [`LIFE`] after that time.
    async fn load(
        &self,
        sku: &Sku,
        warehouse: &Warehouse,
        available: i64,
        read_at: i64,
    ) -> Result<(), CounterError>;

    /// Gives units back that were taken, if the counter exists. Best effort.
    async fn give_back(&self, sku: &Sku, warehouse: &Warehouse, units: i64);

    /// Deletes the counter. Best effort.
    async fn delete(&self, sku: &Sku, warehouse: &Warehouse);
}
