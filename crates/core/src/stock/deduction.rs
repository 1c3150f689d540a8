//! One deduction: the request and the answer.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use uuid::Uuid;

use super::{Caller, Idempotency, Quantity, Remarks, Sku, StockError, Warehouse};

/// The identity of one operation, created once per request. Every attempt carries it, so the
/// ledger's primary key refuses to record the operation twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OperationId(pub Uuid);

impl OperationId {
    /// A new id (UUID v7: later ids sort later).
    #[must_use]
    pub fn mint() -> Self {
        Self(Uuid::now_v7())
    }

    /// When the id was made, in milliseconds since 1970. `None` if the service did not make it.
    #[must_use]
    pub fn millis(self) -> Option<i64> {
        let is_ours = self.0.get_version_num() == 7;
        let made = self.0.get_timestamp().filter(|_| is_ours)?;
        let (seconds, nanoseconds) = made.to_unix();
        i64::try_from(seconds * 1000 + u64::from(nanoseconds) / 1_000_000).ok()
    }
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A deduction to make.
#[derive(Debug, Clone)]
pub struct Deduction {
    /// Its operation id.
    pub operation: OperationId,
    /// Who sent the request.
    pub caller: Caller,
    /// The SKU.
    pub sku: Sku,
    /// The warehouse.
    pub warehouse: Warehouse,
    /// How many units.
    pub quantity: Quantity,
    /// The caller's key, if one was sent.
    pub idempotency: Option<Idempotency>,
    /// What the caller remarks on it.
    pub remarks: Remarks,
    /// The strategy's name, for the ledger.
    pub strategy: &'static str,
    /// When the caller is answered at the latest. No attempt is made later.
    pub deadline: Instant,
}

impl Deduction {
    /// A deduction of one unit, for unit tests.
    #[cfg(test)]
    pub(crate) fn sample(sku: &str) -> Self {
        Self {
            operation: OperationId::mint(),
            caller: Caller::anonymous(),
            sku: Sku::parse(sku).expect("a valid SKU"),
            warehouse: Warehouse::default(),
            quantity: Quantity::ONE,
            idempotency: None,
            remarks: Remarks::default(),
            strategy: "group-commit",
            deadline: Instant::now() + std::time::Duration::from_secs(5),
        }
    }

    /// The refusal if only this many units are available.
    pub(crate) fn insufficient(&self, available: i64) -> StockError {
        StockError::Insufficient {
            requested: self.quantity.units(),
            available,
        }
    }
}

/// A deduction that was made.
// A retry gets the first answer, rebuilt from the ledger. The comments are in the API's document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = DeductAnswer))]
pub struct Deducted {
    /// The id of the operation in the ledger.
    #[serde(rename = "id")]
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub operation: OperationId,
    /// The SKU.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub sku: Sku,
    /// The warehouse.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub warehouse: Warehouse,
    /// Units taken.
    pub quantity: i64,
    /// Units available after the deduction.
    pub remaining: i64,
    /// The strategy that protected it.
    pub strategy: Cow<'static, str>,
    /// Whether this answers a retry of an earlier request.
    #[serde(skip)]
    pub replayed: bool,
}
