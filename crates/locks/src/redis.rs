//! Locks on one Redis.
//!
//! *Guarantees:* exclusion while Redis keeps its data and its clock; a lease on the server's clock;
//! tokens that grow even when the last one was forgotten. *Costs:* one round trip to acquire, one to
//! release, one for a hundred renewals. *Fails when* Redis forgets (failover, eviction, flush) or
//! its clock jumps: two may then hold, and only the token in the guarded write tells. *Use when*
//! there is a Redis, and the guarded resource checks.
//!
//! One server, or what a proxy shows as one: scripts renew many locks at once, which a cluster
//! would refuse. Sentinel is not asked who is the master. A server that refuses to write is asked
//! again, over a new connection where it says that it is a replica, so that a name or a proxy that
//! follows the master is enough; but a failover forgets what the new master had not been sent.
//!
//! Keys: `P{name}` the lock, `P{name}:token` the last token, for ten minutes,
//! `P{name}:gone:nonce` what arrives too late, for a minute, and `P:source`, where `P` is the
//! prefix.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use redis::Client;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::backend::{
    Attempt, Backend, Contender, Grant, Nudge, Release, Renewal, Renewed, Request,
};
use crate::error::{BackendError, LostReason};
use crate::nonce::Nonce;
use crate::retry::jittered;
use crate::token::Token;

mod connection;
mod eviction;
mod scripts;
mod wakeups;

use connection::{Connection, backend_error};
use wakeups::{LazyWakeUps, Subscription};

/// How long a given-up nonce is remembered: longer than a request can be on its way.
const TOMBSTONE: Duration = Duration::from_mins(1);

/// Where and how to use Redis.
#[derive(Debug, Clone)]
#[must_use = "it does nothing before build"]
pub struct RedisBuilder {
    /// Of the URL, whose password it does not show.
    client: Result<Client, BackendError>,
    prefix: String,
    connect_limit: Duration,
    response_limit: Duration,
    fallback: Duration,
    token_memory: Duration,
}

impl RedisBuilder {
    /// What all keys begin with; `lock` unless told.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long connecting may take; 1 s unless told.
    pub fn connect_limit(mut self, limit: Duration) -> Self {
        self.connect_limit = limit;
        self
    }

    /// How long an answer may take; 1 s unless told.
    pub fn response_limit(mut self, limit: Duration) -> Self {
        self.response_limit = limit;
        self
    }

    /// After how long a waiter asks again whose wake-up was lost; 1 s unless told.
    pub fn fallback(mut self, fallback: Duration) -> Self {
        self.fallback = fallback;
        self
    }

    /// How long the last token of a lock is remembered, to grow also where the server's clock has
    /// gone back by less; 10 minutes unless told.
    pub fn token_memory(mut self, memory: Duration) -> Self {
        self.token_memory = memory;
        self
    }

    /// The back end; it connects when it is first used.
    ///
    /// # Errors
    /// When the URL is none of Redis.
    pub fn build(self) -> Result<RedisBackend, BackendError> {
        let client = self.client?;
        let closed = CancellationToken::new();
        Ok(RedisBackend(Arc::new(Redis {
            connection: Connection::new(client.clone(), self.connect_limit, self.response_limit),
            wake_ups: LazyWakeUps {
                client,
                limit: self.connect_limit.max(self.response_limit),
                closed: closed.clone(),
                started: OnceLock::new(),
            },
            _closed: closed.drop_guard(),
            source_candidate: Nonce::random().to_string(),
            prefix: self.prefix,
            response_limit: self.response_limit,
            connect_limit: self.connect_limit,
            fallback: self.fallback,
            token_memory: self.token_memory,
        })))
    }
}

/// Locks on one Redis; clones share its two connections.
#[derive(Debug, Clone)]
pub struct RedisBackend(Arc<Redis>);

#[derive(Debug)]
struct Redis {
    connection: Connection,
    wake_ups: LazyWakeUps,
    _closed: DropGuard,
    /// The id of a server that has none yet.
    source_candidate: String,
    prefix: String,
    connect_limit: Duration,
    response_limit: Duration,
    fallback: Duration,
    token_memory: Duration,
}

impl RedisBackend {
    /// Locks on the Redis of a URL: `redis://[user:password@]host[:port][/database]`.
    ///
    /// # Errors
    /// When the URL is none of Redis. Nothing is connected yet.
    pub fn new(url: &str) -> Result<Self, BackendError> {
        Self::builder(url).build()
    }

    /// The same with settings.
    pub fn builder(url: &str) -> RedisBuilder {
        RedisBuilder {
            client: Client::open(url).map_err(backend_error),
            prefix: "lock".to_owned(),
            connect_limit: Duration::from_secs(1),
            response_limit: Duration::from_secs(1),
            fallback: Duration::from_secs(1),
            token_memory: Duration::from_mins(10),
        }
    }

    /// A warning if this server may evict locks when its memory is full; for the start of a program.
    ///
    /// # Errors
    /// When the server gives no answer.
    pub async fn maxmemory_policy_warning(&self) -> Result<Option<String>, BackendError> {
        eviction::warning(&self.0.connection).await
    }
}

impl Redis {
    /// The key of a lock, and the channel that tells when it is free. The braces keep a lock's keys
    /// on one node.
    fn lock_key(&self, name: &str) -> String {
        format!("{}{{{name}}}", self.prefix)
    }

    fn tombstone_key(&self, name: &str, nonce: Nonce) -> String {
        format!("{}:gone:{nonce}", self.lock_key(name))
    }

