//! A connection in use, and a transaction on it.

use std::ops::{Deref, DerefMut};

use deadpool::managed::Object;
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::server::{Opener, Server};
use crate::StoreError;
use crate::sql::dialect::{AnyRow, Dialect, Statement, Value};
use crate::sql::errors::in_commit;

/// A connection in use. Its drop decides what becomes of it: see [`super`].
#[derive(Debug)]
pub(crate) struct PooledConnection<S: Server> {
    /// `Some` until the drop.
    opened: Option<Object<Opener<S>>>,
    /// A request was sent and not answered in full.
    unanswered: bool,
    in_transaction: bool,
}

impl<S: Server> PooledConnection<S> {
    pub(super) fn new(opened: Object<Opener<S>>) -> Self {
        Self {
            opened: Some(opened),
            unanswered: false,
            in_transaction: false,
        }
    }

    /// The connection, to send a request. Its answer goes to [`PooledConnection::received`].
    pub(crate) fn send(&mut self) -> &mut S::Connection {
        self.unanswered = true;
        let opened = self.opened.as_mut();
        &mut opened
            .expect("the connection is there until the drop")
            .connection
    }

    /// Records whether the request was answered. After any error but the database's own, the
    /// connection is broken, or an answer on it is half read.
    pub(crate) fn received<T>(&mut self, answer: sqlx::Result<T>) -> sqlx::Result<T> {
        self.unanswered = !matches!(answer, Ok(_) | Err(sqlx::Error::Database(_)));
        answer
    }

    /// Runs a statement that has neither parameters nor rows.
    pub(super) async fn run(&mut self, statement: &'static str) -> sqlx::Result<()> {
        let answer = S::run(self.send(), statement).await;
        self.received(answer)
    }
}

impl<D: Dialect> PooledConnection<D> {
    /// Executes a statement, and returns the number of rows that it changed.
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
        let Some(mut opened) = self.opened.take() else {
            return;
        };
        if self.unanswered {
            drop(Object::take(opened));
            return;
        }
        let is_old = opened.is_old();
        if !self.in_transaction && !is_old {
            opened.rest();
            return;
        }
        // Without a runtime, the process is about to end.
        let Ok(runtime) = Handle::try_current() else {
            drop(Object::take(opened));
            return;
        };
        if is_old {
            runtime.spawn(Object::take(opened).close());
        } else {
            runtime.spawn(roll_back_and_return(opened));
        }
    }
}

/// Rolls back, and returns the connection to the pool. Closes it if that fails, which ends the
/// transaction too.
async fn roll_back_and_return<S: Server>(mut opened: Object<Opener<S>>) {
    let limit = opened.health.answer_limit();
    let problem = match timeout(limit, S::run(&mut opened.connection, "ROLLBACK")).await {
        Ok(Ok(())) => {
            opened.rest();
            return;
        }
        Ok(Err(error @ sqlx::Error::Database(_))) => error.to_string(),
        Ok(Err(error)) => {
            opened.health.record_failure();
            error.to_string()
        }
        Err(elapsed) => {
            opened.health.record_failure();
            elapsed.to_string()
        }
    };
    tracing::debug!(
        problem,
        "a connection is closed: it could not be rolled back"
    );
    drop(Object::take(opened));
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

    /// The last request ended the transaction.
    pub(crate) fn committed(mut self) {
        self.0.in_transaction = false;
    }

    /// # Errors
    /// [`StoreError::OutcomeUnknown`] unless the server is known to have rolled back.
    pub(crate) async fn commit(mut self) -> Result<(), StoreError> {
        self.0.run("COMMIT").await.map_err(in_commit)?;
        self.committed();
        Ok(())
    }

    /// Ends the transaction without a commit. If that fails, the connection is closed, which makes
    /// the server roll back.
    pub(crate) async fn roll_back(mut self) {
        match self.0.run("ROLLBACK").await {
            Ok(()) => self.committed(),
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
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use sqlx::{Connection, Executor, SqliteConnection};

    use super::super::{Pool, ServerHealth};
    use super::*;

    /// Each connection is a database of its own, so its content tells which one was used.
    #[derive(Debug, Default)]
    struct Embedded {
        opened: Arc<AtomicU32>,
    }

    static ROLLED_BACK: AtomicU32 = AtomicU32::new(0);

    impl Server for Embedded {
        const EMBEDDED: bool = true;

        type Connection = SqliteConnection;

        async fn open(&self) -> sqlx::Result<SqliteConnection> {
            self.opened.fetch_add(1, Ordering::Relaxed);
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
    }

    async fn sales(pool: &Pool<Embedded>) -> i64 {
        let mut connection = pool.acquire().await.unwrap();
        let count = sqlx::query_scalar("SELECT count(*) FROM sale")
            .fetch_one(connection.send())
            .await;
        connection.received(count).unwrap()
    }

    const SELL: &str = "INSERT INTO sale VALUES (1)";

    #[tokio::test]
    async fn only_an_open_transaction_is_rolled_back() {
        let server = Embedded::default();
        let opened = Arc::clone(&server.opened);
        let health = ServerHealth::new(Duration::from_secs(5), true);
        let pool = Pool::new(server, 1, &health);
        let rolled_back = || ROLLED_BACK.load(Ordering::Relaxed);

        let mut kept = pool.begin("BEGIN").await.unwrap();
        kept.run(SELL).await.unwrap();
        kept.commit().await.unwrap();
        assert_eq!((sales(&pool).await, rolled_back()), (1, 0));

        let mut given_up = pool.begin("BEGIN").await.unwrap();
        given_up.run(SELL).await.unwrap();
        given_up.roll_back().await;
        assert_eq!((sales(&pool).await, rolled_back()), (1, 1));

        let mut dropped = pool.begin("BEGIN").await.unwrap();
        dropped.run(SELL).await.unwrap();
        drop(dropped);
        assert_eq!((sales(&pool).await, rolled_back()), (1, 2));

        let mut failed = pool.begin("BEGIN").await.unwrap();
        failed.run(SELL).await.unwrap();
        let error = failed.run("SELECT nothing FROM nowhere").await;
        error.expect_err("there is no such table");
        drop(failed);
        assert_eq!((sales(&pool).await, rolled_back()), (1, 3));

        let mut alone = pool.acquire().await.unwrap();
        let error = alone.run("SELECT nothing FROM nowhere").await;
        error.expect_err("there is no such table");
        drop(alone);
        assert_eq!((sales(&pool).await, rolled_back()), (1, 3));
        assert_eq!(
            opened.load(Ordering::Relaxed),
            1,
            "one connection did it all"
        );
    }

    #[tokio::test]
    async fn connection_with_unanswered_request_is_closed() {
        let health = ServerHealth::new(Duration::from_secs(5), true);
        let pool = Pool::new(Embedded::default(), 1, &health);
        let mut connection = pool.acquire().await.unwrap();
        connection.run(SELL).await.unwrap();
        drop(connection);
        assert_eq!(sales(&pool).await, 1);

        let mut abandoned = pool.acquire().await.unwrap();
        let _never_answered = abandoned.send();
        drop(abandoned);
        assert_eq!(sales(&pool).await, 0, "this is a new connection");
    }
}
