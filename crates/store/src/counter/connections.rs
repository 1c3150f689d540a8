//! The connections of the counters: the driver's own, one that all calls share, and a pool of exclusive
//! ones for `WATCH`.
//!
//! Guarantees: connections are opened when they are needed. After an error that another server or a new
//! connection may not have, all are replaced, and Sentinel is asked again. A cluster's connection replaces
//! its parts itself.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::{Manager, Pool, PoolError, Runtime, Timeouts};
use parking_lot::Mutex;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, FromRedisValue, Pipeline, RedisError,
    RedisFuture, RedisResult, ScriptInvocation, ServerErrorKind, Value,
};
use tokio::sync::OnceCell;

use super::address::Address;
use stocklock_core::ports::CounterError;

/// What [`Connections`] opens when it is needed.
pub(super) type Opened = Arc<OnceCell<Link>>;

/// All connections.
#[derive(Debug)]
pub(super) struct Connections {
    address: Address,
    pool_size: u32,
    /// How long to wait for an exclusive connection that other calls use.
    wait: Duration,
    opened: Mutex<Opened>,
}

/// The connections to one server, or to a cluster.
#[derive(Debug)]
pub(super) struct Link {
    shared: Shared,
    /// `None` on a cluster.
    exclusive: Option<Pool>,
}

/// A connection that many calls use at the same time.
#[derive(Clone)]
enum Shared {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Server(_) => "Server",
            Self::Cluster(_) => "Cluster",
        })
    }
}

impl ConnectionLike for Shared {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::Server(connection) => connection.req_packed_command(command),
            Self::Cluster(connection) => connection.req_packed_command(command),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        commands: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::Server(connection) => connection.req_packed_commands(commands, offset, count),
            Self::Cluster(connection) => connection.req_packed_commands(commands, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::Server(connection) => connection.get_db(),
            Self::Cluster(connection) => connection.get_db(),
        }
    }
}

impl Connections {
    pub(super) fn new(address: Address, pool_size: u32, wait: Duration) -> Self {
        Self {
            address,
            pool_size,
            wait,
            opened: Mutex::default(),
        }
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.address, Address::Cluster(_))
    }

    /// The connections of the calls that begin now.
    pub(super) fn current(&self) -> Opened {
        Arc::clone(&self.opened.lock())
    }

    /// Opens others for the calls that follow, unless that has happened. Not to a cluster.
    pub(super) fn forget(&self, used: &Opened) {
        let mut opened = self.opened.lock();
        if !self.is_cluster() && Arc::ptr_eq(&opened, used) {
            *opened = Opened::default();
        }
    }

    pub(super) async fn query<T: FromRedisValue>(
        &self,
        commands: &Pipeline,
    ) -> Result<T, CounterError> {
        let (opened, mut shared) = self.shared().await?;
        let answer = commands.query_async(&mut shared).await;
        answer.map_err(|error| self.failed(&opened, error))
    }

    pub(super) async fn invoke<T: FromRedisValue>(
        &self,
        script: &ScriptInvocation<'_>,
    ) -> Result<T, CounterError> {
        let (opened, mut shared) = self.shared().await?;
        let answer = script.invoke_async(&mut shared).await;
        answer.map_err(|error| self.failed(&opened, error))
    }

    /// A connection that no other call uses until it is dropped. On a cluster there is none.
    pub(super) async fn exclusive(&self) -> Result<Exclusive<'_>, CounterError> {
        let (opened, _) = self.shared().await?;
        let link = opened.get().expect("it is open");
        let pool = link.exclusive.as_ref().ok_or_else(|| {
            CounterError::Unavailable("a cluster has no exclusive connections".into())
        })?;
        let timeouts = Timeouts {
            wait: Some(self.wait),
            ..Timeouts::default()
        };
        match pool.timeout_get(&timeouts).await {
            Ok(connection) => Ok(Exclusive {
                connections: self,
                opened: Arc::clone(&opened),
                connection,
            }),
            Err(PoolError::Timeout(_)) => Err(CounterError::Busy),
            Err(PoolError::Backend(error)) => Err(self.failed(&opened, error)),
            Err(error) => Err(CounterError::Unavailable(error.into())),
        }
    }

    async fn shared(&self) -> Result<(Opened, Shared), CounterError> {
        let opened = self.current();
        let link = opened.get_or_try_init(|| self.open()).await;
        let shared = link.map_err(unavailable)?.shared.clone();
        Ok((opened, shared))
    }

    async fn open(&self) -> RedisResult<Link> {
        // The caller bounds each call. The driver's default would end an answer after 500 ms.
        let unbounded = AsyncConnectionConfig::new().set_response_timeout(None);
        let server = match &self.address {
            Address::Server(client) => client.clone(),
            Address::Sentinel(sentinels) => sentinels.client()?.async_get_client().await?,
            Address::Cluster(nodes) => {
                let cluster = ClusterClient::new(nodes.clone())?;
                return Ok(Link {
                    shared: Shared::Cluster(cluster.get_async_connection().await?),
                    exclusive: None,
                });
            }
        };
        let connecting = server.get_multiplexed_async_connection_with_config(&unbounded);
        let shared = Shared::Server(connecting.await?);
        let exclusive = Some(self.pool(&server, unbounded)?);
        Ok(Link { shared, exclusive })
    }

    fn pool(&self, server: &Client, config: AsyncConnectionConfig) -> RedisResult<Pool> {
        let info = server.get_connection_info().clone();
        let manager = Manager::new_with_config(info, config)?;
        let pool = Pool::builder(manager).max_size(self.pool_size as usize);
        let built = pool.runtime(Runtime::Tokio1).build();
        Ok(built.expect("a pool with a runtime"))
    }

    /// Forgets the connections if a new one may work.
    fn failed(&self, opened: &Opened, error: RedisError) -> CounterError {
        use ServerErrorKind::{BusyLoading, MasterDown, ReadOnly};
        let is_other_server = matches!(
            error.kind(),
            ErrorKind::Server(BusyLoading | MasterDown | ReadOnly)
        );
        if error.is_unrecoverable_error() || is_other_server {
            self.forget(opened);
        }
        unavailable(error)
    }
}

/// A connection of the pool.
pub(super) struct Exclusive<'a> {
    connections: &'a Connections,
    opened: Opened,
    connection: deadpool_redis::Connection,
}

impl Exclusive<'_> {
    pub(super) async fn query<T: FromRedisValue>(
        &mut self,
        commands: &Pipeline,
    ) -> Result<T, CounterError> {
        let answer = commands.query_async(&mut self.connection).await;
        answer.map_err(|error| self.connections.failed(&self.opened, error))
    }
}

fn unavailable(error: RedisError) -> CounterError {
    CounterError::Unavailable(error.into())
}
