//! What the three SQL back ends' pools have in common.
//!
//! sqlx 0.9.0 can hand out a connection that is still inside a transaction whose `begin` was
//! abandoned; what is then acknowledged on it is never committed
//! (<https://github.com/transact-rs/sqlx/issues/4385>). So every pool rolls back on release.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sqlx::pool::{PoolConnection, PoolOptions};
use sqlx::{Connection, Database, Executor, Pool, Transaction};
use sqlx::{MySqlConnection, PgConnection, SqliteConnection};
use tokio::time::Instant;

use super::driver_error::{Verdict, before_commit, classify, in_commit};
use super::{StoreError, StoreOptions};

/// A connection that was idle for longer is asked whether it still lives before it is used.
const TRUSTED_IDLE: Duration = Duration::from_secs(10);

/// How long it may take to answer that. Far more than a round trip, and far less than a request
/// waits for a connection: behind one that is dead there may be more.
const ALIVE_WITHIN: Duration = Duration::from_millis(250);

/// Whether every connection that the pool may open is open and in use.
pub(super) fn is_busy<DB: Database>(pool: &Pool<DB>) -> bool {
    pool.size() >= pool.options().get_max_connections()
}

/// Ends a transaction that is not to be committed. Where even that fails, the connection is
/// broken: the pool drops it, and the server rolls back.
pub(super) async fn roll_back<DB: Database>(tx: Transaction<'static, DB>) {
    if let Err(error) = tx.rollback().await {
        tracing::debug!(%error, "rollback failed; the connection is dropped instead");
    }
}

/// On release: ends whatever transaction is still open, quietly where there is none.
pub(super) async fn roll_back_sqlite(connection: &mut SqliteConnection) -> sqlx::Result<bool> {
    match connection.execute("ROLLBACK").await {
        Ok(_) => Ok(true),
        Err(sqlx::Error::Database(error)) if error.message().contains("no transaction") => Ok(true),
        Err(error) => Err(error),
    }
}

/// On release, `MySQL`: `ROLLBACK` is welcome even where there is nothing to roll back.
pub(super) async fn roll_back_mysql(connection: &mut MySqlConnection) -> sqlx::Result<()> {
    connection.execute("ROLLBACK").await.map(drop)
}

/// On release, `PostgreSQL`: where there is nothing to roll back, a `ROLLBACK` alone would be
/// answered by a WARNING, in the server's log too, for every request.
pub(super) async fn roll_back_postgres(connection: &mut PgConnection) -> sqlx::Result<()> {
    match connection.execute("BEGIN; ROLLBACK").await {
        Ok(_) => Ok(()),
        // In a transaction that has failed, even `BEGIN` is refused.
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("25P02") => {
            connection.execute("ROLLBACK").await.map(drop)
        }
        Err(error) => Err(error),
    }
}

/// How long a statement may take until the server ends it: a lock wait in the unit of the coarsest
/// server, whole seconds rounded up, and a moment for the work. (`MySQL` so ends only what reads;
/// what writes there is bounded by its lock waits.)
pub(super) fn statement_limit(wait_limit: Duration) -> Duration {
    Duration::from_secs(lock_wait_seconds(wait_limit)) + Duration::from_millis(500)
}

/// How long to wait for a server's word on a statement: it has given up by itself by then, and
/// said so.
fn patience(wait_limit: Duration) -> Duration {
    statement_limit(wait_limit) + Duration::from_millis(500)
}

/// The wait limit in whole seconds, rounded up, at least one: a server takes zero for "never".
pub(super) fn lock_wait_seconds(wait_limit: Duration) -> u64 {
    let seconds = wait_limit.as_secs() + u64::from(wait_limit.subsec_nanos() > 0);
    seconds.max(1)
}

/// Nobody answers.
#[derive(Debug, thiserror::Error)]
#[error("the database has not answered for {0:?}")]
pub(super) struct Silence(Duration);

