//! One deduction: what is asked, and what is answered.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Idempotency, Quantity, Sku, Warehouse};

/// The identity of one operation, minted once per request: every retry inside the service carries
/// it, so that the ledger's primary key refuses to record the operation twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OperationId(pub Uuid);

impl OperationId {
    /// A new id (uuid v7: later ones sort later).
    #[must_use]
    pub fn mint() -> Self {
        Self(Uuid::now_v7())
    }
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What is to be taken, for whom, and under which protection it is recorded.
#[derive(Debug, Clone)]
pub struct Deduction {
    /// Its identity.
    pub operation: OperationId,
    /// What is taken.
    pub sku: Sku,
    /// From where.
    pub warehouse: Warehouse,
    /// How many units.
    pub quantity: Quantity,
    /// The caller's key, when one was sent.
    pub idempotency: Option<Idempotency>,
    /// The strategy's name, for the ledger.
    pub strategy: &'static str,
}

/// How well a 2xx survives: which store had acknowledged the change when it was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// Committed by the SQL database, movement and level together.
    Committed,
    /// As durable as that Redis.
    Redis,
}

impl Durability {
    /// The name at every edge: `committed` or `redis`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Committed => "committed",
            Self::Redis => "redis",
        }
    }
}

/// A deduction that took place; for a repeat, the first one's answer, rebuilt from the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deducted {
    /// The operation that took the units.
    pub operation: OperationId,
    /// What was taken.
    pub sku: Sku,
    /// From where.
    pub warehouse: Warehouse,
    /// How many units.
    pub quantity: i64,
    /// Units that were available right after it.
    pub remaining: i64,
    /// The strategy that protected it.
    pub strategy: Cow<'static, str>,
    /// How durable it was when it was first answered.
    pub durability: Durability,
    /// Whether this answers a repeat of an earlier request.
    pub replayed: bool,
}
