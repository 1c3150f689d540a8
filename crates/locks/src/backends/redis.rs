//! Locks on one Redis server, or on a Redis Cluster.
//!
//! *Guarantees:* exclusion as long as Redis keeps its data and its clock does not jump; leases on
//! the server's clock; fencing tokens that grow even if Redis forgot the last one. *Costs:* one
//! round trip to acquire, one to release, one per hundred renewals. *Fails when* Redis loses data
//! (failover, eviction, flush) or its clock jumps. Two clients may then hold the lock, and only the
//! token in the guarded write detects it. *Use when* Redis is available and the guarded resource
//! checks tokens.
//!
//! The URL leads to one server, directly, through a proxy, or with the help of Redis Sentinel, or it names
//! nodes of a Redis Cluster. If a server refuses writes, the request is repeated. If it is a replica, the
//! request is repeated over a new connection, at most one per second, so Sentinel, a DNS name or a proxy that
//! follows the master is enough. A failover loses the locks that the new master had not received.
//!
//! On a cluster, each lock is at the master of its slot, and each renewal is a request of its own, all sent
//! at the same time. Each lock has one master. A cluster spreads the locks, but makes no lock safer. While a
//! slot moves to another master, holders renew its locks, and release those with one holder. Acquisitions, and
//! requests about waiters, permits and numbers, wait until it has moved. No script runs while its node has
//! only some of its keys.
//!
//! Keys, with the prefix `P`:
//! - `P{name}`: the lock. The braces are part of the key.
//! - `P{name}:token`: the last token, kept for ten minutes.
//! - `P{name}:holders`, `P{name}:waiters`, `P{name}:claims`: the permits of a name, kept for ten minutes
//!   after their last use.
//! - `P{name}:gone:nonce`: a tombstone that stops late requests, kept for two minutes. It contains `revoked`
//!   if the lock was taken away, and is then kept until the lease would have ended, if that is later.
//! - `P{name}:period`: the last start of a periodic job, kept until the end of its period.
//! - `P{name}:number`, `:latch`, `:gate`: numbers. `P{name}:done:nonce`: an answer, kept for two minutes.
//! - `P:source`: the id under which tokens are issued. A cluster has one for all its masters.
//! - `P{name}:absent`, only in requests to a cluster: it never exists.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use crate::backend::{
    Backend, Claim, Contender, Left, Nudge, Numbers, Properties, Release, Renewed, Request, Sealed,
};
use crate::shared::error::{BackendError, LostReason};
use crate::shared::managers::Managers;
use crate::shared::nonce::Nonce;
use crate::shared::source::SourceId;

mod address;
mod admin;
mod builder;
mod cluster;
mod connection;
mod contender;
mod eviction;
mod fence;
mod hosts;
mod numbers;
mod permits;
pub mod redlock;
mod renewals;
mod scripts;
mod servers;
mod source;
mod wakeups;

use address::Address;
pub use builder::RedisBuilder;
use connection::backend_error;
use contender::RedisContender;
pub use fence::FENCED_COMMAND;
use scripts::{flag, loss, milliseconds, reason};
use servers::Servers;
use wakeups::WakeUps;

const TOMBSTONE_IS_NEEDED: i64 = -1;

/// How long the last token of a lock is remembered. During this time tokens grow even if the server's clock goes
/// back by less than this.
const TOKEN_MEMORY: Duration = Duration::from_mins(10);

/// Locks on one Redis server or a Redis Cluster. Clones share their connections: one for messages and one for
/// commands; on a cluster, one for commands to each master.
#[derive(Debug, Clone)]
pub struct RedisBackend(Arc<Redis>);

#[derive(Debug)]
struct Redis {
    servers: Servers,
    wake_ups: WakeUps,
    managers: Managers,
    source: SourceId,
    /// When the id of a cluster was last asked for.
    source_asked: Mutex<Option<Instant>>,
    /// Whether a refused message to waiters was reported.
    is_publish_refused: AtomicBool,
    settings: RedisBuilder,
}

