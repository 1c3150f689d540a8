//! A pool of connections for `WATCH`, each with one user at a time.
//!
//! `WATCH` applies to a connection. If two callers shared one, the first `EXEC` would end both
//! watches, and the second `EXEC` would succeed although the level had changed. A caller returns a
//! connection only after all replies. A connection dropped before that is closed, which ends its
//! `WATCH` on the server.

use std::sync::Mutex;
use std::time::Duration;
use stocklock_core::ports::Server;

use redis::aio::MultiplexedConnection;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::connection::Connector;
use super::failure::connecting;
use crate::StoreError;

/// The pool.
#[derive(Debug)]
pub(super) struct ExclusivePool {
    connector: Connector,
    idle: Mutex<Vec<MultiplexedConnection>>,
    slots: Semaphore,
    wait_limit: Duration,
}

/// A connection that one caller uses alone.
#[derive(Debug)]
pub(super) struct ExclusiveConnection<'a> {
    pub(super) connection: MultiplexedConnection,
    pool: &'a ExclusivePool,
    _slot: SemaphorePermit<'a>,
}

impl ExclusivePool {
    pub(super) fn new(connector: Connector, size: u32, wait_limit: Duration) -> Self {
        Self {
            connector,
            idle: Mutex::default(),
            slots: Semaphore::new(size as usize),
            wait_limit,
        }
    }

    /// Waits for a connection, at most for the wait limit.
    pub(super) async fn acquire(&self) -> Result<ExclusiveConnection<'_>, StoreError> {
        let slot = tokio::time::timeout(self.wait_limit, self.slots.acquire());
        let slot = slot.await.map_err(|_elapsed| StoreError::RedisExhausted)?;
        let slot = slot.map_err(|closed| StoreError::Unavailable(Server::Redis, closed.into()))?;
        let idle = self.idle().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => self.connector.connect().await.map_err(connecting)?,
        };
        Ok(ExclusiveConnection {
            connection,
            pool: self,
            _slot: slot,
        })
    }

    /// Closes the idle connections, because what broke one connection may have broken all.
    pub(super) fn discard_idle(&self) {
        self.idle().clear();
    }

    /// Closes the idle connections, and refuses further callers.
    pub(super) fn close(&self) {
        self.slots.close();
        self.idle().clear();
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<MultiplexedConnection>> {
        // No code panics while it holds this mutex.
        self.idle
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl ExclusiveConnection<'_> {
    /// Returns the connection to the pool. It must have no `WATCH` and no outstanding reply.
    pub(super) fn release(self) {
        if !self.pool.slots.is_closed() {
            self.pool.idle().push(self.connection);
        }
    }
}
