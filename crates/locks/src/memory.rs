//! A model of a lock server, for tests: it answers late, not at all, or after having forgotten.
//!
//! It keeps the same table as [`local`](crate::local), but every question is a request that travels
//! to it and an answer that travels back, and [`MemoryServer`] can lose either, stand still, let a
//! lease end, or forget everything. Dropping a question does not stop its request, as on a network.
//! With a [`TokioClock`](crate::clock::TokioClock) under paused time all of it is virtual, so that a
//! lease of ten seconds takes no time to test.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;

use crate::backend::{
    Attempt, Backend, Contender, Grant, Nudge, Release, Renewal, Renewed, Request,
};
use crate::clock::Clock;
use crate::error::BackendError;
use crate::nonce::Nonce;
use crate::topics::Listener;

mod server;

use server::{Fate, Server};
pub use server::{MemoryServer, Question};

/// The model's back end: one client of a [`MemoryServer`].
#[derive(Debug, Clone)]
pub struct MemoryBackend {
    server: Arc<Server>,
    latency: Duration,
    response_limit: Duration,
    fallback: Duration,
}

impl MemoryServer {
    /// A client of this server; as many as there are processes to play.
    #[must_use]
    pub fn client(&self) -> MemoryBackend {
        MemoryBackend {
            server: Arc::clone(&self.0),
            latency: Duration::ZERO,
            response_limit: Duration::from_secs(1),
            fallback: Duration::from_secs(1),
        }
    }
}

impl MemoryBackend {
    /// How long each request and each answer travels; no time unless told.
    #[must_use]
    pub fn latency(mut self, latency: Duration) -> Self {
        self.latency = latency;
        self
    }

    /// How long an answer is waited for; 1 s unless told.
    #[must_use]
    pub fn response_limit(mut self, limit: Duration) -> Self {
        self.response_limit = limit;
        self
    }

    /// After how long a waiter asks again that was not woken; 1 s unless told.
    #[must_use]
    pub fn fallback(mut self, fallback: Duration) -> Self {
        self.fallback = fallback;
        self
    }

    /// Sends one question, and waits for its answer.
    async fn ask<T: Send + 'static>(
        &self,
        question: Question,
        answer: impl FnOnce(&Server) -> T + Send + 'static,
    ) -> Result<T, BackendError> {
        let (sender, receiver) = oneshot::channel();
        let server = Arc::clone(&self.server);
        let latency = self.latency;
        // The request is on its way, whatever becomes of who asked.
        tokio::spawn(async move {
            pass(server.clock.as_ref(), latency).await;
            let fate = server.fate(question);
            match fate {
                Fate::RequestLost => return,
                Fate::Delayed => server.delivered.notified().await,
                Fate::Answered | Fate::AnswerLost => {}
            }
            server.running().await;
            let answer = answer(&server);
            if fate == Fate::AnswerLost {
                return;
            }
            pass(server.clock.as_ref(), latency).await;
            // Who asked may not wait any more.
            let _ = sender.send(answer);
        });
        let clock = &self.server.clock;
        tokio::select! {
            answer = receiver => {
                answer.map_err(|_| BackendError::transient("the connection was lost"))
            }
            () = clock.sleep_until(clock.now() + self.response_limit) => {
                Err(BackendError::transient("no answer in time"))
            }
        }
    }
}

async fn pass(clock: &dyn Clock, time: Duration) {
    if !time.is_zero() {
        clock.sleep_until(clock.now() + time).await;
    }
}

#[async_trait]
impl Backend for MemoryBackend {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn response_limit(&self) -> Duration {
        self.response_limit
    }

    fn kept_for(&self, lease: Duration) -> Duration {
        lease
    }

    fn contender(&self, request: Request) -> Box<dyn Contender> {
        Box::new(MemoryContender {
            client: self.clone(),
            request,
            freed: None,
            unclear: false,
        })
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>, BackendError> {
        let renewals = renewals.to_vec();
        self.ask(Question::Renew, move |server| {
            let now = server.clock.now();
            let renew = |renewal| server.table.renew(now, renewal);
            renewals.iter().map(renew).collect()
        })
        .await
    }

    async fn release(&self, name: &str, nonce: Nonce) -> Result<Release, BackendError> {
        let name = name.to_owned();
        self.ask(Question::Release, move |server| {
            let outcome = server.table.release(server.clock.now(), &name, nonce);
            match outcome {
                Release::Released if !server.loses_wake_up() => server.table.freed.publish(&name),
                Release::Released => {}
                Release::NotHeld => server.give_up(nonce),
            }
            outcome
        })
        .await
    }

    async fn verify(&self, name: &str, nonce: Nonce) -> Result<bool, BackendError> {
        let name = name.to_owned();
        self.ask(Question::Verify, move |server| {
            let holder = server.table.holder(server.clock.now(), &name);
            holder.is_some_and(|(holder, _)| holder == nonce)
        })
        .await
    }

    async fn ping(&self) -> Result<(), BackendError> {
        self.ask(Question::Ping, |_| ()).await
    }

    fn attach(&self, _: Nudge) {}

    async fn close(&self) {}
}

struct MemoryContender {
    client: MemoryBackend,
    request: Request,
    freed: Option<Listener>,
    unclear: bool,
}

#[async_trait]
impl Contender for MemoryContender {
    async fn attempt(&mut self) -> Result<Attempt, BackendError> {
        let Request { name, nonce, lease } = self.request.clone();
        let earlier = std::mem::replace(&mut self.unclear, true);
        let answer = self.client.ask(Question::Acquire, move |server| {
            let now = server.clock.now();
            (!server.is_given_up(nonce)).then(|| server.table.acquire(now, &name, nonce, lease))
        });
        let given_up = || BackendError::permanent("this acquisition was given up");
        match answer.await?.ok_or_else(given_up)? {
            Ok(token) => Ok(Attempt::Held(Grant {
                token,
                source: Arc::clone(&self.client.server.source),
                lease,
            })),
            Err(left) => {
                // It speaks for this request alone; an earlier one may still be on its way.
                self.unclear = earlier;
                Ok(Attempt::Busy {
                    ask_again: Some(left.min(self.client.fallback)),
                })
            }
        }
    }

    async fn wait(&mut self) -> Result<(), BackendError> {
        match &mut self.freed {
            Some(freed) => freed.changed().await,
            freed => *freed = Some(self.client.server.table.freed.listen(&self.request.name)),
        }
        Ok(())
    }

    fn may_have_left_something(&self) -> bool {
        self.unclear
    }
}