impl RedisBackend {
    /// Creates a back end from a URL: `redis://[user:password@]host[:port][/database]`.
    ///
    /// `redis+sentinel://[user:password@]host[:port],…/master[/database]` asks these sentinels, which need no
    /// password, for the master with this name. They are asked for each connection, so a failover needs no
    /// restart.
    ///
    /// `redis+cluster://[user:password@]host[:port],…` leads to the cluster of these nodes, which name the
    /// others. All nodes need the same user and password.
    ///
    /// `rediss://…` connects with TLS and needs the feature `redis-tls`. The server's certificate must
    /// be issued by an authority that the system trusts, or that the file in the environment variable
    /// `SSL_CERT_FILE` contains. For other certificates use [your own client](RedisBuilder::from_client).
    ///
    /// # Errors
    /// Returns an error if the URL is not a valid Redis URL. No connection is opened yet.
    pub fn new(url: &str) -> Result<Self, BackendError> {
        Self::builder(url).build()
    }

    /// Creates a builder for a back end with other settings. [`RedisBuilder::from_client`] takes your own
    /// client instead of a URL.
    pub fn builder(url: &str) -> RedisBuilder {
        RedisBuilder::new(Address::parse(url).map_err(backend_error))
    }

    /// Returns a warning if this server may evict locks when its memory is full. On a cluster, the warning
    /// names each such master. Call it at startup.
    ///
    /// # Errors
    /// Returns an error if a server does not answer, and no other one causes a warning.
    pub async fn maxmemory_policy_warning(&self) -> Result<Option<String>, BackendError> {
        eviction::check(&self.0.servers).await
    }
}

impl Redis {
    /// Returns the key of a lock. Its release is published on a channel of the same name. The
    /// braces keep all keys of a lock in one hash slot.
    ///
    /// Nothing between them would keep nothing together. On a cluster, a name that begins with `}` after any
    /// number of `{` therefore has one more `{`.
    fn lock_key(&self, name: &str) -> String {
        let is_empty = name.trim_start_matches('{').starts_with('}');
        let more = if is_empty && self.servers.is_cluster() {
            "{"
        } else {
            ""
        };
        format!("{}{{{more}{name}}}", self.settings.prefix)
    }

    fn tombstone_key(&self, name: &str, nonce: Nonce) -> String {
        format!("{}:gone:{nonce}", self.lock_key(name))
    }

    /// The string at a key. `MGET` reads a key of a foreign type as a missing one.
    async fn text(&self, key: String) -> Result<Option<String>, BackendError> {
        let get = redis::cmd("MGET").arg(&key).to_owned();
        let values: Vec<Option<String>> = self.servers.run(&key, &get).await?;
        Ok(values.into_iter().next().flatten())
    }

    /// Sends a request with the source's id that the client knows. The answer has the id if it is another.
    async fn acquire(
        self: &Arc<Self>,
        request: &Request,
        source: &str,
    ) -> Result<Vec<redis::Value>, BackendError> {
        if !self.servers.is_cluster() {
            return self.acquire_from(request, source).await;
        }
        let (answer, source) = tokio::join!(self.acquire_from(request, ""), self.shared_source());
        let mut answer = answer?;
        if let [redis::Value::Int(1), _] = answer.as_slice() {
            // This nonce has the lock, even if the master of the id refuses.
            let source = source.map_err(BackendError::after_execution)?;
            answer.push(redis::Value::SimpleString(source.to_string()));
        }
        Ok(answer)
    }

    /// An empty `source` is not that of the server.
    async fn acquire_from(
        &self,
        request: &Request,
        source: &str,
    ) -> Result<Vec<redis::Value>, BackendError> {
        if let Claim::Permits { take, of } = request.claim {
            return self.acquire_permits(request, take, of, source).await;
        }
        let lock = self.lock_key(&request.name);
        let mut keys = vec![
            lock.clone(),
            format!("{lock}:token"),
            self.tombstone_key(&request.name, request.nonce),
        ];
        keys.extend(self.source_key());
        let mut arguments = vec![
            request.nonce.to_string(),
            milliseconds(request.lease),
            milliseconds(TOKEN_MEMORY),
            source.to_owned(),
        ];
        arguments.extend(self.source.is_fixed.then(|| "fixed".to_owned()));
        let script = self.servers.script(&scripts::ACQUIRE, &keys, &arguments);
        Ok(match script.await? {
            redis::Value::Array(answer) => answer,
            token => vec![redis::Value::Int(1), token],
        })
    }

