//! The local back end, under virtual time.

use std::future::{Ready, ready};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use stocklock_locks::backend::Backend;
use stocklock_locks::clock::{Clock, TokioClock};
use stocklock_locks::local::LocalBackend;

use super::Rig;

pub(crate) struct LocalRig {
    backend: LocalBackend,
    clock: Arc<dyn Clock>,
}

impl LocalRig {
    pub(crate) fn start() -> Ready<Self> {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
        ready(Self {
            backend: LocalBackend::with_clock(Arc::clone(&clock)),
            clock,
        })
    }
}

#[async_trait]
impl Rig for LocalRig {
    fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(self.backend.clone())
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
        self.backend.held()
    }
}
