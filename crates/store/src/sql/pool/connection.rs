//! A connection in use, and a transaction on it.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use deadpool::managed::Object;
use sqlx::Connection;
use stocklock_core::ports::Expiry;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout};

use super::ServerHealth;
use super::queue::Permit;
use super::server::{Opener, Server, Timed};
use crate::Result;
use crate::sql::dialect::{AnyRow, Dialect, Statement, Value};
use crate::sql::errors::{Verdict, before_commit, classify, in_commit};

/// How long the orderly close of a connection may take.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// The longest pause before SQLite's write lock is asked for again: another process may hold it.
const WRITER_PAUSE: Duration = Duration::from_millis(5);

/// A connection in use. Its drop decides what becomes of it: see [`super`].
#[derive(Debug)]
pub(crate) struct PooledConnection<S: Server> {
    /// `Some` until the drop.
    connection: Option<(Permit, Object<Opener<S>>)>,
    health: Arc<ServerHealth>,
    /// A request was sent and not answered in full.
    unanswered: bool,
    /// The session has ended, or its state is not known.
    is_spent: bool,
    in_transaction: bool,
}

impl<S: Server> PooledConnection<S> {
    pub(super) fn new(
        permit: Permit,
        connection: Object<Opener<S>>,
        health: Arc<ServerHealth>,
    ) -> Self {
        Self {
            connection: Some((permit, connection)),
            health,
            unanswered: false,
            is_spent: false,
            in_transaction: false,
        }
    }

    /// Whether a statement on it does not wait for a row that is locked.
    pub(super) fn is_prompt(&self) -> bool {
        let connection = self.connection.as_ref();
        connection.is_some_and(|(permit, _)| permit.is_prompt())
    }

    /// The connection, to send a request. Its answer goes to [`PooledConnection::received`].
    pub(crate) fn send(&mut self) -> &mut S::Connection {
        self.unanswered = true;
        let connection = self.connection.as_mut();
        let (_, timed) = connection.expect("the connection is there until the drop");
        &mut timed.connection
    }

    /// When a request expires that is sent now, for a caller who is answered by `deadline`.
    pub(crate) fn expiry(&self, deadline: Instant) -> Expiry {
        let timed = self.connection.as_ref();
        let (_, timed) = timed.expect("the connection is there until the drop");
        timed.clock.expiry(deadline, self.health.wait_limit)
    }

    /// Records whether the connection can be used again, and whether the server refused to write. The
    /// connection cannot be used again after an error that is not the database's own: it is broken,
    /// or an answer on it is half read. It cannot either after the database's last message on it, for
    /// example that an administrator ended the session, nor after an error that is not in the table.
    pub(crate) fn received<T>(&mut self, answer: sqlx::Result<T>) -> sqlx::Result<T> {
        self.unanswered = !matches!(answer, Ok(_) | Err(sqlx::Error::Database(_)));
        let verdict = answer.as_ref().err().map(classify);
        self.is_spent |= matches!(
            verdict,
            Some(Verdict::ConnectionLost | Verdict::Stale | Verdict::Unknown)
        );
        match verdict {
            Some(Verdict::ConnectionLost) => self.health.record_failure(),
            // The others that are open have prepared the same.
            Some(Verdict::Stale) => self.health.record_refusal(),
            Some(Verdict::Unavailable) if !self.unanswered => self.health.record_refusal(),
            _ => {}
        }
        answer
    }

    /// Begins a transaction.
    pub(crate) async fn begin(self, statement: &'static str) -> Result<Transaction<S>> {
        let (started, wait_limit) = (Instant::now(), self.health.wait_limit);
        let mut tx = Transaction::begun(self);
        loop {
            match tx.run(statement).await {
                Ok(()) => return Ok(tx),
                // Only SQLite waits for a lock here.
                Err(error)
                    if classify(&error) == Verdict::RollBackThenRetry
                        && started.elapsed() < wait_limit =>
                {
                    sleep(WRITER_PAUSE.mul_f64(fastrand::f64())).await;
                }
                Err(error) => {
                    // No transaction is open. An unanswered request still closes the connection.
                    tx.ended();
                    return Err(before_commit(error));
                }
            }
        }
    }

    /// Runs a statement that has neither parameters nor rows.
    pub(super) async fn run(&mut self, statement: &'static str) -> sqlx::Result<()> {
        let answer = S::run(self.send(), statement).await;
        self.received(answer)
    }
}

