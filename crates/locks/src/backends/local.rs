//! Locks within one process, without a server.
//!
//! *Guarantees:* exclusion between all managers that use clones of one back end, with leases like
//! those of a server. *Costs:* a mutex and a map. *Fails when* there is a second process, which it
//! does not exclude. *Use when* there is only one process, or to run code without the lock server
//! that it normally needs.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::backend::{
    Admin, Attempt, Backend, Changed, Claim, Contender, Extras, Fence, Fencing, Grant, Nudge,
    NumberKey, NumberRequest, Numbers, Periods, Properties, Release, ReleaseRequest, Renewal,
    Renewed, Request, Sealed,
};
use crate::claims::LockView;
use crate::shared::clock::{Clock, default_clock};
use crate::shared::error::{BackendError, LostReason};
use crate::shared::nonce::Nonce;
use crate::shared::numbers::NumberTable;
use crate::shared::periods::PeriodTable;
use crate::shared::revoked::Revoked;
use crate::shared::shares::{Shares, Wanted};
use crate::shared::table::Table;
use crate::shared::token::Token;
use crate::shared::topics::Listener;

/// How long a waiter for permits stays in their queue without another request.
const PATIENCE: Duration = Duration::from_secs(3);

/// How often a task that waits for a number looks whether it has expired.
const EXPIRY_CHECK: Duration = Duration::from_secs(1);

/// Locks of this process. Clones share them.
#[derive(Debug, Clone)]
pub struct LocalBackend(Arc<Local>);

#[derive(Debug)]
struct Local {
    table: Table,
    shares: Shares,
    revoked: Revoked,
    periods: PeriodTable,
    numbers: NumberTable,
    clock: Arc<dyn Clock>,
    source: Arc<str>,
}

impl LocalBackend {
    /// Creates a back end without locks, independent of all others.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(default_clock())
    }

    /// Creates a back end whose leases run on this clock.
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Local {
            table: Table::default(),
            shares: Shares::default(),
            revoked: Revoked::default(),
            periods: PeriodTable::default(),
            numbers: NumberTable::default(),
            clock,
            source: format!("local:{}", Nonce::random()).into(),
        }))
    }

    /// Returns the number of held locks, with the clients that hold permits or wait for them.
    #[must_use]
    pub fn held(&self) -> usize {
        let now = self.0.clock.now();
        self.0.table.len(now) + self.0.shares.len(now)
    }

    /// Returns how many numbers, latches and gates of barriers exist.
    #[must_use]
    pub fn stored_numbers(&self) -> usize {
        self.0.numbers.len(self.0.clock.now())
    }
}

impl Default for LocalBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl Fencing for LocalBackend {
    type Token = Token;
}

impl Sealed for LocalBackend {}

#[async_trait]
impl Backend for LocalBackend {
    fn properties(&self) -> Properties {
        Properties {
            name: "local",
            response_limit: Duration::from_secs(1),
            session: None,
            max_lease: None,
            lookahead: 0,
        }
    }

