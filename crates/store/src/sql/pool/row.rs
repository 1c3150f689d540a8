//! The connections for a write that locks a row.

use tokio::time::Instant;

use super::PooledConnection;
use super::queue::Need;
use super::server::{Pool, Server};
use crate::{Result, StoreError};

/// The connections for one write: first one of any kind, then one that waits for a locked row.
#[derive(Debug)]
pub(crate) struct RowConnections<S: Server> {
    pool: Pool<S>,
    /// Since when the write waits.
    since: Instant,
    need: Need,
    /// Whether the last connection does not wait.
    was_prompt: bool,
}

impl<S: Server> RowConnections<S> {
    /// `pool`: that of the SKU.
    pub(super) fn new(pool: Pool<S>) -> Self {
        Self {
            pool,
            since: Instant::now(),
            need: Need::Row,
            was_prompt: false,
        }
    }

    /// The next connection.
    ///
    /// # Errors
    /// As [`Pool::acquire`].
    pub(crate) async fn acquire(&mut self) -> Result<PooledConnection<S>> {
        let connection = self.pool.acquire_for(self.need, self.since).await?;
        self.was_prompt = connection.is_prompt();
        Ok(connection)
    }

    /// Whether a write that ended with `error` is to be made again on the next connection: it met a lock
    /// on one that does not wait. It changed nothing.
    pub(crate) fn again(&mut self, error: &StoreError) -> bool {
        let met_a_lock = matches!(error, StoreError::LockWait(_) | StoreError::KeyInFlight(_));
        let again = met_a_lock && self.was_prompt;
        if again {
            self.need = Need::LockedRow;
        }
        again
    }
}
