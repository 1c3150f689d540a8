//! The local back end, under virtual time.

use std::future::{Ready, ready};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use stocklock_locks::clock::TokioClock;
use stocklock_locks::local::LocalBackend;

use super::Rig;

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
