//! Locks within one process, without a server.
//!
//! *Guarantees:* exclusion between all managers that use clones of one back end, with leases like
//! those of a server. *Costs:* a mutex and a map. *Fails when* there is a second process, which it
//! does not exclude. *Use when* there is only one process, or to run code without the lock server
//! that it normally needs.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::backend::{
    Attempt, Backend, Contender, Grant, Nudge, Properties, Release, ReleaseRequest, Renewal,
    Renewed, Request,
};
use crate::clock::{Clock, default_clock};
use crate::error::BackendError;
use crate::nonce::Nonce;
use crate::table::Table;
use crate::topics::Listener;

/// Locks of this process. Clones share them.
#[derive(Debug, Clone)]
pub struct LocalBackend(Arc<Local>);

#[derive(Debug)]
struct Local {
    table: Table,
    clock: Arc<dyn Clock>,
    source: Arc<str>,
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
            table: Table::default(),
            clock,
            source: format!("local:{}", Nonce::random()).into(),
        }))
    }

    /// Returns the number of held locks.
    #[must_use]
    pub fn held(&self) -> usize {
        self.0.table.len(self.0.clock.now())
    }
}

impl Default for LocalBackend {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Backend for LocalBackend {
    fn properties(&self) -> Properties {
        Properties {
            name: "local",
            response_limit: Duration::from_secs(1),
            session: None,
        }
    }

    fn contender(&self, request: Request) -> Box<dyn Contender> {
        Box::new(LocalContender {
            local: Arc::clone(&self.0),
            request,
            freed: None,
            holds: false,
        })
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>, BackendError> {
        let now = self.0.clock.now();
        let renew = |renewal| self.0.table.renew(now, renewal);
        Ok(renewals.iter().map(renew).collect())
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<Release, BackendError> {
        let ReleaseRequest { name, nonce, .. } = request;
        let outcome = self.0.table.release(self.0.clock.now(), name, *nonce);
        self.0.table.freed.publish(name);
        Ok(outcome)
    }

    async fn verify(&self, name: &str, nonce: Nonce) -> Result<bool, BackendError> {
        let holder = self.0.table.holder(self.0.clock.now(), name);
        Ok(holder.is_some_and(|(holder, _)| holder == nonce))
    }

    async fn ping(&self) -> Result<(), BackendError> {
        Ok(())
    }

    fn attach(&self, _: Nudge) {}

    async fn detach(&self, _: &Nudge) {}
}

struct LocalContender {
    local: Arc<Local>,
    request: Request,
    freed: Option<Listener>,
    holds: bool,
}

#[async_trait]
impl Contender for LocalContender {
    async fn attempt(&mut self) -> Result<Attempt, BackendError> {
        let Request { name, nonce, lease } = &self.request;
        let now = self.local.clock.now();
        Ok(match self.local.table.acquire(now, name, *nonce, *lease) {
            Ok(token) => {
                self.holds = true;
                Attempt::Held(Grant {
                    token,
                    source: Arc::clone(&self.local.source),
                    lease: *lease,
                })
            }
            Err(remaining) => Attempt::Busy {
                ask_again: Some(remaining),
            },
        })
    }

    async fn wait(&mut self) -> Result<(), BackendError> {
        match &mut self.freed {
            Some(freed) => freed.changed().await,
            freed => *freed = Some(self.local.table.freed.listen(&self.request.name)),
        }
        Ok(())
    }

    fn may_have_left_something(&self) -> bool {
        self.holds
    }

    fn has_unanswered_attempt(&self) -> bool {
        false
    }
}