    /// Returns what [`loss`] reads, and why no waiter could be woken.
    async fn release_lock(
        &self,
        Request { name, nonce, .. }: &Request,
        unclear: bool,
    ) -> Result<(i64, String), BackendError> {
        let mut arguments = vec![nonce.to_string()];
        arguments.extend(unclear.then(|| "unclear".to_owned()));
        let keys = [self.lock_key(name), self.tombstone_key(name, *nonce)];
        let release = async |keys| {
            let script = self.servers.script(&scripts::RELEASE, keys, &arguments);
            script.await
        };
        let mut answer = redis::Value::Int(TOMBSTONE_IS_NEEDED);
        if self.servers.is_cluster() && !unclear {
            answer = release(&keys[..1]).await?;
        }
        if answer == redis::Value::Int(TOMBSTONE_IS_NEEDED) {
            answer = release(&keys).await?;
        }
        Ok(match answer {
            redis::Value::Int(held) => (held, String::new()),
            refused => {
                let refused = redis::from_redis_value(refused);
                (1, refused.map_err(|e| backend_error(e.into()))?)
            }
        })
    }
}

impl Sealed for RedisBackend {}

#[async_trait]
impl Backend for RedisBackend {
    fn properties(&self) -> Properties {
        Properties {
            name: "redis",
            response_limit: self.0.settings.response_limit + self.0.settings.connect_limit,
            session: None,
            max_lease: None,
            lookahead: 0,
        }
    }

    fn numbers(&self) -> Option<&dyn Numbers> {
        Some(self)
    }

    fn contender(&self, request: Request) -> Box<dyn Contender> {
        Box::new(RedisContender {
            redis: Arc::clone(&self.0),
            request,
            subscription: None,
            left: Left::Nothing,
        })
    }

    async fn renew(&self, renewals: &[Request]) -> Result<Vec<Renewed>, BackendError> {
        let all = self.0.renew_each(renewals).await;
        let answers = all.iter();
        if let Some(error) = answers.clone().find_map(|answer| answer.as_ref().err()) {
            if answers.clone().all(Result::is_err) {
                return Err(error.clone());
            }
            tracing::debug!(%error, "some of the locks were not renewed");
        }
        let renewed = |(answer, renewal): (&Result<i64, _>, &Request)| match answer {
            Ok(held) => loss(*held).map_or(Renewed::Held(renewal.lease), Renewed::Gone),
            Err(_) => Renewed::Unknown,
        };
        Ok(answers.zip(renewals).map(renewed).collect())
    }

    async fn release(&self, request: &Request, unclear: bool) -> Result<Release, BackendError> {
        let (released, refused) = match request.claim {
            Claim::Exclusive => self.0.release_lock(request, unclear).await?,
            Claim::Permits { .. } => self.0.release_permits(request, unclear).await?,
        };
        if !refused.is_empty() && !self.0.is_publish_refused.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                error = refused,
                "Redis refuses to wake the waiters of locks; they poll instead",
            );
        }
        Ok(loss(released).map_or(Release::Released, Release::NotHeld))
    }

    async fn verify(&self, name: &str, nonce: Nonce) -> Result<Option<LostReason>, BackendError> {
        let [holders, ..] = self.0.permit_keys(name);
        let (keys, arguments) = ([holders], [nonce.to_string()]);
        let (has_permits, value) = tokio::join!(
            self.0.servers.script(&permits::VERIFY, &keys, &arguments),
            self.0.text(self.0.lock_key(name)),
        );
        let is_locked = value?.is_some_and(|value| value.starts_with(&arguments[0]));
        if is_locked || has_permits? {
            return Ok(None);
        }
        let tombstone = self.0.text(self.0.tombstone_key(name, nonce)).await?;
        Ok(Some(reason(tombstone.as_deref())))
    }

    fn attach(&self, nudge: Nudge) {
        self.0.managers.attach(&nudge, || self.0.servers.open());
    }

    async fn detach(&self, nudge: &Nudge) {
        self.0.managers.detach(nudge, || {
            self.0.wake_ups.close();
            self.0.servers.close();
        });
    }
}
