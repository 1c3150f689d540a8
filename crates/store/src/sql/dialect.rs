//! What one database supplies to the flows: its words, and the operations that really differ.

use super::conditional_write::ConditionalWrite;
use super::pool::{PooledConnection, Server};
use super::statements::Files;
use super::write::{Session, Write, Written};
use crate::{AttemptOutcome, Result};

/// One database.
pub(crate) trait Dialect: Server + Clone {
    /// Its name.
    const NAME: &'static str;

    /// Its words and its own statements.
    const FILES: Files;

    /// Whether a prepared statement still has the right plan when the ledger has grown.
    const KEEPS_PLANS: bool;

    /// Whether a locking read waits for rows that another transaction has inserted and not committed.
    /// If so, a transaction that creates a level locks the levels of its SKU after the insert, and finds those
    /// that others have created.
    const WAITS_FOR_INSERTS: bool;

    /// For databases on which a commit can be visible before a synchronous standby has it: a statement that
    /// returns a row if there is a standby, and one whose commit waits for it.
    const STANDBY: Option<[&str; 2]> = None;

    /// The maximum number of operations that share a statement. With the longest values, 256 fit into one
    /// megabyte, the smallest `max_allowed_packet` in use.
    const MAX_BATCH: usize = 256;

    /// Writes a level and its movement, and commits both, in as few messages as possible. `None` if
    /// the condition does not hold.
    fn conditional_write(
        connection: PooledConnection<Self>,
        write: &mut ConditionalWrite<'_>,
    ) -> impl Future<Output = Result<Option<AttemptOutcome>>> + Send;

    /// Writes levels and movements, and commits, in as few messages as possible.
    fn write(
        session: Session<Self>,
        write: &Write<'_>,
    ) -> impl Future<Output = Result<Written>> + Send;

    /// Settings of the server under which an acknowledged sale can be lost: one sentence each.
    fn unsafe_settings(
        connection: &mut PooledConnection<Self>,
    ) -> impl Future<Output = sqlx::Result<Vec<String>>> + Send;
}
