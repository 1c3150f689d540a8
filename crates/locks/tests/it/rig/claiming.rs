//! A rig whose cases acquire another claim than a lock.

use std::time::Duration;

use async_trait::async_trait;
use stocklock_locks::{LockBuilder, LockManager};

use super::{Faults, Rig, TokenOf};

/// Starts to describe a claim that excludes its like.
type Claim<R> = fn(&LockManager<TokenOf<R>>, &str) -> LockBuilder<TokenOf<R>>;

pub(crate) struct Claiming<R: Rig> {
    rig: R,
    claim: Claim<R>,
}

impl<R: Rig> Claiming<R> {
    pub(crate) async fn start(rig: impl Future<Output = R>, claim: Claim<R>) -> Self {
        let rig = rig.await;
        Self { rig, claim }
    }
}

#[async_trait]
impl<R: Rig> Rig for Claiming<R> {
    const LEASE: Duration = R::LEASE;
    const MOMENT: Duration = R::MOMENT;
    const SOON: Duration = R::SOON;
    const STEP: Duration = R::STEP;

    type Backend = R::Backend;
    type Clock = R::Clock;

    fn backend(&self) -> R::Backend {
        self.rig.backend()
    }

    fn clock(&self) -> R::Clock {
        self.rig.clock()
    }

    fn lock(&self, manager: &LockManager<TokenOf<Self>>, name: &str) -> LockBuilder<TokenOf<Self>> {
        (self.claim)(manager, name)
    }

    async fn left(&self) -> usize {
        self.rig.left().await
    }
}

/// Its faults are those of a lock. A case that takes a lock away by its name on the server needs a lock.
#[async_trait]
impl<R: Faults> Faults for Claiming<R> {
    async fn take_away(&self, name: &str) {
        self.rig.take_away(name).await;
    }

    fn outsider(&self) -> R::Backend {
        self.rig.outsider()
    }

    async fn block_renewals(&self) {
        self.rig.block_renewals().await;
    }

    async fn block(&self) {
        self.rig.block().await;
    }

    async fn unblock(&self) {
        self.rig.unblock().await;
    }

    async fn lose_acquire_answer(&self, name: &str) {
        self.rig.lose_acquire_answer(name).await;
    }

    async fn crash(&self) {
        self.rig.crash().await;
    }

    async fn bring_up(&self) {
        self.rig.bring_up().await;
    }
}
