//! A connection in use, and a transaction on it.

use std::ops::{Deref, DerefMut};

use deadpool::managed::Object;
use tokio::runtime::Handle;

use super::server::{Opener, Server};
use super::{StoreError, failed};
use crate::driver_error::in_commit;

/// A connection in use.
///
/// Dropped before it is said to be [`Lease::done`], it is rolled back, whatever state it is in,
/// before anybody else gets it.
#[derive(Debug)]
pub(crate) struct Lease<S: Server> {
    /// There until it is dropped.
    opened: Option<Object<Opener<S>>>,
    /// No transaction is open on it, and no answer outstanding.
    at_rest: bool,
}

impl<S: Server> Lease<S> {
    pub(super) fn of(opened: Object<Opener<S>>) -> Self {
        Self {
            opened: Some(opened),
            at_rest: true,
        }
    }

    /// Gives the connection back after one statement that was a transaction of its own.
    pub(crate) fn done<T>(mut self, outcome: sqlx::Result<T>) -> Result<T, StoreError> {
        self.at_rest = outcome.is_ok();
        outcome.map_err(failed)
    }
}

impl<S: Server> Deref for Lease<S> {
    type Target = S::Connection;

    fn deref(&self) -> &S::Connection {
        let opened = self.opened.as_ref();
        &opened.expect("it is there until the drop").connection
    }
}

impl<S: Server> DerefMut for Lease<S> {
    /// Whoever may write to it may begin something.
    fn deref_mut(&mut self) -> &mut S::Connection {
        self.at_rest = false;
        let opened = self.opened.as_mut();
        &mut opened.expect("it is there until the drop").connection
    }
}

impl<S: Server> Drop for Lease<S> {
    fn drop(&mut self) {
        let Some(mut opened) = self.opened.take() else {
            return;
        };
        if self.at_rest && !opened.is_old() {
            opened.pulse.beat();
            opened.rest();
            return;
        }
        let Ok(runtime) = Handle::try_current() else {
            drop(Object::take(opened)); // Nobody is left who could wait for the server.
            return;
        };
        if self.at_rest {
            runtime.spawn(Object::take(opened).close());
        } else {
            runtime.spawn(recover::<S>(opened));
        }
    }
}

/// Ends whatever was begun. What cannot be ended so is closed, which ends it as well.
async fn recover<S: Server>(mut opened: Object<Opener<S>>) {
    let pulse = opened.pulse.clone();
    let end = S::end_transaction(&mut opened.connection);
    if pulse.answers(end).await {
        opened.rest();
    } else {
        drop(Object::take(opened));
    }
}

/// A transaction; dropped before its end, it is rolled back.
#[derive(Debug)]
pub(crate) struct Transaction<S: Server>(Lease<S>);

impl<S: Server> Transaction<S> {
    /// One that was begun by other words than those of [`super::Pool::begin`].
    pub(crate) fn begun(lease: Lease<S>) -> Self {
        Self(lease)
    }

    /// # Errors
    /// [`StoreError::OutcomeUnknown`] unless the server is known to have undone it.
    pub(crate) async fn commit(mut self) -> Result<(), StoreError> {
        S::run(&mut self.0, "COMMIT").await.map_err(in_commit)?;
        self.0.at_rest = true;
        Ok(())
    }

    /// Ends a transaction that is not to be committed. Where even that fails, the connection is
    /// broken: it is closed, and the server rolls back.
    pub(crate) async fn roll_back(mut self) {
        match S::run(&mut self.0, "ROLLBACK").await {
            Ok(()) => self.0.at_rest = true,
            Err(error) => tracing::debug!(%error, "a transaction was not rolled back in order"),
        }
    }
}

impl<S: Server> Deref for Transaction<S> {
    type Target = S::Connection;

    fn deref(&self) -> &S::Connection {
        &self.0
    }
}

impl<S: Server> DerefMut for Transaction<S> {
    fn deref_mut(&mut self) -> &mut S::Connection {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use sqlx::{Connection, Executor, SqliteConnection};

    use super::super::{Pool, Pulse};
    use super::*;
    use crate::StoreOptions;

    static ROLLED_BACK: AtomicU32 = AtomicU32::new(0);

    /// Each connection is a database of its own, so that what is read tells which one it is.
    #[derive(Debug)]
    struct Embedded;

    impl Server for Embedded {
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
            connection.execute(statement).await.map(drop)
        }

        async fn end_transaction(connection: &mut SqliteConnection) -> sqlx::Result<()> {
            ROLLED_BACK.fetch_add(1, Ordering::Relaxed);
            match Self::run(connection, "ROLLBACK").await {
                Err(sqlx::Error::Database(_)) => Ok(()), // There is no transaction.
                ended => ended,
            }
        }
    }

    async fn sales(pool: &Pool<Embedded>) -> i64 {
        let mut connection = pool.acquire().await.unwrap();
        let count = sqlx::query_scalar("SELECT count(*) FROM sale")
            .fetch_one(&mut *connection)
            .await;
        connection.done(count).unwrap()
    }

    async fn sell(connection: &mut SqliteConnection) {
        let sale = connection.execute("INSERT INTO sale VALUES (1)").await;
        sale.unwrap();
    }

    #[tokio::test]
    async fn what_is_left_unfinished_is_rolled_back_and_nothing_else_is() {
        let options = StoreOptions {
            pool_size: 1,
            wait_limit: Duration::from_secs(5),
        };
        let pool = Pool::new(Embedded, &options, &Pulse::new(options.wait_limit));
        let mut kept = pool.begin(None).await.unwrap();
        sell(&mut kept).await;
        kept.commit().await.unwrap();
        let mut given_up = pool.begin(None).await.unwrap();
        sell(&mut given_up).await;
        given_up.roll_back().await;
        assert_eq!(sales(&pool).await, 1);
        assert_eq!(ROLLED_BACK.load(Ordering::Relaxed), 0, "all was in order");

        let mut dropped = pool.begin(None).await.unwrap();
        sell(&mut dropped).await;
        drop(dropped);
        assert_eq!(sales(&pool).await, 1);
        assert_eq!(ROLLED_BACK.load(Ordering::Relaxed), 1);

        let mut failed = pool.acquire().await.unwrap();
        let error = failed.execute("SELECT nothing FROM nowhere").await;
        failed.done(error).expect_err("there is no such table");
        assert_eq!(sales(&pool).await, 1);
        assert_eq!(ROLLED_BACK.load(Ordering::Relaxed), 2);
    }
}
