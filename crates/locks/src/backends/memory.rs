//! An in-memory model of a lock server with faults, for tests.
//!
//! Each operation sends a request to a [`MemoryServer`] and receives an answer. The server can lose
//! requests and answers, refuse or delay requests, pause, expire a lease, or forget all its data. As on a
//! network, a request stays on its way after the caller dropped its future. With a
//! [`TokioClock`](crate::clock::TokioClock) under paused time, all time is virtual, so a test does
//! not really wait for a lease of ten seconds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;

use crate::backend::{
    Attempt, Backend, Claim, Contender, Extras, Fence, Fencing, Grant, Nudge, Periods, Properties,
    Release, ReleaseRequest, Renewal, Renewed, Request, Sealed,
};
use crate::shared::clock::Clock;
use crate::shared::error::{BackendError, LostReason, was_answered};
use crate::shared::managers::Managers;
use crate::shared::nonce::Nonce;
use crate::shared::shares::{Denied, Wanted};
use crate::shared::source::SourceId;
use crate::shared::token::Token;
use crate::shared::topics::Listener;

mod admin;
mod numbers;
mod server;

use server::{Fate, Server};
pub use server::{MemoryServer, Question};

/// The back end of the model: one client of a [`MemoryServer`]. Clones share its connection.
#[derive(Debug, Clone)]
pub struct MemoryBackend {
    server: Arc<Server>,
    client: Arc<Client>,
    latency: Duration,
    response_limit: Duration,
    fallback: Duration,
}

#[derive(Debug)]
struct Client {
    managers: Managers,
    closed: AtomicBool,
    source: SourceId,
}

impl Client {
    fn new(source: Option<String>) -> Arc<Self> {
        Arc::new(Self {
            managers: Managers::default(),
            closed: AtomicBool::new(false),
            source: SourceId::new("memory", source),
        })
    }
}

impl MemoryServer {
    /// Creates a client of this server. Each client stands for one process.
    #[must_use]
    pub fn client(&self) -> MemoryBackend {
        MemoryBackend {
            server: Arc::clone(&self.0),
            client: Client::new(None),
            latency: Duration::ZERO,
            response_limit: Duration::from_secs(1),
            fallback: Duration::from_secs(1),
        }
    }
}

impl MemoryBackend {
    /// Sets how long each request and each answer takes to arrive. Default: no time.
    #[must_use]
    pub fn latency(mut self, latency: Duration) -> Self {
        self.latency = latency;
        self
    }

    /// Sets how long the client waits for an answer. Default: 1 s.
    #[must_use]
    pub fn response_limit(mut self, limit: Duration) -> Self {
        self.response_limit = limit;
        self
    }

    /// Sets after how long a waiter asks again without a wake-up. Default: 1 s.
    #[must_use]
    pub fn fallback(mut self, fallback: Duration) -> Self {
        self.fallback = fallback;
        self
    }

    /// Sets the source of the tokens. Default: a random id, which the server forgets with its data.
    #[must_use]
    pub fn source(mut self, source: &str) -> Self {
        self.client = Client::new(Some(source.to_owned()));
        self
    }

    async fn ask<T: Send + 'static>(
        &self,
        question: Question,
        answer: impl FnOnce(&Server) -> T + Send + 'static,
    ) -> Result<T, BackendError> {
        if self.client.closed.load(Ordering::SeqCst) {
            let cause = "the connection was closed by this process";
            return Err(BackendError::transient(cause));
        }
        let (sender, receiver) = oneshot::channel();
        let server = Arc::clone(&self.server);
        let latency = self.latency;
        // The request arrives even if the caller drops its future.
        tokio::spawn(async move {
            travel(server.clock.as_ref(), latency).await;
            let fate = server.fate(question);
            match fate {
                Fate::RequestLost => return,
                Fate::Delayed => server.delivered.notified().await,
                Fate::Answered | Fate::AnswerLost | Fate::Refused => {}
            }
            server.wait_until_running().await;
            let answer = if fate == Fate::Refused {
                Err(BackendError::transient("the server refuses").refused())
            } else {
                Ok(server.execute(answer))
            };
            if fate == Fate::AnswerLost {
                return;
            }
            travel(server.clock.as_ref(), latency).await;
            // The caller may no longer wait.
            let _ = sender.send(answer);
        });
        let clock = &self.server.clock;
        tokio::select! {
            biased;
            answer = receiver => {
                answer.map_err(|_| BackendError::transient("the connection was lost")).flatten()
            }
            () = clock.sleep_until(clock.now() + self.response_limit) => {
                Err(BackendError::transient("no answer within the response limit"))
            }
        }
    }
}

async fn travel(clock: &dyn Clock, time: Duration) {
    if !time.is_zero() {
        clock.sleep_until(clock.now() + time).await;
    }
}

impl Fencing for MemoryBackend {
    type Token = Token;
}

impl Sealed for MemoryBackend {}

