//! Locks on one Redis server.
//!
//! *Guarantees:* exclusion as long as Redis keeps its data and its clock does not jump; leases on
//! the server's clock; fencing tokens that grow even if Redis forgot the last one. *Costs:* one
//! round trip to acquire, one to release, one per hundred renewals. *Fails when* Redis loses data
//! (failover, eviction, flush) or its clock jumps. Two clients may then hold the lock, and only the
//! token in the guarded write detects it. *Use when* Redis is available and the guarded resource
//! checks tokens.
//!
//! The URL must lead to one server, directly, through a proxy, or with the help of Redis Sentinel. Scripts
//! renew many locks at once, which Redis Cluster would refuse. If a server refuses writes, the request is
//! repeated. If it is a replica, the request is repeated over a new connection, so Sentinel, a DNS name or
//! a proxy that follows the master is enough. A failover loses the locks that the new master had not
//! received.
//!
//! Keys, with the prefix `P`:
//! - `P{name}`: the lock. The braces are part of the key.
//! - `P{name}:token`: the last token, kept for ten minutes.
//! - `P{name}:holders`, `P{name}:waiters`, `P{name}:claims`: the permits of a name, kept for ten minutes
//!   after their last use.
//! - `P{name}:gone:nonce`: a tombstone that stops late requests, kept for one minute. It contains `revoked`
//!   if the lock was taken away, and is then kept until the lease would have ended, if that is later.
//! - `P{name}:period`: the last start of a periodic job, kept until the end of its period.
//! - `P{name}:number`, `:latch`, `:gate`: numbers. `P{name}:done:nonce`: an answer, kept for one minute.
//! - `P:source`: the id under which tokens are issued.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;

use crate::backend::{
    Admin, Backend, Claim, Contender, Nudge, Numbers, Properties, Release, ReleaseRequest, Renewal,
    Renewed, Request,
};
use crate::error::{BackendError, LostReason};
use crate::managers::Managers;
use crate::nonce::Nonce;
use crate::source::SourceId;

mod address;
mod admin;
mod builder;
mod connection;
mod contender;
mod eviction;
mod fence;
mod numbers;
mod periods;
mod permits;
pub mod redlock;
mod scripts;
mod wakeups;

use address::Address;
pub use builder::RedisBuilder;
use connection::{Connection, backend_error};
use contender::RedisContender;
pub use fence::FENCED_COMMAND;
use scripts::{flag, loss, milliseconds, reason};
use wakeups::LazyWakeUps;

/// How long the nonce of a released acquisition is remembered. No request stays on its way longer.
const TOMBSTONE: Duration = Duration::from_mins(1);

/// Locks on one Redis server. Clones share two connections.
#[derive(Debug, Clone)]
pub struct RedisBackend(Arc<Redis>);

#[derive(Debug)]
struct Redis {
    connection: Connection,
    wake_ups: LazyWakeUps,
    managers: Managers,
    source: SourceId,
    /// Whether a refused message to waiters was reported.
    is_publish_refused: AtomicBool,
    prefix: String,
    connect_limit: Duration,
    response_limit: Duration,
    fallback: Duration,
    /// How often waiters ask. `None`: they are woken.
    polling: Option<Duration>,
    token_memory: Duration,
}

impl RedisBackend {
    /// Creates a back end from a URL: `redis://[user:password@]host[:port][/database]`.
    ///
    /// `redis+sentinel://[user:password@]host[:port],…/master[/database]` asks these sentinels, which need no
    /// password, for the master with this name. They are asked for each connection, so a failover needs no
    /// restart.
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

    /// Returns a warning if this server may evict locks when its memory is full. Call it at
    /// startup.
    ///
    /// # Errors
    /// Returns an error if the server does not answer.
    pub async fn maxmemory_policy_warning(&self) -> Result<Option<String>, BackendError> {
        eviction::warning(&self.0.connection).await
    }
}

impl Redis {
    /// Returns the key of a lock. Its release is published on a channel of the same name. The
    /// braces keep all keys of a lock in one hash slot.
    fn lock_key(&self, name: &str) -> String {
        format!("{}{{{name}}}", self.prefix)
    }

    fn tombstone_key(&self, name: &str, nonce: Nonce) -> String {
        format!("{}:gone:{nonce}", self.lock_key(name))
    }

    /// Sends a request with the source's id that the client knows.
    async fn acquire(
        &self,
        request: &Request,
        source: &str,
    ) -> Result<Vec<redis::Value>, BackendError> {
        if let Claim::Permits { take, of } = request.claim {
            return self.acquire_permits(request, take, of, source).await;
        }
        let lock = self.lock_key(&request.name);
        let keys = [
            lock.clone(),
            format!("{lock}:token"),
            self.tombstone_key(&request.name, request.nonce),
            format!("{}:source", self.prefix),
        ];
        let mut arguments = vec![
            request.nonce.to_string(),
            milliseconds(request.lease),
            milliseconds(self.token_memory),
            source.to_owned(),
        ];
        arguments.extend(self.source.is_fixed.then(|| "fixed".to_owned()));
        let script = self.connection.script(&scripts::ACQUIRE, &keys, &arguments);
        Ok(match script.await? {
            redis::Value::Array(answer) => answer,
            token => vec![redis::Value::Int(1), token],
        })
    }
}

