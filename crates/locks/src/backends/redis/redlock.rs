//! Locks on a majority of several independent Redis masters: the algorithm `RedLock`.
//!
//! *Guarantees:* exclusion while a majority of the masters keeps its data and all clocks run at about
//! the same rate. *Costs:* a request to each master at the same time, to acquire and to release; waiters
//! poll. *Fails when* a majority does not answer: no lock is granted. Two clients may hold a lock if
//! masters lose data in a way that they cannot detect, or if clocks jump. *Use when* the loss of one
//! server must not stop the locks, there is no ZooKeeper, and a version protects the data.
//!
//! **There is no fencing token**, because the masters do not agree on an order of the holders. A guard
//! therefore is a [`LockGuard<()>`](crate::LockGuard), without the methods `token` and `source`, and no
//! argument of a guarded write:
//!
//! ```compile_fail,E0599
//! fn token(guard: &stocklock_locks::LockGuard<()>) -> i64 {
//!     guard.token().get()
//! }
//! ```
//!
//! The guarded resource can only compare a version. A holder that has lost its lock may then still write
//! before the next holder does. The next holder's write is refused.
//!
//! # Rules
//!
//! - A request goes to all masters at the same time. Each has a [time limit](RedLockBuilder::node_limit).
//!   The client waits until the missing answers no longer matter. A slow master costs its vote, and a few
//!   milliseconds. If the votes of the others are split, the client waits for it until the limit; a renewal
//!   waits for at most a quarter of the lease.
//! - A lock is valid for its lease, less 1 % and 2 ms because clocks drift, counted from the moment at
//!   which the request was sent. If this time is over when the votes are counted, they are given back.
//! - A client without a majority gives its votes back at once. It asks again after a random time, so
//!   that clients that split the votes do not meet again.
//! - **A lost vote is never added again.** A lock is held by the masters that voted when it was acquired.
//!   If one of them forgets its vote, a second vote would hide that another client may have had the first
//!   one.
//! - **A restarted master does not vote** before every lock that it may have forgotten has expired. The
//!   script compares its uptime with the [maximum lease](RedLockBuilder::max_lease), which must be the same
//!   for all clients. No lease is longer. [`ping`](crate::LockManager::ping) fails until a majority votes.
//!
//! # Limits
//!
//! - A master does not detect `FLUSHALL`, an eviction or a deleted key. Set its `maxmemory-policy` to
//!   `noeviction`, and forbid the commands.
//! - The masters must have no replicas. A failover promotes a server that may not know a lock, and that has
//!   been up for long enough to vote.
//! - The uptime comes from the wall clock of the master. If it jumps forward after a restart, the master
//!   votes too early.
//! - The user of the client needs the right to call `INFO`.
//!
//! - There are no read-write locks and no permits. There are no periodic jobs
//!   ([`once_per`](crate::LockBuilder::once_per)): a restarted master may have forgotten a period, and
//!   could not vote until the end of that period.
//!
//! Keys, with the prefix `P`: `P{name}` is a vote; `P{name}:gone:nonce` stops late requests for two minutes,
//! and says there if the lock was taken away.

use std::sync::Arc;
use std::time::Duration;

use super::address::Address;
use super::connection::backend_error;
use crate::shared::error::BackendError;

mod admin;
mod backend;
mod contender;
mod node;
mod quorum;
mod scripts;

use node::Node;
use quorum::Quorum;

/// The smallest number of masters of which one may fail.
const MASTERS_MIN: usize = 3;

/// The smallest default of the time limit: a busy master may be this slow.
const NODE_LIMIT_MIN: Duration = Duration::from_millis(250);

/// Locks on a majority of several Redis masters. Clones share one connection to each.
#[derive(Debug, Clone)]
pub struct RedLockBackend(Arc<Quorum>);

/// The settings of a [`RedLockBackend`]. Created by [`RedLockBackend::builder`], or from your own
/// clients.
#[derive(Debug, Clone)]
#[must_use = "it does nothing before build"]
pub struct RedLockBuilder {
    /// Created from the URLs. Their `Debug` output does not contain the passwords.
    addresses: Result<Vec<Address>, BackendError>,
    prefix: String,
    max_lease: Duration,
    node_limit: Option<Duration>,
}

