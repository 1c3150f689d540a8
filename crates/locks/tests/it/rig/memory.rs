//! The in-memory model of a lock server, under virtual time.

use std::future::{Ready, ready};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use stocklock_locks::backend::Backend;
use stocklock_locks::clock::{Clock, TokioClock};
use stocklock_locks::memory::{MemoryServer, Question};

use super::{Faults, Rig};

pub(crate) struct MemoryRig {
    pub(crate) server: MemoryServer,
    clock: Arc<dyn Clock>,
}

impl MemoryRig {
    pub(crate) fn start() -> Ready<Self> {
        let clock = TokioClock::new();
        ready(Self {
            server: MemoryServer::new(clock.clone()),
            clock: Arc::new(clock),
        })
    }
}

#[async_trait]
impl Rig for MemoryRig {
    fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(self.server.client().latency(Duration::from_millis(4)))
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }

    fn lease(&self) -> Duration {
        Duration::from_secs(10)
    }

    fn moment(&self) -> Duration {
        Duration::from_millis(100)
    }

    fn step(&self) -> Duration {
        Duration::from_millis(1)
    }

    async fn left(&self) -> usize {
        self.server.held()
    }
}

#[async_trait]
impl Faults for MemoryRig {
    async fn take_away(&self, name: &str) {
        self.server.expire(name);
    }

    fn outsider(&self) -> Arc<dyn Backend> {
        self.backend()
    }

    async fn block_renewals(&self) {
        self.server.lose_requests(Question::Renew, u32::MAX);
    }

    async fn block(&self) {
        self.server.pause();
    }

    async fn unblock(&self) {
        self.server.resume();
    }

    async fn lose_acquire_answer(&self, _: &str) {
        self.server.lose_answers(Question::Acquire, 1);
    }

    async fn crash(&self) {
        self.server.forget_all();
        self.server.pause();
    }

    async fn bring_up(&self) {
        self.server.resume();
    }
}