/// The database's last sign of life, when a connection was opened, or came back and answered; and
/// when one last failed to.
///
/// The pool itself cannot tell connections that are busy from connections that nobody answers.
#[derive(Debug)]
pub(super) struct Pulse {
    started: Instant,
    /// Milliseconds since `started`, plus one; zero while there was none.
    last: AtomicU64,
    /// The same of the last connection that turned out to be dead.
    missed: AtomicU64,
    wait_limit: Duration,
    patience: Duration,
}

impl Pulse {
    pub(super) fn new(wait_limit: Duration) -> Arc<Self> {
        Arc::new(Self {
            started: Instant::now(),
            last: AtomicU64::new(0),
            missed: AtomicU64::new(0),
            wait_limit,
            patience: patience(wait_limit),
        })
    }

    pub(super) fn beat(&self) {
        self.last.store(self.now(), Ordering::Relaxed);
    }

    fn miss(&self) {
        self.missed.store(self.now(), Ordering::Relaxed);
    }

    /// Waits for an operation, but no longer than a database that lives could take: the wait for a
    /// connection, and `statements` of which each may last as long as the server lets it. What is
    /// merely slow the server has ended before, so that only silence is counted as such.
    pub(super) async fn listen<T>(
        &self,
        statements: u32,
        operation: impl Future<Output = T>,
    ) -> Result<T, Silence> {
        let limit = self.wait_limit + statements * self.patience;
        let heard = tokio::time::timeout(limit, operation).await;
        heard.map_err(|_elapsed| {
            self.miss();
            Silence(limit)
        })
    }

    /// Whether a connection may be used without being asked first. None may that was idle already
    /// when another one turned out to be dead, for both may have died of the same.
    fn trusts(&self, idle: Duration) -> bool {
        let idle_ms = u64::try_from(idle.as_millis()).unwrap_or(u64::MAX);
        let idle_since = self.now().saturating_sub(idle_ms);
        idle < TRUSTED_IDLE && idle_since > self.missed.load(Ordering::Relaxed)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).map_or(u64::MAX, |ms| ms + 1)
    }

    /// Whether there was one within the time that any statement of ours may take.
    fn is_recent(&self) -> bool {
        let last = self.last.load(Ordering::Relaxed);
        let age = Duration::from_millis(self.now().saturating_sub(last));
        last > self.missed.load(Ordering::Relaxed) && age <= self.patience
    }

    /// On release: whether the connection may be used again. One that does not answer, or answers
    /// anything but what was asked (an abandoned statement may leave it out of step), may not.
    pub(super) async fn after_release(
        &self,
        roll_back: impl Future<Output = sqlx::Result<()>>,
    ) -> sqlx::Result<bool> {
        match tokio::time::timeout(self.patience, roll_back).await {
            Ok(Ok(())) => {
                self.beat();
                return Ok(true);
            }
            Ok(Err(error)) => tracing::debug!(%error, "a connection is dropped"),
            Err(_elapsed) => tracing::debug!("a connection that does not answer is dropped"),
        }
        self.miss();
        Ok(false)
    }
}

/// What the pools of the servers have in common; each adds its hooks.
pub(super) fn server_pool<DB: Database>(
    options: &StoreOptions,
    pulse: &Arc<Pulse>,
) -> PoolOptions<DB> {
    let pulse = Arc::clone(pulse);
    PoolOptions::new()
        .max_connections(options.pool_size)
        .acquire_timeout(options.wait_limit)
        // It would cost each request a round trip.
        .test_before_acquire(false)
        .before_acquire(move |connection: &mut DB::Connection, idle| {
            let trusted = pulse.trusts(idle.idle_for);
            Box::pin(async move {
                if trusted {
                    return Ok(true);
                }
                let answer = tokio::time::timeout(ALIVE_WITHIN, connection.ping()).await;
                Ok(matches!(answer, Ok(Ok(()))))
            })
        })
}

/// A connection, or why there is none: all busy, or the database away.
pub(super) async fn acquire<DB: Database>(
    pool: &Pool<DB>,
    pulse: &Pulse,
) -> Result<PoolConnection<DB>, StoreError> {
    pool.acquire()
        .await
        .map_err(|error| match classify(&error) {
            Verdict::PoolTimedOut if is_busy(pool) && pulse.is_recent() => StoreError::Exhausted,
            // Whatever it is, the server did not let us in.
            _ => StoreError::Unavailable(Box::new(error)),
        })
}

