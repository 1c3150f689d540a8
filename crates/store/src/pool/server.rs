//! How a server's connections are opened, waited for, and looked over before they are used again.

use std::fmt;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;
use stocklock_core::ports;

use deadpool::managed::{Manager, Metrics, Object, PoolError, QueueMode, RecycleError};
use sqlx::Connection;
use tokio::time::{Instant, timeout};

use super::{Lease, Pulse, Transaction, failed};
use crate::{StoreError, StoreOptions};

/// How long a connection may take to answer that it lives. Far more than a round trip, and far less
/// than a request waits for a connection: behind one that is dead there may be more.
const ALIVE_WITHIN: Duration = Duration::from_millis(250);

/// No connection goes back that is older, so that what a server keeps for each does not grow for ever,
/// and a server that was moved is found at its new address.
const LIFETIME: Duration = Duration::from_mins(30);

/// How long a connection may take to say goodbye.
const FAREWELL: Duration = Duration::from_secs(1);

/// The first pause before a server that refuses connections is tried again; each is twice the last.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// A database server: how to reach it, and to speak to it.
pub(crate) trait Server: fmt::Debug + Send + Sync + 'static {
    /// One of sqlx's.
    type Connection: Connection + fmt::Debug + Send + Sync;

    /// Opens a connection and sets up its session.
    fn open(&self) -> impl Future<Output = sqlx::Result<Self::Connection>> + Send;

    /// Runs a statement that has neither parameters nor an answer.
    fn run(
        connection: &mut Self::Connection,
        statement: &'static str,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Ends whatever transaction is open, quietly where there is none.
    fn end_transaction(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;
}

/// A bounded number of connections, opened when they are first needed.
#[derive(Debug)]
pub(crate) struct Pool<S: Server> {
    connections: deadpool::managed::Pool<Opener<S>>,
    pulse: Arc<Pulse>,
    wait_limit: Duration,
}

/// What opens connections for a pool, and looks them over.
#[derive(Debug)]
pub(super) struct Opener<S> {
    server: S,
    pub(super) pulse: Arc<Pulse>,
}

/// A connection, and since when it is there.
#[derive(Debug)]
pub(super) struct Opened<C> {
    pub(super) connection: C,
    pub(super) pulse: Arc<Pulse>,
    since: Instant,
    idle_since: Instant,
}

impl<C: Connection> Opened<C> {
    pub(super) fn is_old(&self) -> bool {
        self.since.elapsed() > LIFETIME
    }

    /// From now on nobody uses it, until it is asked for.
    pub(super) fn rest(&mut self) {
        self.idle_since = Instant::now();
    }

    /// Takes leave of the server, if it listens.
    pub(super) async fn close(self) {
        match timeout(FAREWELL, self.connection.close()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "a connection was not closed in order"),
            Err(_elapsed) => tracing::debug!("a connection was closed without an answer"),
        }
    }
}

impl<S: Server> Manager for Opener<S> {
    type Type = Opened<S::Connection>;
    type Error = sqlx::Error;

    async fn create(&self) -> sqlx::Result<Self::Type> {
        let connection = self.server.open().await?;
        self.pulse.beat();
        Ok(Opened {
            connection,
            pulse: Arc::clone(&self.pulse),
            since: Instant::now(),
            idle_since: Instant::now(),
        })
    }

    /// Where there is no reason to ask, it would cost each request a round trip.
    async fn recycle(
        &self,
        opened: &mut Self::Type,
        _: &Metrics,
    ) -> Result<(), RecycleError<sqlx::Error>> {
        if self.pulse.trusts(opened.idle_since.elapsed()) {
            return Ok(());
        }
        match timeout(ALIVE_WITHIN, opened.connection.ping()).await {
            Ok(answer) => Ok(answer?),
            Err(_elapsed) => Err(RecycleError::message("it does not answer")),
        }
    }
}

impl<S: Server> Pool<S> {
    pub(crate) fn new(server: S, options: &StoreOptions, pulse: &Arc<Pulse>) -> Self {
        let opener = Opener {
            server,
            pulse: Arc::clone(pulse),
        };
        let connections = deadpool::managed::Pool::builder(opener)
            .max_size(options.pool_size as usize)
            // The one that was used last is the one that is most probably alive.
            .queue_mode(QueueMode::Lifo)
            .build()
            .expect("it is given no time-outs, which would need a runtime");
        Self {
            connections,
            pulse: Arc::clone(pulse),
            wait_limit: options.wait_limit,
        }
    }

    /// A connection, or why there is none within the wait limit: all busy, or the database away.
    pub(crate) async fn acquire(&self) -> Result<Lease<S>, StoreError> {
        let mut refusal = None;
        match timeout(self.wait_limit, self.once_let_in(&mut refusal)).await {
            Ok(Ok(opened)) => Ok(Lease::of(opened)),
            // Whatever it is, the server did not let us in.
            Ok(Err(error)) => Err(StoreError::Unavailable(
                ports::Server::Database,
                Box::new(error),
            )),
            Err(_elapsed) if self.is_busy() && self.pulse.is_recent() => Err(StoreError::Exhausted),
            Err(_elapsed) => {
                let error = refusal.unwrap_or(sqlx::Error::PoolTimedOut);
                Err(StoreError::Unavailable(
                    ports::Server::Database,
                    Box::new(error),
                ))
            }
        }
    }

    /// Asks a server again that is starting, or for a moment is not there; notes what it said.
    async fn once_let_in(
        &self,
        refusal: &mut Option<sqlx::Error>,
    ) -> Result<Object<Opener<S>>, PoolError<sqlx::Error>> {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.connections.get().await {
                Err(PoolError::Backend(error)) if may_pass(&error) => *refusal = Some(error),
                answer => return answer,
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(self.wait_limit / 5);
        }
    }

    /// Begins a transaction, by `statement` or plainly.
    pub(crate) async fn begin(
        &self,
        statement: Option<&'static str>,
    ) -> Result<Transaction<S>, StoreError> {
        let mut lease = self.acquire().await?;
        S::run(&mut lease, statement.unwrap_or("BEGIN"))
            .await
            .map_err(failed)?;
        Ok(Transaction::begun(lease))
    }

    /// Asks the database whether it is there.
    pub(crate) async fn ping(&self) -> Result<(), StoreError> {
        let mut lease = self.acquire().await?;
        let answer = lease.ping().await;
        lease.done(answer)
    }

    /// Lets nobody in any more, and closes what is idle; what is in use is closed when it comes
    /// back.
    pub(crate) async fn close(&self) {
        let idle = self.connections.retain(|_, _| false).removed;
        self.connections.close();
        futures_util::future::join_all(idle.into_iter().map(Opened::close)).await;
    }

    /// Whether every connection that may be open is, and in use.
    fn is_busy(&self) -> bool {
        let status = self.connections.status();
        status.size >= status.max_size && status.available == 0
    }
}

/// Whether a server that refuses so may let us in a moment later.
fn may_pass(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(error) => matches!(
            error.kind(),
            ErrorKind::ConnectionRefused
                | ErrorKind::ConnectionAborted
                | ErrorKind::ConnectionReset
        ),
        sqlx::Error::Database(error) => error.is_transient_in_connect_phase(),
        _ => false,
    }
}
