//! The settings of a back end on Redis.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::address::Address;
use super::cluster::{Cluster, slot};
use super::connection::Connection;
use super::servers::Servers;
use super::wakeups::WakeUps;
use super::{Redis, RedisBackend};
use crate::shared::error::BackendError;
use crate::shared::managers::Managers;
use crate::shared::setters::setters;
use crate::shared::source::SourceId;

/// The settings of a [`RedisBackend`]. Created by [`RedisBackend::builder`], or from your own
/// client.
#[derive(Debug, Clone)]
#[must_use = "it does nothing before build"]
pub struct RedisBuilder {
    /// Created from the URL. Its `Debug` output does not contain the password.
    address: Result<Address, BackendError>,
    pub(super) prefix: String,
    source: Option<String>,
    pub(super) connect_limit: Duration,
    pub(super) response_limit: Duration,
    pub(super) fallback: Duration,
    /// How often waiters ask. `None`: they are woken.
    pub(super) polling: Option<Duration>,
}

impl RedisBuilder {
    /// Creates the settings of a back end that connects as your own client does: to its server, with its
    /// user, password, database, protocol, and certificates for TLS.
    ///
    /// The back end opens its own connections, one for commands and one for messages to waiters, within the
    /// [limits](Self::connect_limit) that are set here.
    ///
    /// The client leads to one address. If another server becomes the master, that address must lead to
    /// it: through DNS or a proxy. For Redis Sentinel and Redis Cluster, use [a URL](RedisBackend::new).
    ///
    /// The client is that of the crate `redis` 1, which is not exported again: depend on it yourself, with
    /// the features that the client needs, such as `tokio-rustls-comp`. A program that connects with TLS
    /// through `rustls` needs a cryptography provider; the feature `redis-tls` of this crate brings one.
    pub fn from_client(client: redis::Client) -> Self {
        Self::new(Ok(Address::Server(client)))
    }

    pub(super) fn new(address: Result<Address, BackendError>) -> Self {
        Self {
            address,
            prefix: "lock".to_owned(),
            source: None,
            connect_limit: Duration::from_secs(1),
            response_limit: Duration::from_secs(1),
            fallback: Duration::from_secs(1),
            polling: None,
        }
    }

    /// Sets the prefix of all keys. Default: `lock`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets the [source](crate::LockGuard::source) of all tokens. It must be the same for all
    /// clients. Default: a random id, which the server stores.
    ///
    /// If the server loses its data, the next client stores an id again: the old one if it has seen
    /// it. Otherwise tokens from before the loss cannot be compared with those after it, and a write
    /// of an old holder passes. A source that you set does not change.
    pub fn source(mut self, source: impl Into<String>) -> Self {
        self.source = Some(source.into());
        self
    }

    setters! {
        /// Sets how long opening a connection may take. Default: 1 s.
        connect_limit: Duration;

        /// Sets how long an answer may take. Default: 1 s.
        response_limit: Duration;

        /// Sets after how long a waiter asks again if its wake-up was lost. Default: 1 s. In the queue of
        /// permits, a waiter that has not asked for three times this long counts as dead.
        fallback: Duration;
    }

    /// Lets waiters ask again after about this time, instead of being woken over pub/sub: waiters for
    /// locks, permits, numbers, latches and barriers. Default: they are woken; minimum: 1 ms; maximum: 1 s.
    ///
    /// Each waiting process then sends a request per interval and lock, and a free lock is acquired half
    /// an interval late on average. Use it if the user of the client has no right to channels, or to
    /// compare.
    pub fn polling(mut self, interval: Duration) -> Self {
        let (least, most) = (Duration::from_millis(1), Duration::from_secs(1));
        self.polling = Some(interval.clamp(least, most));
        self
    }

    /// Builds the back end. It connects when it is first used.
    ///
    /// # Errors
    /// Returns an error if the URL is not a valid Redis URL, or if the prefix does not suit a cluster.
    pub fn build(self) -> Result<RedisBackend, BackendError> {
        let address = self.address.clone()?;
        let (connect, response) = (self.connect_limit, self.response_limit);
        let servers = match &address {
            Address::Cluster(nodes) => {
                let lock = format!("{}{{a}}", self.prefix);
                if slot(&lock) != slot(&format!("{lock}:token")) {
                    let cause = "on Redis Cluster the prefix of the keys must not contain `{}`";
                    return Err(BackendError::permanent(cause));
                }
                Servers::Cluster(Cluster::new(nodes.clone(), connect, response))
            }
            address => Servers::One(Connection::new(address.clone(), connect, response)),
        };
        let limit = connect.max(response);
        Ok(RedisBackend(Arc::new(Redis {
            servers,
            wake_ups: WakeUps::new(address, limit),
            managers: Managers::default(),
            source: SourceId::new("redis", self.source.clone()),
            source_asked: Mutex::default(),
            is_publish_refused: AtomicBool::new(false),
            settings: self,
        })))
    }
}
