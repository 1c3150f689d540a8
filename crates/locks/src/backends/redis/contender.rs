//! One acquisition: a request, and a subscription while another client holds the lock.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::Redis;
use super::connection::backend_error;
use super::wakeups::Subscription;
use crate::backend::{Attempt, Claim, Contender, Fence, Fencing, Grant, Left, Request, Sealed};
use crate::shared::error::BackendError;
use crate::shared::retry::jittered;
use crate::shared::token::Token;

pub(super) struct RedisContender {
    pub(super) redis: Arc<Redis>,
    pub(super) request: Request,
    pub(super) subscription: Option<Subscription>,
    pub(super) left: Left,
}

impl Fencing for super::RedisBackend {
    type Token = Token;
}

impl Sealed for RedisContender {}

#[async_trait]
impl Contender for RedisContender {
    async fn attempt(&mut self) -> Result<Attempt, BackendError> {
        // Connect first: if this fails, the request was never sent, and no release is needed.
        let lock = self.redis.lock_key(&self.request.name);
        self.redis.servers.connected(&lock).await?;
        let (redis, request) = (&self.redis, &self.request);
        let attempt = async {
            let known = redis.source.candidate();
            let answer = redis.acquire(request, &known).await?;
            Ok(match answer.as_slice() {
                [redis::Value::Int(1), token, other @ ..] if other.len() <= 1 => {
                    let token = redis::from_redis_value_ref::<i64>(token);
                    let token = token.map_err(|e| backend_error(e.into()))?;
                    let other = other.first().map(redis::from_redis_value_ref::<String>);
                    let other = other.transpose().map_err(|e| backend_error(e.into()))?;
                    Attempt::Held(Grant {
                        fence: Some(Fence {
                            token: Token::new(token),
                            source: redis.source.saw(other.as_deref().unwrap_or(&known)),
                        }),
                        lease: request.lease,
                    })
                }
                [redis::Value::Int(0), redis::Value::Int(left)] => Attempt::Busy {
                    ask_again: Some(redis.ask_again(*left)),
                },
                [redis::Value::Int(-2), redis::Value::Int(of)] => Attempt::TooFewPermits {
                    of: u32::try_from(*of).unwrap_or(u32::MAX),
                },
                [redis::Value::Int(-1)] => return Err(BackendError::already_released()),
                other => {
                    let cause =
                        format!("the acquire script returned an unexpected reply: {other:?}");
                    return Err(BackendError::permanent(cause));
                }
            })
        };
        self.left.by(request.claim, attempt).await
    }

    async fn wait(&mut self) -> Result<(), BackendError> {
        if self.redis.settings.polling.is_some() {
            // Until the next attempt is due.
            return pending().await;
        }
        self.subscription.take_if(|one| one.has_ended());
        if let Some(subscription) = &mut self.subscription {
            subscription.message().await;
            return Ok(());
        }
        let Request { name, nonce, .. } = &self.request;
        let channel = match self.request.claim {
            Claim::Exclusive => self.redis.lock_key(name),
            Claim::Permits { .. } => self.redis.permit_channel(name, *nonce),
        };
        let (subscription, confirmed) = self.redis.wake_ups.subscribe(&channel);
        // Store the subscription before waiting: this future may be dropped while it waits.
        let subscription = self.subscription.insert(subscription);
        tokio::select! {
            Ok(()) = confirmed => {}
            // There is no confirmation while the connection is being opened. All waiters are woken
            // when it is open.
            () = subscription.message() => {}
        }
        Ok(())
    }

    fn left(&self) -> Left {
        self.left
    }
}

impl Redis {
    /// Returns when to ask again without a wake-up: after the lease, but no later than the
    /// fallback or the next poll.
    ///
    /// A random part spreads the waiters. A negative TTL belongs to a foreign key without expiry.
    fn ask_again(&self, milliseconds_left: i64) -> Duration {
        let settings = &self.settings;
        let latest = jittered(settings.polling.unwrap_or(settings.fallback));
        let spread = Duration::from_millis(fastrand::u64(1..20));
        u64::try_from(milliseconds_left).map_or(latest, |left| {
            (Duration::from_millis(left) + spread).min(latest)
        })
    }
}