impl Redis {
    /// Returns for each lock what [`loss`] reads.
    async fn renew_locks(&self, renewals: &[&Renewal]) -> Result<Vec<i64>, BackendError> {
        if renewals.is_empty() {
            return Ok(Vec::new());
        }
        let key = |renewal: &&Renewal| self.lock_key(&renewal.name);
        let keys: Vec<_> = renewals.iter().map(key).collect();
        let arguments =
            |renewal: &&Renewal| [renewal.nonce.to_string(), milliseconds(renewal.lease)];
        let arguments: Vec<_> = renewals.iter().flat_map(arguments).collect();
        let script = self.connection.script(&scripts::RENEW, &keys, &arguments);
        script.await
    }

    /// Returns what [`loss`] reads, and why no waiter could be woken.
    async fn release_lock(&self, request: &ReleaseRequest) -> Result<(i64, String), BackendError> {
        let ReleaseRequest {
            name,
            nonce,
            unclear,
            ..
        } = request;
        let mut arguments = vec![nonce.to_string()];
        arguments.extend(unclear.then(|| "unclear".to_owned()));
        let keys = [self.lock_key(name)];
        let script = self.connection.script(&scripts::RELEASE, &keys, &arguments);
        Ok(match script.await? {
            redis::Value::Int(held) => (held, String::new()),
            refused => {
                let refused = redis::from_redis_value(refused);
                (1, refused.map_err(|e| backend_error(e.into()))?)
            }
        })
    }
}

#[async_trait]
impl Backend for RedisBackend {
    fn properties(&self) -> Properties {
        Properties {
            name: "redis",
            response_limit: self.0.response_limit + self.0.connect_limit,
            session: None,
            max_lease: None,
        }
    }

    fn supports(&self, _: Claim) -> bool {
        true
    }

    fn contender(&self, request: Request) -> Box<dyn Contender> {
        Box::new(RedisContender::new(Arc::clone(&self.0), request))
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>, BackendError> {
        let is_exclusive = |renewal: &&Renewal| renewal.claim == Claim::Exclusive;
        let (exclusive, permits): (Vec<_>, Vec<_>) = renewals.iter().partition(is_exclusive);
        let (exclusive, permits) = tokio::join!(
            self.0.renew_locks(&exclusive),
            self.0.renew_permits(&permits),
        );
        let mut failure = None;
        let mut known = |answer: Result<Vec<i64>, _>| {
            let answer = answer.map_err(|error| failure = Some(error));
            answer.unwrap_or_default().into_iter()
        };
        let (mut exclusive, mut permits) = (known(exclusive), known(permits));
        if let Some(error) = failure {
            if exclusive.len() + permits.len() == 0 {
                return Err(error);
            }
            tracing::debug!(%error, "some of the locks were not renewed");
        }
        let renewed = |renewal: &Renewal| {
            let held = if is_exclusive(&renewal) {
                exclusive.next()
            } else {
                permits.next()
            };
            match held.map(loss) {
                Some(None) => Renewed::Held(renewal.lease),
                Some(Some(reason)) => Renewed::Gone(reason),
                None => Renewed::Unknown,
            }
        };
        Ok(renewals.iter().map(renewed).collect())
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<Release, BackendError> {
        let (released, refused) = match request.claim {
            Claim::Exclusive => self.0.release_lock(request).await?,
            Claim::Permits { .. } => self.0.release_permits(request).await?,
        };
        if !refused.is_empty() && !self.0.is_publish_refused.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                error = refused,
                "Redis refuses to wake the waiters of locks; they poll instead",
            );
        }
        Ok(loss(released).map_or(Release::Released, Release::NotHeld))
    }

    async fn begin_period(
        &self,
        name: &str,
        nonce: Nonce,
        period: Duration,
    ) -> Result<Option<Duration>, BackendError> {
        self.0.begin_period(name, nonce, period).await
    }

    fn numbers(&self) -> Option<&dyn Numbers> {
        Some(self)
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(self)
    }

    async fn verify(&self, name: &str, nonce: Nonce) -> Result<Option<LostReason>, BackendError> {
        let mut get = redis::cmd("MGET");
        get.arg(self.0.lock_key(name));
        get.arg(self.0.tombstone_key(name, nonce));
        // First the permits: if they are taken away in between, the tombstone is read.
        let (permits, keys) =
            tokio::join!(self.0.has_permits(name, nonce), self.0.connection.run(&get),);
        let (value, tombstone): (Option<String>, Option<String>) = keys?;
        let is_held = value.is_some_and(|value| value.starts_with(&nonce.to_string())) || permits?;
        Ok((!is_held).then(|| reason(tombstone.as_deref())))
    }

    async fn reduce(
        &self,
        name: &str,
        nonce: Nonce,
        keep: u32,
    ) -> Result<Option<LostReason>, BackendError> {
        self.0.reduce_permits(name, nonce, keep).await
    }

    async fn ping(&self) -> Result<(), BackendError> {
        self.0.connection.run(&redis::cmd("PING")).await
    }

    fn attach(&self, nudge: Nudge) {
        self.0.managers.attach(&nudge, || self.0.connection.open());
    }

    async fn detach(&self, nudge: &Nudge) {
        self.0.managers.detach(nudge, || {
            self.0.wake_ups.close();
            self.0.connection.close();
        });
    }
}
