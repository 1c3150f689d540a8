//! Locks within one process, without a server.
//!
//! *Guarantees:* exclusion between all managers that use clones of one back end, with leases like
//! those of a server. *Costs:* a mutex and a map. *Fails when* there is a second process, which it
//! does not exclude. *Use when* there is only one process, or to run code without the lock server
//! that it normally needs.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use super::in_process::{InProcess, Question, Tables};
use crate::backend::{Claim, Nudge};
use crate::shared::clock::{Clock, default_clock};
use crate::shared::error::BackendError;
use crate::shared::source::SourceId;

/// How often a waiter for permits asks, and a waiter for a number looks whether it has expired.
const FALLBACK: Duration = Duration::from_secs(1);

/// Locks of this process. Clones share them.
#[derive(Debug, Clone)]
pub struct LocalBackend(Arc<Local>);

#[derive(Debug)]
struct Local {
    tables: Tables,
    source: SourceId,
}

impl LocalBackend {
    /// Creates a back end without locks, independent of all others.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(default_clock())
    }

    /// Creates a back end whose leases run on this clock.
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Local {
            tables: Tables::new(clock),
            source: SourceId::new("local", None),
        }))
    }

    /// Returns the number of held locks, with the clients that hold permits or wait for them.
    #[must_use]
    pub fn held(&self) -> usize {
        self.0.tables.held()
    }

    /// Returns how many numbers, latches and gates of barriers exist.
    #[must_use]
    pub fn stored_numbers(&self) -> usize {
        self.0.tables.stored_numbers()
    }
}

impl Default for LocalBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl InProcess for LocalBackend {
    const NAME: &'static str = "local";
    const REMEMBERS: Duration = Duration::ZERO;

    fn tables(&self) -> &Tables {
        &self.0.tables
    }

    fn source(&self) -> &SourceId {
        &self.0.source
    }

    fn response_limit(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn fallback(&self, claim: Claim) -> Duration {
        match claim {
            Claim::Exclusive => Duration::MAX,
            Claim::Permits { .. } => FALLBACK,
        }
    }

    fn ask<T: Send + 'static>(
        &self,
        _: Question,
        answer: impl FnOnce(&Tables) -> T + Send + 'static,
    ) -> impl Future<Output = Result<T, BackendError>> + Send {
        ready(Ok(answer(&self.0.tables)))
    }

    fn attach_manager(&self, _: &Nudge) {}

    fn detach_manager(&self, _: &Nudge) {}
}