impl RedLockBackend {
    /// Creates a back end from the URLs of three or more independent masters, each like a URL of
    /// [`RedisBackend`](super::RedisBackend), but without Sentinel. Of three masters one may fail, and of
    /// five two. An even number tolerates no more failures than the number below it.
    ///
    /// # Errors
    /// Those of [`RedLockBuilder::build`].
    pub fn new<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<Self, BackendError> {
        Self::builder(urls).build()
    }

    /// Creates a builder for a back end with other settings. [`RedLockBuilder::from_clients`] takes your own
    /// clients instead of URLs.
    pub fn builder<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> RedLockBuilder {
        let addresses = urls.into_iter().map(|url| Address::parse(url.as_ref()));
        RedLockBuilder::new(addresses.collect::<Result<_, _>>().map_err(backend_error))
    }

    /// Returns a warning for each master that does not answer, may evict locks, or has replicas. Call it
    /// at startup.
    pub async fn warnings(&self) -> Vec<String> {
        self.0.warnings().await
    }
}

impl RedLockBuilder {
    /// Creates the settings of a back end from your own clients, one for each master. What
    /// [`RedisBuilder::from_client`](super::RedisBuilder::from_client) says about a client holds for each of
    /// them.
    pub fn from_clients(clients: impl IntoIterator<Item = redis::Client>) -> Self {
        Self::new(Ok(clients.into_iter().map(Address::Server).collect()))
    }

    fn new(addresses: Result<Vec<Address>, BackendError>) -> Self {
        Self {
            addresses,
            prefix: "redlock".to_owned(),
            max_lease: Duration::from_secs(10),
            node_limit: None,
        }
    }

    /// Sets the prefix of all keys. Default: `redlock`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets the maximum lease. It is rounded up to whole seconds. Default: 10 s.
    ///
    /// Longer leases are shortened to it. A restarted master does not vote for this long, so it must be
    /// the same for all clients of a lock.
    pub fn max_lease(mut self, lease: Duration) -> Self {
        self.max_lease = Duration::from_secs(lease.as_secs() + u64::from(lease.subsec_nanos() > 0));
        self
    }

    /// Sets how long one master may take to accept a connection, and to answer. Default: a twentieth of
    /// the maximum lease, but at least 250 ms.
    pub fn node_limit(mut self, limit: Duration) -> Self {
        self.node_limit = Some(limit);
        self
    }

    /// Builds the back end. It connects when it is first used.
    ///
    /// # Errors
    /// Returns an error if a URL is not a valid Redis URL or names sentinels, if there are fewer than
    /// three, if two name the same host and port, or if a time is zero.
    pub fn build(self) -> Result<RedLockBackend, BackendError> {
        let mut nodes: Vec<Arc<Node>> = Vec::new();
        let usual = (self.max_lease / 20).max(NODE_LIMIT_MIN);
        let limit = self.node_limit.unwrap_or(usual);
        for address in self.addresses? {
            let Address::Server(client) = &address else {
                let cause = "RedLock needs the URLs of masters without replicas, not of sentinels";
                return Err(BackendError::permanent(cause));
            };
            let host = client.get_connection_info().addr().to_string();
            if nodes.iter().any(|node| node.address == host) {
                let cause = format!("RedLock needs different masters, but two URLs name {host}");
                return Err(BackendError::permanent(cause));
            }
            let node = Node::new(address, host, &self.prefix, self.max_lease, limit);
            nodes.push(Arc::new(node));
        }
        if nodes.len() < MASTERS_MIN {
            let cause = format!(
                "RedLock needs the URLs of at least {MASTERS_MIN} masters, not {}",
                nodes.len()
            );
            return Err(BackendError::permanent(cause));
        }
        if self.max_lease.is_zero() || limit.is_zero() {
            let cause = "the maximum lease and the time limit of RedLock must not be zero";
            return Err(BackendError::permanent(cause));
        }
        let quorum = Quorum::new(nodes, self.max_lease, limit);
        Ok(RedLockBackend(Arc::new(quorum)))
    }
}
