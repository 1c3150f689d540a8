//! The fencing token of the lock under which something is written.

use std::sync::Arc;

/// Which acquisition of a lock a write belongs to.
///
/// A row keeps the last one that wrote it, so that a holder that was overtaken without noticing
/// finds a later one there. Numbers of different sources do not compare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    /// Grows from each acquisition of the lock to the next.
    pub token: i64,
    /// Who minted it: the kind of lock, and its cluster.
    pub source: Arc<str>,
}

impl Fence {
    /// Whether a row that was last written with this token of this source shows a later holder.
    #[must_use]
    pub fn is_before(&self, token: i64, source: &str) -> bool {
        *self.source == *source && self.token < token
    }
}
