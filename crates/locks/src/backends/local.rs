//! Locks within one process, without a server.
//!
//! *Guarantees:* exclusion between all managers that use clones of one back end, with leases like
//! those of a server. *Costs:* a mutex and a map. *Fails when* there is a second process, which it
//! does not exclude. *Use when* there is only one process, or to run code without the lock server
//! that it normally needs.

use std::sync::Arc;

use super::memory::{InProcess, MemoryBackend};
use crate::shared::clock::{Clock, default_clock};

/// Locks of this process. Clones share them.
#[derive(Debug, Clone)]
pub struct LocalBackend(MemoryBackend);

impl LocalBackend {
    /// Creates a back end without locks, independent of all others.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(default_clock())
    }

    /// Creates a back end whose leases run on this clock.
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self(MemoryBackend::local(clock))
    }

    /// Returns the number of held locks, with the clients that hold permits or wait for them.
    #[must_use]
    pub fn held(&self) -> usize {
        self.0.tables().held()
    }
}

impl Default for LocalBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl InProcess for LocalBackend {
    fn client(&self) -> &MemoryBackend {
        &self.0
    }
}
