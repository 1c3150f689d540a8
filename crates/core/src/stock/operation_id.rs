//! The identity of an operation.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

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
