//! The connections for a write that locks a row.

use tokio::time::Instant;

use super::opener::Server;
use super::queue::Need;
use super::{Pool, PooledConnection};
use crate::{Result, StoreError};
use stocklock_core::stock::Sku;

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

impl<S: Server> Pool<S> {
    /// The connections for one write that locks a row of this SKU.
    pub(crate) fn for_row(&self, sku: &Sku) -> RowConnections<S> {
        RowConnections {
            pool: self.for_sku(sku),
            since: Instant::now(),
            need: Need::Row,
            was_prompt: false,
        }
    }
}

impl<S: Server> RowConnections<S> {
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