impl<D: Dialect> PooledConnection<D> {
    /// Executes a statement, and returns how many rows it changed.
    pub(crate) async fn execute(
        &mut self,
        statement: impl Into<Statement> + Send,
        values: &[Value<'_>],
    ) -> sqlx::Result<u64> {
        let statement = statement.into();
        let answer = D::execute(self.send(), statement, values).await;
        self.received(answer)
    }

    /// Executes a statement, and returns its rows.
    pub(crate) async fn fetch<T: AnyRow>(
        &mut self,
        statement: impl Into<Statement> + Send,
        values: &[Value<'_>],
    ) -> sqlx::Result<Vec<T>> {
        let statement = statement.into();
        let answer = D::fetch(self.send(), statement, values).await;
        self.received(answer)
    }
}

impl<S: Server> Drop for PooledConnection<S> {
    fn drop(&mut self) {
        let Some((permit, connection)) = self.connection.take() else {
            return;
        };
        let age = Object::metrics(&connection).age();
        let is_outdated = self.health.is_outdated(age);
        let is_usable = !self.unanswered && !self.is_spent;
        if is_usable && !self.in_transaction && !is_outdated {
            self.health.record_success();
            return;
        }
        // Without a runtime, the process is about to end.
        match Handle::try_current() {
            Ok(runtime) if is_usable && is_outdated => {
                runtime.spawn(close(Object::take(connection)));
            }
            Ok(runtime) if is_usable => {
                let health = Arc::clone(&self.health);
                runtime.spawn(async move {
                    roll_back_and_return(connection, health).await;
                    drop(permit);
                });
            }
            _ => drop(Object::take(connection)),
        }
    }
}

/// Rolls back, and returns the connection to the pool. Closes it if that fails, which ends the
/// transaction too.
async fn roll_back_and_return<S: Server>(
    mut connection: Object<Opener<S>>,
    health: Arc<ServerHealth>,
) {
    let rollback = S::run(&mut connection.connection, "ROLLBACK");
    let rolled_back = timeout(health.answer_limit, rollback).await;
    if let Ok(Ok(())) = rolled_back {
        health.record_success();
        return;
    }
    if !matches!(rolled_back, Ok(Err(sqlx::Error::Database(_)))) {
        health.record_failure();
    }
    tracing::debug!(
        ?rolled_back,
        "a connection is closed: it could not be rolled back"
    );
    drop(Object::take(connection));
}

/// Closes the connection in order, if the server answers.
pub(super) async fn close(timed: Timed<impl Connection>) {
    match timeout(CLOSE_LIMIT, timed.connection.close()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection was not closed in order"),
        Err(_elapsed) => tracing::debug!("a connection was closed without an answer"),
    }
}

/// A transaction. If it is dropped before its end, it is rolled back.
#[derive(Debug)]
pub(crate) struct Transaction<S: Server>(PooledConnection<S>);

impl<S: Server> Transaction<S> {
    /// The next request begins a transaction.
    pub(crate) fn begun(mut connection: PooledConnection<S>) -> Self {
        connection.in_transaction = true;
        Self(connection)
    }

    /// No transaction is open: the last request ended it, or did not begin one.
    pub(crate) fn ended(mut self) {
        self.0.in_transaction = false;
    }

    /// # Errors
    /// [`OutcomeUnknown`](crate::StoreError::OutcomeUnknown) unless the server is known to have
    /// rolled back.
    pub(crate) async fn commit(mut self) -> Result<()> {
        self.0.run("COMMIT").await.map_err(in_commit)?;
        self.ended();
        Ok(())
    }

    /// Ends the transaction without a commit. If that fails, the connection is closed, which makes
    /// the server roll back.
    pub(crate) async fn roll_back(mut self) {
        match self.0.run("ROLLBACK").await {
            Ok(()) => self.ended(),
            Err(error) => {
                tracing::debug!(%error, "a connection is closed: it could not be rolled back");
                self.0.unanswered = true;
            }
        }
    }
}

impl<S: Server> Deref for Transaction<S> {
    type Target = PooledConnection<S>;

    fn deref(&self) -> &PooledConnection<S> {
        &self.0
    }
}

impl<S: Server> DerefMut for Transaction<S> {
    fn deref_mut(&mut self) -> &mut PooledConnection<S> {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use sqlx::{Executor, SqliteConnection};

    use super::super::Pool;
    use super::*;

    /// Each connection is a database of its own, so its content tells which one was used.
    #[derive(Debug)]
    struct Embedded;

    static ROLLED_BACK: AtomicU32 = AtomicU32::new(0);

    impl Server for Embedded {
        const EMBEDDED: bool = true;

        const CHECK_WRITABLE: &'static str = "SELECT 1";

        type Connection = SqliteConnection;

        async fn open(&self) -> sqlx::Result<SqliteConnection> {
            let mut connection = SqliteConnection::connect("sqlite::memory:").await?;
            connection.execute("CREATE TABLE sale (id)").await?;
            Ok(connection)
        }

        async fn run(
            connection: &mut SqliteConnection,
            statement: &'static str,
        ) -> sqlx::Result<()> {
            if statement == "ROLLBACK" {
                ROLLED_BACK.fetch_add(1, Ordering::Relaxed);
            }
            connection.execute(statement).await.map(drop)
        }

        async fn read_clock(_: &mut SqliteConnection) -> sqlx::Result<i64> {
            Ok(0)
        }
    }

    const SELL: &str = "INSERT INTO sale VALUES (1)";
    const FAIL: &str = "SELECT nothing FROM nowhere";
    const CORRUPT: &str = "PRAGMA writable_schema = ON;
        UPDATE sqlite_schema SET rootpage = 1000 WHERE name = 'sale';
        PRAGMA writable_schema = RESET; SELECT count(*) FROM sale";

    /// The number of sales on the pool's connection, and of rollbacks so far.
    async fn state(pool: &Pool<Embedded>) -> (i64, u32) {
        let mut connection = pool.acquire().await.unwrap();
        let count = sqlx::query_scalar("SELECT count(*) FROM sale")
            .fetch_one(connection.send())
            .await;
        let sales = connection.received(count).unwrap();
        (sales, ROLLED_BACK.load(Ordering::Relaxed))
    }

    async fn sell(pool: &Pool<Embedded>) -> Transaction<Embedded> {
        let mut tx = pool.begin("BEGIN").await.unwrap();
        tx.run(SELL).await.unwrap();
        tx
    }

    #[tokio::test]
    async fn connection_is_rolled_back_or_closed_only_if_necessary() {
        let health = ServerHealth::new(Duration::from_secs(5), true);
        let pool = Pool::new(Embedded, 1, &health);

        sell(&pool).await.commit().await.unwrap();
        assert_eq!(state(&pool).await, (1, 0));
        sell(&pool).await.roll_back().await;
        assert_eq!(state(&pool).await, (1, 1));
        drop(sell(&pool).await);
        assert_eq!(state(&pool).await, (1, 2));

        let mut failed = sell(&pool).await;
        failed.run(FAIL).await.expect_err("no such table");
        drop(failed);
        assert_eq!(state(&pool).await, (1, 3));

        let mut alone = pool.acquire().await.unwrap();
        alone.run(FAIL).await.expect_err("no such table");
        drop(alone);
        assert_eq!(state(&pool).await, (1, 3));

        let mut abandoned = pool.acquire().await.unwrap();
        let _never_answered = abandoned.send();
        drop(abandoned);
        assert_eq!(state(&pool).await, (0, 3), "this is a new connection");
    }

    /// A later answer does not make it usable again.
    #[tokio::test]
    async fn connection_with_an_unknown_error_is_closed() {
        let health = ServerHealth::new(Duration::from_secs(5), true);
        let pool = Pool::new(Embedded, 1, &health);
        sell(&pool).await.commit().await.unwrap();

        let mut connection = pool.acquire().await.unwrap();
        connection.run(CORRUPT).await.expect_err("a corrupt schema");
        connection.run("SELECT 1").await.unwrap();
        drop(connection);

        assert_eq!(state(&pool).await.0, 0, "this is a new connection");
    }

    #[tokio::test]
    async fn connection_that_refuses_a_write_is_replaced() {
        let health = ServerHealth::new(Duration::from_secs(5), true);
        let pool = Pool::new(Embedded, 1, &health);
        sell(&pool).await.commit().await.unwrap();
        let refuse = async || {
            let mut connection = pool.acquire().await.unwrap();
            connection.run("PRAGMA query_only = ON").await.unwrap();
            connection.run(SELL).await.expect_err("it is read-only");
        };
        // A new connection is kept for a moment.
        let replaced = async {
            refuse().await;
            while state(&pool).await.0 > 0 {
                refuse().await;
            }
        };
        let replaced = timeout(Duration::from_secs(5), replaced).await;
        replaced.expect("the connection is replaced");
        sell(&pool).await.commit().await.unwrap();
    }
}