    fn extras(&self) -> Extras<'_> {
        Extras {
            periods: Some(self),
            numbers: Some(self),
        }
    }

    fn contender(&self, request: Request) -> Box<dyn Contender> {
        Box::new(LocalContender {
            local: Arc::clone(&self.0),
            request,
            changed: None,
            left_something: false,
        })
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>, BackendError> {
        let now = self.0.clock.now();
        let renew = |renewal: &Renewal| {
            let is_held = match renewal.claim {
                Claim::Exclusive => self.0.table.renew(now, renewal),
                Claim::Permits { .. } => self.0.shares.renew(now, renewal),
            };
            self.0.revoked.renewed(now, renewal, is_held)
        };
        Ok(renewals.iter().map(renew).collect())
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<Release, BackendError> {
        let now = self.0.clock.now();
        let ReleaseRequest { name, nonce, .. } = request;
        let was_held = match request.claim {
            Claim::Permits { .. } => self.0.shares.release(now, name, *nonce),
            Claim::Exclusive => {
                let was_held = self.0.table.release(now, name, *nonce);
                self.0.table.freed.publish(name);
                was_held
            }
        };
        Ok(self.0.revoked.released(now, *nonce, was_held))
    }

    async fn verify(&self, name: &str, nonce: Nonce) -> Result<Option<LostReason>, BackendError> {
        let now = self.0.clock.now();
        let holder = self.0.table.holder(now, name);
        let is_holder = holder.is_some_and(|(holder, _)| holder == nonce);
        let is_held = is_holder || self.0.shares.holds(now, name, nonce);
        Ok((!is_held).then(|| self.0.revoked.reason(now, nonce)))
    }

    fn attach(&self, _: Nudge) {}

    async fn detach(&self, _: &Nudge) {}
}

#[async_trait]
impl Periods for LocalBackend {
    async fn begin_period(
        &self,
        name: &str,
        nonce: Nonce,
        period: Duration,
    ) -> Result<Option<Duration>, BackendError> {
        let now = self.0.clock.now();
        Ok(self.0.periods.begin(now, name, nonce, period))
    }
}

#[async_trait]
impl Numbers for LocalBackend {
    async fn reduce(
        &self,
        name: &str,
        nonce: Nonce,
        keep: u32,
    ) -> Result<Option<LostReason>, BackendError> {
        let now = self.0.clock.now();
        let is_held = self.0.shares.reduce(now, name, nonce, keep);
        Ok((!is_held).then(|| self.0.revoked.reason(now, nonce)))
    }

    async fn change(&self, request: &NumberRequest) -> Result<Changed, BackendError> {
        // No answer can be lost here, so none is remembered.
        let (now, numbers) = (self.0.clock.now(), &self.0.numbers);
        let changed = numbers.change(now, request, Duration::ZERO)?;
        numbers.changed.publish(&request.key.topic());
        Ok(changed)
    }

    async fn read(&self, key: &NumberKey, other_than: Option<i64>) -> Result<i64, BackendError> {
        let mut changed = self.0.numbers.changed.listen(&key.topic());
        let value = || self.0.numbers.value(self.0.clock.now(), key);
        if other_than == Some(value()) {
            let clock = &self.0.clock;
            tokio::select! {
                () = changed.changed() => {}
                // The number may expire, which is not published.
                () = clock.sleep_until(clock.now() + EXPIRY_CHECK) => {}
            }
        }
        Ok(value())
    }

    async fn tokens(&self, name: &str) -> Result<Vec<Token>, BackendError> {
        Ok(self.0.shares.tokens(self.0.clock.now(), name))
    }
}

#[async_trait]
impl Admin for LocalBackend {
    async fn ping(&self) -> Result<(), BackendError> {
        Ok(())
    }

    async fn inspect(&self, name: &str, claim: Claim) -> Result<LockView, BackendError> {
        let (local, now) = (&self.0, self.0.clock.now());
        Ok(match claim {
            Claim::Exclusive => local.table.inspect(now, name),
            Claim::Permits { .. } => local.shares.inspect(now, name),
        })
    }

    async fn revoke(&self, name: &str, nonce: Nonce, claim: Claim) -> Result<bool, BackendError> {
        let view = self.inspect(name, claim).await?;
        let now = self.0.clock.now();
        let is_freed = self.0.revoked.take_away(now, &view, nonce, || match claim {
            Claim::Exclusive => self.0.table.release(now, name, nonce),
            Claim::Permits { .. } => self.0.shares.release(now, name, nonce),
        });
        if is_freed && claim == Claim::Exclusive {
            self.0.table.freed.publish(name);
        }
        Ok(self.0.revoked.contains(now, nonce))
    }
}

struct LocalContender {
    local: Arc<Local>,
    request: Request,
    changed: Option<Listener>,
    left_something: bool,
}

impl Sealed for LocalContender {}

#[async_trait]
impl Contender for LocalContender {
    async fn attempt(&mut self) -> Result<Attempt, BackendError> {
        let now = self.local.clock.now();
        let Request {
            name, nonce, lease, ..
        } = &self.request;
        let acquired = match self.request.claim {
            Claim::Exclusive => {
                let acquired = self.local.table.acquire(now, name, *nonce, *lease);
                acquired.map_err(|remaining| Attempt::Busy {
                    ask_again: Some(remaining),
                })
            }
            Claim::Permits { take, of } => {
                self.left_something = true;
                let wanted = Wanted {
                    nonce: *nonce,
                    take,
                    of,
                    lease: *lease,
                    patience: PATIENCE,
                };
                let acquired = self.local.shares.acquire(now, name, wanted);
                acquired.map_err(|denied| denied.attempt(PATIENCE / 3))
            }
        };
        Ok(match acquired {
            Ok(token) => {
                self.left_something = true;
                Attempt::Held(Grant {
                    fence: Some(Fence {
                        token,
                        source: Arc::clone(&self.local.source),
                    }),
                    lease: *lease,
                })
            }
            Err(denied) => denied,
        })
    }

    async fn wait(&mut self) -> Result<(), BackendError> {
        let Request { name, nonce, .. } = &self.request;
        match &mut self.changed {
            Some(changed) => changed.changed().await,
            changed => {
                *changed = Some(match self.request.claim {
                    Claim::Exclusive => self.local.table.freed.listen(name),
                    Claim::Permits { .. } => self.local.shares.turns.listen(&nonce.to_string()),
                });
            }
        }
        Ok(())
    }

    fn may_have_left_something(&self) -> bool {
        self.left_something
    }

    fn has_unanswered_attempt(&self) -> bool {
        false
    }
}
