//! The in-memory model of a lock server, and the local back end, under virtual time.

use std::future::{Ready, ready};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use stocklock_locks::clock::TokioClock;
use stocklock_locks::local::LocalBackend;
use stocklock_locks::memory::{MemoryBackend, MemoryServer, Question};

use super::{Faults, NumberFaults, Rig};

pub(crate) struct MemoryRig {
    pub(crate) server: MemoryServer,
    clock: TokioClock,
}

impl MemoryRig {
    pub(crate) fn start() -> Ready<Self> {
        let clock = TokioClock::new();
        ready(Self {
            server: MemoryServer::new(clock.clone()),
            clock,
        })
    }
}

#[async_trait]
impl Rig for MemoryRig {
    const LEASE: Duration = Duration::from_secs(10);
    const MOMENT: Duration = Duration::from_millis(100);
    const SOON: Duration = Self::MOMENT;
    const STEP: Duration = Duration::from_millis(1);

    type Backend = MemoryBackend;
    type Clock = TokioClock;

    fn backend(&self) -> MemoryBackend {
        self.server.client().latency(Duration::from_millis(4))
    }

    fn clock(&self) -> TokioClock {
        self.clock.clone()
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

    fn outsider(&self) -> MemoryBackend {
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

#[async_trait]
impl NumberFaults for MemoryRig {
    async fn lose_change_answer(&self, _: i64) {
        self.server.lose_answers(Question::Change, 1);
    }
}

pub(crate) struct LocalRig {
    backend: LocalBackend,
    clock: TokioClock,
}

impl LocalRig {
    pub(crate) fn start() -> Ready<Self> {
        let clock = TokioClock::new();
        ready(Self {
            backend: LocalBackend::with_clock(Arc::new(clock.clone())),
            clock,
        })
    }
}

#[async_trait]
impl Rig for LocalRig {
    const LEASE: Duration = Duration::from_secs(10);
    const MOMENT: Duration = Duration::from_millis(100);
    const SOON: Duration = Self::MOMENT;
    const STEP: Duration = Duration::from_millis(1);

    type Backend = LocalBackend;
    type Clock = TokioClock;

    fn backend(&self) -> LocalBackend {
        self.backend.clone()
    }

    fn clock(&self) -> TokioClock {
        self.clock.clone()
    }

    async fn left(&self) -> usize {
        self.backend.held()
    }
}
