//! Connections for `WATCH`, one user at a time.
//!
//! `WATCH` belongs to a connection, not to whoever sent it: on a shared one, another's `EXEC` ends
//! it, and the next `EXEC` succeeds though the level has changed. So a connection is taken out,
//! used alone, and comes back only when its conversation is complete; one that is dropped in the
//! middle is closed, and the server forgets its `WATCH` with it.

use std::sync::Mutex;
use std::time::Duration;
use stocklock_core::ports::Server;

use redis::aio::MultiplexedConnection;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::connection::Connector;
use super::failure::connecting;
use crate::StoreError;

/// A bounded number of connections.
#[derive(Debug)]
pub(super) struct Exclusive {
    connector: Connector,
    idle: Mutex<Vec<MultiplexedConnection>>,
    slots: Semaphore,
    wait_limit: Duration,
}

/// A connection of one's own.
#[derive(Debug)]
pub(super) struct Taken<'a> {
    pub(super) connection: MultiplexedConnection,
    pool: &'a Exclusive,
    _slot: SemaphorePermit<'a>,
}

impl Exclusive {
    pub(super) fn new(connector: Connector, size: u32, wait_limit: Duration) -> Self {
        Self {
            connector,
            idle: Mutex::default(),
            slots: Semaphore::new(size as usize),
            wait_limit,
        }
    }

    /// Takes a connection, waiting for one up to the wait limit.
    pub(super) async fn take(&self) -> Result<Taken<'_>, StoreError> {
        let slot = tokio::time::timeout(self.wait_limit, self.slots.acquire());
        let slot = slot.await.map_err(|_elapsed| StoreError::RedisExhausted)?;
        let slot = slot.map_err(|closed| StoreError::Unavailable(Server::Redis, closed.into()))?;
        let idle = self.idle().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => self.connector.connect().await.map_err(connecting)?,
        };
        Ok(Taken {
            connection,
            pool: self,
            _slot: slot,
        })
    }

    /// Gives up the connections that wait here: what broke one of them may have broken all.
    pub(super) fn suspect_all(&self) {
        self.idle().clear();
    }

    /// Lets nobody in any more.
    pub(super) fn close(&self) {
        self.slots.close();
        self.idle().clear();
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<MultiplexedConnection>> {
        // Nothing panics while it is held.
        self.idle
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Taken<'_> {
    /// Back to the others; only once nothing is watched on it and no answer is outstanding.
    pub(super) fn give_back(self) {
        if !self.pool.slots.is_closed() {
            self.pool.idle().push(self.connection);
        }
    }
}