    async fn acquire(&self, request: &Request) -> Result<Vec<redis::Value>, BackendError> {
        let lock = self.lock_key(&request.name);
        let keys = [
            lock.clone(),
            format!("{lock}:token"),
            self.tombstone_key(&request.name, request.nonce),
            format!("{}:source", self.prefix),
        ];
        let arguments = [
            request.nonce.to_string(),
            milliseconds(request.lease),
            milliseconds(self.token_memory),
            self.source_candidate.clone(),
        ];
        self.connection
            .script(&scripts::ACQUIRE, &keys, &arguments)
            .await
    }
}

#[async_trait]
impl Backend for RedisBackend {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn response_limit(&self) -> Duration {
        self.0.response_limit + self.0.connect_limit
    }

    fn kept_for(&self, lease: Duration) -> Duration {
        lease
    }

    fn contender(&self, request: Request) -> Box<dyn Contender> {
        Box::new(RedisContender {
            redis: Arc::clone(&self.0),
            request,
            subscription: None,
            unclear: false,
        })
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>, BackendError> {
        let key = |renewal: &Renewal| self.0.lock_key(&renewal.name);
        let keys: Vec<_> = renewals.iter().map(key).collect();
        let arguments: Vec<_> = renewals
            .iter()
            .flat_map(|renewal| [renewal.nonce.to_string(), milliseconds(renewal.lease)])
            .collect();
        let script = self.0.connection.script(&scripts::RENEW, &keys, &arguments);
        let held: Vec<bool> = script.await?;
        let renewed = |(held, renewal): (bool, &Renewal)| {
            if held {
                Renewed::Held(renewal.lease)
            } else {
                Renewed::Gone(LostReason::Stolen)
            }
        };
        Ok(held.into_iter().zip(renewals).map(renewed).collect())
    }

    async fn release(&self, name: &str, nonce: Nonce) -> Result<Release, BackendError> {
        let keys = [self.0.lock_key(name), self.0.tombstone_key(name, nonce)];
        let arguments = [nonce.to_string(), milliseconds(TOMBSTONE)];
        let script = self
            .0
            .connection
            .script(&scripts::RELEASE, &keys, &arguments);
        Ok(if script.await? {
            Release::Released
        } else {
            Release::NotHeld
        })
    }

    async fn verify(&self, name: &str, nonce: Nonce) -> Result<bool, BackendError> {
        let mut get = redis::cmd("GET");
        get.arg(self.0.lock_key(name));
        let value: Option<String> = self.0.connection.run(&get).await?;
        Ok(value.is_some_and(|value| value.starts_with(&nonce.to_string())))
    }

    async fn ping(&self) -> Result<(), BackendError> {
        self.0.connection.run(&redis::cmd("PING")).await
    }

    fn attach(&self, _: Nudge) {}

    async fn close(&self) {
        self.0.wake_ups.closed.cancel();
        self.0.connection.close();
    }
}

struct RedisContender {
    redis: Arc<Redis>,
    request: Request,
    subscription: Option<Subscription>,
    unclear: bool,
}

#[async_trait]
impl Contender for RedisContender {
    async fn attempt(&mut self) -> Result<Attempt, BackendError> {
        // What is never sent cannot arrive.
        self.redis.connection.connected().await?;
        let earlier = std::mem::replace(&mut self.unclear, true);
        let answer = self.redis.acquire(&self.request).await?;
        let attempt = match answer.as_slice() {
            [redis::Value::Int(1), token, source] => {
                let token = redis::from_redis_value_ref::<i64>(token);
                let source = redis::from_redis_value_ref::<String>(source);
                return Ok(Attempt::Held(Grant {
                    token: Token::new(token.map_err(|e| backend_error(e.into()))?),
                    source: format!("redis:{}", source.map_err(|e| backend_error(e.into()))?)
                        .into(),
                    lease: self.request.lease,
                }));
            }
            [redis::Value::Int(0), redis::Value::Int(left)] => Attempt::Busy {
                ask_again: Some(self.ask_again(*left)),
            },
            [redis::Value::Int(-1)] => {
                return Err(BackendError::permanent("this acquisition was given up"));
            }
            other => return Err(BackendError::permanent(format!("unexpected: {other:?}"))),
        };
        // It speaks for this request alone; an earlier one may still be on its way.
        self.unclear = earlier;
        Ok(attempt)
    }

    async fn wait(&mut self) -> Result<(), BackendError> {
        if let Some(subscription) = &mut self.subscription {
            subscription.message().await;
            return Ok(());
        }
        let channel = self.redis.lock_key(&self.request.name);
        let (subscription, confirmed) = self.redis.wake_ups.get().subscribe(&channel);
        // Before the wait for the confirmation, which may be dropped.
        let subscription = self.subscription.insert(subscription);
        tokio::select! {
            Ok(()) = confirmed => {}
            // Where it is not confirmed, the connection is just being made; when it is there
            // everybody is woken.
            () = subscription.message() => {}
        }
        Ok(())
    }

    fn may_have_left_something(&self) -> bool {
        self.unclear
    }
}

impl RedisContender {
    /// When to ask again without a wake-up: when the lease has run out, but never later than the
    /// fallback, and not all waiters at once. A negative number is that of a key which somebody else
    /// has set, for ever.
    fn ask_again(&self, milliseconds_left: i64) -> Duration {
        let fallback = jittered(self.redis.fallback);
        let spread = Duration::from_millis(fastrand::u64(1..20));
        u64::try_from(milliseconds_left).map_or(fallback, |left| {
            (Duration::from_millis(left) + spread).min(fallback)
        })
    }
}

fn milliseconds(duration: Duration) -> String {
    duration.as_millis().max(1).to_string()
}