#[async_trait]
impl Backend for MemoryBackend {
    fn properties(&self) -> Properties {
        Properties {
            name: "memory",
            response_limit: self.response_limit,
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
        Box::new(MemoryContender {
            client: self.clone(),
            request,
            changed: None,
            left_something: false,
            is_unanswered: false,
        })
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>, BackendError> {
        let renewals = renewals.to_vec();
        self.ask(Question::Renew, move |server| {
            let now = server.clock.now();
            let renew = |renewal: &Renewal| {
                let is_held = match renewal.claim {
                    Claim::Exclusive => server.table.renew(now, renewal),
                    Claim::Permits { .. } => server.shares.renew(now, renewal),
                };
                server.revoked.renewed(now, renewal, is_held)
            };
            renewals.iter().map(renew).collect()
        })
        .await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<Release, BackendError> {
        let ReleaseRequest {
            name,
            nonce,
            unclear,
            claim,
        } = request.clone();
        self.ask(Question::Release, move |server| {
            let now = server.clock.now();
            let was_held = match claim {
                Claim::Exclusive => server.table.release(now, &name, nonce),
                Claim::Permits { .. } => server.shares.release(now, &name, nonce),
            };
            if unclear || !was_held {
                server.add_tombstone(nonce);
            }
            let is_freed = claim == Claim::Exclusive && was_held;
            if is_freed && !server.lose_wake_up() {
                server.table.freed.publish(&name);
            }
            server.revoked.released(now, nonce, was_held)
        })
        .await
    }

    async fn verify(&self, name: &str, nonce: Nonce) -> Result<Option<LostReason>, BackendError> {
        let name = name.to_owned();
        self.ask(Question::Verify, move |server| {
            let now = server.clock.now();
            let holder = server.table.holder(now, &name);
            let is_holder = holder.is_some_and(|(holder, _)| holder == nonce);
            let is_held = is_holder || server.shares.holds(now, &name, nonce);
            (!is_held).then(|| server.revoked.reason(now, nonce))
        })
        .await
    }

    fn attach(&self, nudge: Nudge) {
        self.server.managers.attach(&nudge, || {});
        let open = || self.client.closed.store(false, Ordering::SeqCst);
        self.client.managers.attach(&nudge, open);
    }

    async fn detach(&self, nudge: &Nudge) {
        self.server.managers.detach(nudge, || {});
        let close = || self.client.closed.store(true, Ordering::SeqCst);
        self.client.managers.detach(nudge, close);
    }
}

#[async_trait]
impl Periods for MemoryBackend {
    async fn begin_period(
        &self,
        name: &str,
        nonce: Nonce,
        period: Duration,
    ) -> Result<Option<Duration>, BackendError> {
        let name = name.to_owned();
        self.ask(Question::Period, move |server| {
            let now = server.clock.now();
            server.periods.begin(now, &name, nonce, period)
        })
        .await
    }
}

struct MemoryContender {
    client: MemoryBackend,
    request: Request,
    changed: Option<Listener>,
    left_something: bool,
    is_unanswered: bool,
}

impl Sealed for MemoryContender {}

#[async_trait]
impl Contender for MemoryContender {
    async fn attempt(&mut self) -> Result<Attempt, BackendError> {
        let Request {
            name,
            nonce,
            lease,
            claim,
        } = self.request.clone();
        let patience = self.client.fallback * 3;
        let was_unanswered = std::mem::replace(&mut self.is_unanswered, true);
        let source = &self.client.client.source;
        let (candidate, is_fixed) = (source.candidate(), source.is_fixed);
        let answer = self.client.ask(Question::Acquire, move |server| {
            let now = server.clock.now();
            if server.has_tombstone(nonce) {
                return None;
            }
            let acquired = match claim {
                Claim::Exclusive => {
                    let acquired = server.table.acquire(now, &name, nonce, lease);
                    acquired.map_err(Denied::Busy)
                }
                Claim::Permits { take, of } => {
                    let wanted = Wanted {
                        nonce,
                        take,
                        of,
                        lease,
                        patience,
                    };
                    server.shares.acquire(now, &name, wanted)
                }
            };
            Some(acquired.map(|token| (token, server.source(candidate, is_fixed))))
        });
        let answer = answer.await;
        if was_answered(&answer) {
            // This answer is only about this request. An earlier one may still be on its way.
            self.is_unanswered = was_unanswered;
        }
        let already_released = || BackendError::permanent("this acquisition was already released");
        let answer = answer?.ok_or_else(already_released)?;
        // A request for permits that was not granted is in their queue.
        self.left_something = answer.is_ok() || claim != Claim::Exclusive;
        Ok(match answer {
            Ok((token, id)) => Attempt::Held(Grant {
                fence: Some(Fence {
                    token,
                    source: source.saw(&id),
                }),
                lease,
            }),
            Err(denied) => denied.attempt(self.client.fallback),
        })
    }

    async fn wait(&mut self) -> Result<(), BackendError> {
        let Request { name, nonce, .. } = &self.request;
        let server = &self.client.server;
        match &mut self.changed {
            Some(changed) => changed.changed().await,
            changed => {
                *changed = Some(match self.request.claim {
                    Claim::Exclusive => server.table.freed.listen(name),
                    Claim::Permits { .. } => server.shares.turns.listen(&nonce.to_string()),
                });
            }
        }
        Ok(())
    }

    fn may_have_left_something(&self) -> bool {
        self.left_something || self.is_unanswered
    }

    fn has_unanswered_attempt(&self) -> bool {
        self.is_unanswered
    }
}