/// Asks the database whether it is there, on a pool of one connection that no sale uses: the
/// question must not queue behind the sales, nor be answered from memory.
pub(super) async fn ping<DB: Database>(probe: &Pool<DB>, pulse: &Pulse) -> Result<(), StoreError> {
    let mut connection = acquire(probe, pulse).await?;
    connection.ping().await.map_err(failed)
}

/// Begins a transaction on a connection of the pool, by `statement` or plainly.
pub(super) async fn begin<DB: Database>(
    pool: &Pool<DB>,
    pulse: &Pulse,
    statement: Option<&'static str>,
) -> Result<Transaction<'static, DB>, StoreError> {
    use sqlx::SqlSafeStr;
    let connection = acquire(pool, pulse).await?;
    Transaction::begin(connection, statement.map(SqlSafeStr::into_sql_str))
        .await
        .map_err(failed)
}

/// What an error before COMMIT means, where it is neither a duplicate nor a violated CHECK.
pub(super) fn failed(error: sqlx::Error) -> StoreError {
    before_commit(error)
}

/// What an error of an embedded database's pool means. There is no server that could be away, so
/// where all connections are in use, nothing else can have been waited for.
pub(super) fn failed_in<DB: Database>(pool: &Pool<DB>, error: sqlx::Error) -> StoreError {
    match classify(&error) {
        Verdict::PoolTimedOut if is_busy(pool) => StoreError::Exhausted,
        _ => failed(error),
    }
}

pub(super) async fn commit<DB: Database>(tx: Transaction<'static, DB>) -> Result<(), StoreError> {
    tx.commit().await.map_err(in_commit)
}

/// What the ledger's answer to an `INSERT` means: whether the movement is new to it.
///
/// A lock that was waited for in vain there, with a key present, is that of another transaction
/// that is recording the same key.
pub(super) fn recorded(
    inserted: Result<(), sqlx::Error>,
    with_key: bool,
) -> Result<bool, StoreError> {
    let Err(error) = inserted else {
        return Ok(true);
    };
    match classify(&error) {
        Verdict::Duplicate => Ok(false),
        Verdict::RollBackThenRetry if with_key => Err(StoreError::KeyInFlight(Box::new(error))),
        _ => Err(failed(error)),
    }
}

/// A row that was absent when it was read and is there now: another transaction was faster.
pub(super) fn conflict_if_duplicate(
    error: sqlx::Error,
    otherwise: impl FnOnce(sqlx::Error) -> StoreError,
) -> StoreError {
    if classify(&error) == Verdict::Duplicate {
        return StoreError::Conflict(Box::new(error));
    }
    otherwise(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn one_dead_connection_makes_those_suspect_that_were_idle_beside_it() {
        let pulse = Pulse::new(2 * SECOND);
        tokio::time::advance(5 * SECOND).await;
        assert!(pulse.trusts(SECOND));
        assert!(!pulse.trusts(TRUSTED_IDLE));

        let silence = pulse.listen(1, std::future::pending::<()>()).await;
        silence.expect_err("nobody answers");
        tokio::time::advance(SECOND).await;
        assert!(!pulse.trusts(2 * SECOND), "it was idle before");
        assert!(pulse.trusts(SECOND / 2), "it has been used since");
    }

    #[tokio::test(start_paused = true)]
    async fn a_dead_connection_ends_what_was_known_of_life() {
        let pulse = Pulse::new(2 * SECOND);
        assert!(!pulse.is_recent());
        tokio::time::advance(SECOND).await;
        pulse.beat();
        assert!(pulse.is_recent());
        tokio::time::advance(SECOND).await;
        let dead = async { Err(sqlx::Error::WorkerCrashed) };
        assert!(!pulse.after_release(dead).await.unwrap());
        assert!(!pulse.is_recent());
        tokio::time::advance(SECOND).await;
        pulse.beat();
        assert!(pulse.is_recent());
    }
}
