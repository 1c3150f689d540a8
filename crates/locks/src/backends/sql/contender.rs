//! One acquisition: a request, and how it waits while another client holds the lock.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;

use super::Sql;
use super::connections::Use;
use super::session::Ask;
use super::wakeups::Subscription;
use crate::backend::{Attempt, Contender, Fence, Fencing, Grant, Left, Request, Sealed};
use crate::shared::error::BackendError;
use crate::shared::retry::jittered;
use crate::shared::token::Token;

/// The first and the longest interval at which a waiter asks again, if the database cannot wake it.
const FIRST_POLL: Duration = Duration::from_millis(2);
const LONGEST_POLL: Duration = Duration::from_millis(20);

pub(super) struct SqlContender {
    pub(super) sql: Arc<Sql>,
    pub(super) request: Request,
    pub(super) subscription: Option<Subscription>,
    /// How often the lock was busy in a row.
    pub(super) busy: u32,
    pub(super) left: Left,
}

impl Sql {
    /// Returns when to ask again without a wake-up: after the lease, but no later than the fallback,
    /// or the polling interval. A random part spreads the waiters.
    fn ask_again(&self, busy: u32, left: Duration) -> Duration {
        let fallback = if self.wake_ups.is_some() {
            jittered(self.fallback)
        } else {
            jittered((FIRST_POLL * 2_u32.pow(busy.min(10))).min(LONGEST_POLL))
        };
        let spread = Duration::from_millis(fastrand::u64(1..20));
        left.saturating_add(spread).min(fallback)
    }
}

impl Fencing for super::SqlBackend {
    type Token = Token;
}

impl Sealed for SqlContender {}

#[async_trait]
impl Contender for SqlContender {
    async fn attempt(&mut self) -> Result<Attempt, BackendError> {
        // Connect first: if this fails, the request was never sent, and no release is needed.
        let connected = self.sql.connected(Use::MayQueue).await?;
        let ask = Ask {
            name: super::escaped(&self.request.name),
            nonce: self.request.nonce.to_string(),
            owner: self.sql.owner.clone(),
            lease: super::microseconds(self.request.lease),
            floor: self.sql.last_token.load(Ordering::Relaxed) + 1,
            is_waiting: self.subscription.is_some(),
        };
        let nonce = ask.nonce.clone();
        let (sql, request, busy) = (&self.sql, &self.request, &mut self.busy);
        let attempt = async {
            let row = sql.connections.send(connected, move |session| {
                Box::pin(async move { session.acquire(&ask).await })
            });
            let row = row.await?;
            *busy += 1;
            let Some((holder, token, left, is_buried)) = row else {
                let ask_again = Some(sql.ask_again(*busy, Duration::ZERO));
                return Ok(Attempt::Busy { ask_again });
            };
            sql.last_token.fetch_max(token, Ordering::Relaxed);
            if is_buried {
                return Err(BackendError::already_released());
            }
            if holder == nonce {
                return Ok(Attempt::Held(Grant {
                    fence: Some(Fence {
                        token: Token::new(token),
                        source: sql.source.source(),
                    }),
                    lease: request.lease,
                }));
            }
            let left = Duration::from_micros(u64::try_from(left).unwrap_or(0));
            let ask_again = Some(sql.ask_again(*busy, left));
            Ok(Attempt::Busy { ask_again })
        };
        self.left.by(request.claim, attempt).await
    }

    async fn wait(&mut self) -> Result<(), BackendError> {
        let Some(wake_ups) = &self.sql.wake_ups else {
            // This database cannot wake clients: they poll.
            return std::future::pending().await;
        };
        if let Some(subscription) = &mut self.subscription {
            subscription.message().await;
            return Ok(());
        }
        let subscription = wake_ups.subscribe(&super::escaped(&self.request.name));
        // Store the subscription before waiting: this future may be dropped while it waits.
        let subscription = self.subscription.insert(subscription);
        subscription.listening().await;
        Ok(())
    }

    fn left(&self) -> Left {
        self.left
    }
}
