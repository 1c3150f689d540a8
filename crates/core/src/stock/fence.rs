//! The fencing token of the lock under which a row is written.

use std::sync::Arc;

/// Identifies the lock acquisition under which a row is written.
///
/// A row stores the fence of its last writer. If a later holder has written the row, the store
/// refuses a holder that lost its lock without noticing. Tokens of different sources cannot be
/// compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    /// Increases with each acquisition of the lock.
    pub token: i64,
    /// The issuer of the token: the kind of lock, and its cluster.
    pub source: Arc<str>,
}

impl Fence {
    /// Whether a row with this token and source was written by a later holder.
    #[must_use]
    pub fn is_before(&self, token: i64, source: &str) -> bool {
        *self.source == *source && self.token < token
    }
}
