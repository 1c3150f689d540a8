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

use tokio::sync::oneshot;

use crate::backend::Claim;
use crate::shared::clock::Clock;
use crate::shared::error::BackendError;
use crate::shared::managers::Managers;
use crate::shared::source::SourceId;

mod backend;
mod locks;
mod numbers;
mod server;
mod tables;

pub(super) use backend::InProcess;
use server::{Fate, Server};
pub use server::{MemoryServer, Question};
use tables::Tables;

/// How long the client waits for an answer.
const RESPONSE_LIMIT: Duration = Duration::from_secs(1);

/// After how long a waiter asks again without a wake-up.
const FALLBACK: Duration = Duration::from_secs(1);

/// The back end of the model: one client of a [`MemoryServer`]. Clones share its connection.
#[derive(Debug, Clone)]
pub struct MemoryBackend {
    server: Arc<Server>,
    client: Arc<Client>,
    latency: Duration,
    /// No request takes time, and no request or answer is ever lost.
    is_local: bool,
}

#[derive(Debug)]
struct Client {
    managers: Managers,
    closed: AtomicBool,
    source: SourceId,
}

impl MemoryServer {
    /// Creates a client of this server. Each client stands for one process.
    #[must_use]
    pub fn client(&self) -> MemoryBackend {
        MemoryBackend::new(Arc::clone(&self.0), "memory")
    }
}

impl MemoryBackend {
    /// Sets how long each request and each answer takes to arrive. Default: no time.
    #[must_use]
    pub fn latency(mut self, latency: Duration) -> Self {
        self.latency = latency;
        self
    }

    fn new(server: Arc<Server>, kind: &'static str) -> Self {
        Self {
            server,
            client: Arc::new(Client {
                managers: Managers::default(),
                closed: AtomicBool::new(false),
                source: SourceId::new(kind, None),
            }),
            latency: Duration::ZERO,
            is_local: kind == "local",
        }
    }

    /// A client of its own server in this process.
    pub(super) fn local(clock: Arc<dyn Clock>) -> Self {
        Self::new(Arc::new(Server::new(clock)), "local")
    }

    pub(super) fn tables(&self) -> &Tables {
        &self.server.tables
    }

    /// After how long a waiter asks again without a wake-up. One for permits stays in the queue for three
    /// times as long.
    fn fallback_of(&self, claim: Claim) -> Duration {
        if self.is_local && claim == Claim::Exclusive {
            return Duration::MAX;
        }
        FALLBACK
    }

    async fn ask<T: Send + 'static>(
        &self,
        question: Question,
        answer: impl FnOnce(&Tables) -> T + Send + 'static,
    ) -> Result<T, BackendError> {
        if self.is_local {
            return Ok(answer(self.tables()));
        }
        if self.client.closed.load(Ordering::SeqCst) {
            let cause = "the connection was closed by this process";
            return Err(BackendError::transient(cause));
        }
        let (sender, receiver) = oneshot::channel();
        let server = Arc::clone(&self.server);
        let latency = self.latency;
        // The request arrives even if the caller drops its future.
        tokio::spawn(async move {
            travel(server.tables.clock.as_ref(), latency).await;
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
                Ok(answer(&server.tables))
            };
            if fate == Fate::AnswerLost {
                return;
            }
            travel(server.tables.clock.as_ref(), latency).await;
            // The caller may no longer wait.
            let _ = sender.send(answer);
        });
        let clock = &self.server.tables.clock;
        tokio::select! {
            biased;
            answer = receiver => {
                answer.map_err(|_| BackendError::transient("the connection was lost")).flatten()
            }
            () = clock.sleep_until(clock.now() + RESPONSE_LIMIT) => {
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
