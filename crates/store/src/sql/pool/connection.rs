//! A connection in use, and a transaction on it.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use deadpool::managed::Object;
use sqlx::Connection;
use stocklock_core::ports::Expiry;
use stocklock_core::trace;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout};
use tracing::Span;

use super::ServerHealth;
use super::opener::{Opener, Server, Timed, close};
use super::queue::Permit;
use super::warnings::{committed, with_warning};
use crate::Result;
use crate::sql::errors::{Verdict, before_commit, classify, in_commit};
use crate::sql::statement::{AnyRow, Statement, Value};

/// The longest pause before SQLite's write lock is asked for again: another process may hold it.
const WRITER_PAUSE: Duration = Duration::from_millis(5);

/// What is known of the last request on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Request {
    /// It was answered in full, or there was none.
    Answered,
    /// It was sent then, and not answered in full.
    Sent(Instant),
    /// The answer is half read, or the connection is broken.
    Lost,
}

/// A connection in use. Its drop decides what becomes of it: see [`super`].
#[derive(Debug)]
pub(crate) struct PooledConnection<S: Server> {
    /// `Some` until the drop.
    connection: Option<(Permit, Object<Opener<S>>)>,
    health: Arc<ServerHealth>,
    request: Request,
    /// The span of the request.
    span: Span,
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
            request: Request::Answered,
            span: Span::none(),
            is_spent: false,
            in_transaction: false,
        }
    }

    /// Whether a statement on it does not wait for a row that is locked.
    pub(crate) fn is_prompt(&self) -> bool {
        let connection = self.connection.as_ref();
        connection.is_some_and(|(permit, _)| permit.is_prompt())
    }

    /// The connection, to send a statement. Its answer goes to [`PooledConnection::received`].
    pub(crate) fn send(&mut self, statement: &str) -> &mut S::Connection {
        self.request = Request::Sent(Instant::now());
        self.span = trace::statement(statement);
        let connection = self.connection.as_mut();
        let (_, timed) = connection.expect("the connection is there until the drop");
        if let Some(end) = &timed.end {
            end.begin();
        }
        &mut timed.connection
    }

    /// The server's clock as it was last read: milliseconds since 1970.
    pub(crate) fn server_time(&self) -> i64 {
        let (_, timed) = self
            .connection
            .as_ref()
            .expect("the connection is there until the drop");
        timed.clock.at(Instant::now())
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
        self.span = Span::none();
        self.request = match &answer {
            Ok(_) | Err(sqlx::Error::Database(_)) => Request::Answered,
            Err(_) => Request::Lost,
        };
        if let Some((_, timed)) = &self.connection
            && let Some(end) = &timed.end
        {
            end.answered();
        }
        let verdict = answer.as_ref().err().map(classify);
        self.is_spent |= matches!(
            verdict,
            Some(Verdict::ConnectionLost | Verdict::Stale | Verdict::Unknown)
        );
        match verdict {
            Some(Verdict::ConnectionLost) => self.health.record_failure(),
            // The others that are open have prepared the same.
            Some(Verdict::Stale) => self.health.record_refusal(),
            Some(Verdict::Unavailable) if self.request == Request::Answered => {
                self.health.record_refusal();
            }
            _ => {}
        }
        answer
    }

    /// Closes the connection without waiting for the answer.
    pub(super) fn give_up(mut self) {
        self.request = Request::Lost;
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
        let answer = S::run(self.send(statement), statement).await;
        self.received(answer)
    }

    /// Executes a statement, and returns how many rows it changed.
    pub(crate) async fn execute(
        &mut self,
        statement: impl Into<Statement> + Send,
        values: &[Value<'_>],
    ) -> sqlx::Result<u64> {
        let statement = statement.into();
        let connection = self.send(statement.as_str());
        let answer = S::execute(connection, statement, values).await;
        self.received(answer)
    }

    /// Executes a statement, and returns its rows.
    pub(crate) async fn fetch<T: AnyRow>(
        &mut self,
        statement: impl Into<Statement> + Send,
        values: &[Value<'_>],
    ) -> sqlx::Result<Vec<T>> {
        let statement = statement.into();
        let connection = self.send(statement.as_str());
        let answer = S::fetch(connection, statement, values).await;
        self.received(answer)
    }

    /// Executes a statement that can neither find a duplicate nor violate a CHECK, and returns its rows.
    pub(crate) async fn rows<T: AnyRow>(
        &mut self,
        statement: impl Into<Statement> + Send,
        values: &[Value<'_>],
    ) -> Result<Vec<T>> {
        self.fetch(statement, values).await.map_err(before_commit)
    }

    /// Executes such a statement, and returns how many rows it changed.
    pub(crate) async fn change(
        &mut self,
        statement: impl Into<Statement> + Send,
        values: &[Value<'_>],
    ) -> Result<u64> {
        self.execute(statement, values).await.map_err(before_commit)
    }
}

impl<S: Server> Drop for PooledConnection<S> {
    fn drop(&mut self) {
        let Some((permit, connection)) = self.connection.take() else {
            return;
        };
        let age = Object::metrics(&connection).age();
        let is_outdated = self.health.is_outdated(age);
        let request = match self.request {
            Request::Answered if self.is_spent => Request::Lost,
            request => request,
        };
        let is_idle = request == Request::Answered && !self.in_transaction && !is_outdated;
        let has_others = || Object::pool(&connection).is_some_and(|pool| pool.status().size > 1);
        let is_wanted = is_idle && self.health.takes_back(has_others);
        if is_idle && !is_wanted {
            self.health.record_success();
            return;
        }
        // Without a runtime, the process is about to end.
        let Ok(runtime) = Handle::try_current() else {
            drop(Object::take(connection));
            return;
        };
        let health = Arc::clone(&self.health);
        match request {
            Request::Lost => drop(Object::take(connection)),
            Request::Sent(at) => {
                let timed = Object::take(connection);
                runtime.spawn(async move {
                    end_request::<S>(timed, at, health).await;
                    drop(permit);
                });
            }
            Request::Answered if is_wanted => {
                runtime.spawn(close(Object::take(connection)));
                permit.set_aside();
            }
            Request::Answered if is_outdated => {
                runtime.spawn(close(Object::take(connection)));
            }
            Request::Answered => {
                runtime.spawn(async move {
                    roll_back_and_return(connection, health).await;
                    drop(permit);
                });
            }
        }
    }
}

/// Returns when the database has ended the request, and the connection is closed.
async fn end_request<S: Server>(
    mut timed: Timed<S::Connection>,
    sent: Instant,
    health: Arc<ServerHealth>,
) {
    if let Some(end) = &timed.end {
        end.end_now();
    }
    // The answer to the ping comes after that to the request.
    let ended = health.by_limit(sent, timed.connection.ping()).await;
    tracing::debug!(?ended, "a connection is closed: its request was abandoned");
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
        let answer = with_warning(self.0.run("COMMIT")).await;
        self.0.in_transaction = answer.0.is_err();
        committed(answer).map_err(in_commit)
    }

    /// Ends the transaction without a commit. If that fails, the connection is closed, which makes
    /// the server roll back.
    pub(crate) async fn roll_back(mut self) {
        match self.0.run("ROLLBACK").await {
            Ok(()) => self.ended(),
            Err(error) => {
                tracing::debug!(%error, "a connection is closed: it could not be rolled back");
                self.0.request = Request::Lost;
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
mod tests;
