//! The row that says which Redis has the stock of this ledger.
//!
//! A transaction that gives the stock to another Redis, or to another run of it, locks the row of `ledger`.
//! A transaction that applies journal entries shares that lock and then reads which Redis has the stock:
//! its entries are recorded before the stock is loaded elsewhere, or never. Beats do not lock it, so they
//! do not wait for entries.

use async_trait::async_trait;
use sqlx::FromRow;

use super::SqlStore;
use super::dialect::{Dialect, Statement, values};
use super::errors::{Inserted, before_commit, inserted};
use super::pool::Transaction;
use crate::{Result, StoreError};
use stocklock_core::ports::Server;

const SELECT: &str = "SELECT id, run_id, beat, beat_before FROM redis_binding";

/// The values, and the ledger's own id as the primary key: so there is at most one row.
const INSERT: &str = "INSERT INTO redis_binding (ledger, id, run_id, beat, beat_before)
    SELECT id, $1, $2, $3, $4 FROM ledger";

/// The new values, then the expected ones.
const UPDATE: &str = "UPDATE redis_binding
    SET id = $1, run_id = $2, beat = $3, beat_before = $4
    WHERE id = $5 AND run_id = $6 AND beat = $7";

/// The Redis that has the stock of a ledger.
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
pub(crate) struct BoundRedis {
    /// The id that its key must contain.
    pub(crate) id: String,
    /// The run of the server, its replication history and the number of the database in it. It changes
    /// when the server restarts, becomes a primary, or another one takes over.
    pub(crate) run_id: String,
    /// Increases while replicas use it. 0: no replica has used it yet.
    pub(crate) beat: i64,
    /// The beat that its key had when `beat` was written here. With a beat of 0, the last beat of the binding
    /// before this one, or 0 if this is the first.
    pub(crate) beat_before: i64,
}

impl BoundRedis {
    /// Whether both are the same run of the same Redis.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (&self.id, &self.run_id) == (&other.id, &other.run_id)
    }
}

/// Reads and replaces the binding of this ledger.
#[async_trait]
pub(crate) trait RedisBindings: Send + Sync {
    /// The Redis that has the stock. `None` if no stock was ever in one.
    async fn bound_redis(&self) -> Result<Option<BoundRedis>>;

    /// Writes `new` if the row is still `expected`. Returns whether it was.
    async fn bind_redis(&self, expected: Option<&BoundRedis>, new: &BoundRedis) -> Result<bool>;
}

#[async_trait]
impl<D: Dialect> RedisBindings for SqlStore<D> {
    async fn bound_redis(&self) -> Result<Option<BoundRedis>> {
        let found = self.select(self.lookups(), SELECT, &[]).await;
        Ok(found?.pop())
    }

    async fn bind_redis(&self, expected: Option<&BoundRedis>, new: &BoundRedis) -> Result<bool> {
        let (id, run_id) = (&*new.id, &*new.run_id);
        let mut columns = values![id, run_id, new.beat, new.beat_before].to_vec();
        if let Some(row) = expected {
            columns.extend(values![&*row.id, &*row.run_id, row.beat]);
        }
        let statement = expected.map_or(INSERT, |_| UPDATE);
        let is_beat = expected.is_some_and(|row| row.is_same(new));
        self.write(async {
            if is_beat && !D::EMBEDDED {
                let mut connection = self.writers.acquire().await?;
                return is_written(connection.execute(statement, &columns).await);
            }
            // SQLite waits for another writer only when a transaction begins.
            let mut tx = self.writers.begin(D::WORDS.begin).await?;
            if !is_beat {
                lock_ledger(&mut tx, D::WORDS.lock_rows).await?;
            }
            let written = is_written(tx.execute(statement, &columns).await)?;
            tx.commit().await?;
            Ok(written)
        })
        .await
    }
}

/// Ensures until the end of the transaction that `bound` has the stock.
///
/// # Errors
/// If another Redis has it.
pub(super) async fn keep_bound<D: Dialect>(
    tx: &mut Transaction<D>,
    bound: &BoundRedis,
) -> Result<()> {
    lock_ledger(tx, D::WORDS.share_rows).await?;
    let found = tx.fetch(SELECT, &[]).await;
    let found: Vec<BoundRedis> = found.map_err(before_commit)?;
    if found.first().is_some_and(|row| row.is_same(bound)) {
        return Ok(());
    }
    let why = "the stock was given to another Redis after these journal entries were read";
    Err(StoreError::Unavailable(Server::Redis, why.into()))
}

async fn lock_ledger<D: Dialect>(tx: &mut Transaction<D>, lock: &str) -> Result<()> {
    let statement = Statement::built(format!("SELECT id FROM ledger{lock}"));
    let locked: sqlx::Result<Vec<(String,)>> = tx.fetch(statement, &[]).await;
    locked.map(drop).map_err(before_commit)
}

/// Whether the statement has written a row. If not, another replica was faster.
fn is_written(answer: sqlx::Result<u64>) -> Result<bool> {
    let mut rows = 0;
    let answer = answer.map(|written| rows = written);
    Ok(inserted(answer, false)? == Inserted::New && rows == 1)
}
