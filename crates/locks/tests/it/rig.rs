//! What the contract runs on: a lock server, its clients, and what can be done to both.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use stocklock_locks::backend::Backend;
use stocklock_locks::clock::{Clock, Moment};
use stocklock_locks::metrics::LockHooks;
use stocklock_locks::{LockManager, LostReason, ManagerBuilder};
pub(crate) use stocklock_testkit::eventually;

pub(crate) mod local;
pub(crate) mod memory;
pub(crate) mod redis;
pub(crate) mod zookeeper;

/// A lock server for one test, and its clients.
#[async_trait]
pub(crate) trait Rig: Send + Sync {
    /// A client, as another process would be.
    fn backend(&self) -> Arc<dyn Backend>;

    /// The clock that the rig's time runs on.
    fn clock(&self) -> Arc<dyn Clock>;

    /// The lease to test with; where sessions are what expires, their time-out.
    fn lease(&self) -> Duration;

    /// How long something may take that needs no waiting.
    fn moment(&self) -> Duration;

    /// The step in which a cancelled future's time grows.
    fn step(&self) -> Duration;

    /// How many locks, or places in a queue for one, the server knows.
    async fn left(&self) -> usize;
}

/// What can be done to a rig with a server.
#[async_trait]
pub(crate) trait Faults: Rig {
    /// Ends a held lock on the server, without telling its holder.
    async fn take_away(&self, name: &str);

    /// Why the holder then says that it was lost.
    fn taken_away_is(&self) -> LostReason {
        LostReason::Stolen
    }

    /// A client that no blockade reaches.
    fn outsider(&self) -> Arc<dyn Backend>;

    /// No renewal of the others reaches the server any more, and no connection tells.
    async fn block_renewals(&self);

    /// Nothing reaches the server any more, and no connection tells.
    async fn block(&self);

    /// It does again, with what was on its way.
    async fn unblock(&self);

    /// The answer to the next acquisition, of this lock, is lost once it has been carried out.
    async fn lose_acquire_answer(&self, name: &str);

    /// The server crashes.
    async fn crash(&self);

    /// It comes back, and answers.
    async fn bring_up(&self);
}

/// Extra constructors over a rig.
pub(crate) trait RigExt: Rig {
    /// A manager of its own, with the rig's clock and lease.
    fn manager(&self) -> LockManager {
        self.builder().build()
    }

    fn builder(&self) -> ManagerBuilder {
        LockManager::builder(Shared(self.backend()))
            .clock(Shared(self.clock()))
            .lease(self.lease())
    }

    /// A manager that no blockade reaches.
    fn past_the_proxy(&self) -> LockManager
    where
        Self: Faults,
    {
        LockManager::builder(Shared(self.outsider()))
            .clock(Shared(self.clock()))
            .lease(self.lease())
            .build()
    }

    fn now(&self) -> Moment {
        self.clock().now()
    }
}

impl<R: Rig + ?Sized> RigExt for R {}

/// Lets what is already shared be passed where an owned one is expected.
#[derive(Debug)]
pub(crate) struct Shared<T: ?Sized>(pub(crate) Arc<T>);

impl Clock for Shared<dyn Clock> {
    fn now(&self) -> Moment {
        self.0.now()
    }

    fn sleep_until(&self, moment: Moment) -> BoxFuture<'static, ()> {
        self.0.sleep_until(moment)
    }
}

#[async_trait]
impl Backend for Shared<dyn Backend> {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn response_limit(&self) -> Duration {
        self.0.response_limit()
    }
    fn contender(
        &self,
        request: stocklock_locks::backend::Request,
    ) -> Box<dyn stocklock_locks::backend::Contender> {
        self.0.contender(request)
    }
    async fn renew(
        &self,
        renewals: &[stocklock_locks::backend::Renewal],
    ) -> Result<Vec<stocklock_locks::backend::Renewed>, stocklock_locks::BackendError> {
        self.0.renew(renewals).await
    }
    async fn release(
        &self,
        name: &str,
        nonce: stocklock_locks::Nonce,
    ) -> Result<stocklock_locks::backend::Release, stocklock_locks::BackendError> {
        self.0.release(name, nonce).await
    }
    async fn verify(
        &self,
        name: &str,
        nonce: stocklock_locks::Nonce,
    ) -> Result<bool, stocklock_locks::BackendError> {
        self.0.verify(name, nonce).await
    }
    fn kept_for(&self, lease: Duration) -> Duration {
        self.0.kept_for(lease)
    }
    async fn ping(&self) -> Result<(), stocklock_locks::BackendError> {
        self.0.ping().await
    }
    fn attach(&self, nudge: stocklock_locks::backend::Nudge) {
        self.0.attach(nudge);
    }
    async fn close(&self) {
        self.0.close().await;
    }
}

/// A clock that is ahead of another.
#[derive(Debug)]
pub(crate) struct Ahead(pub(crate) Arc<dyn Clock>, pub(crate) Duration);

impl Clock for Ahead {
    fn now(&self) -> Moment {
        self.0.now() + self.1
    }

    fn sleep_until(&self, moment: Moment) -> BoxFuture<'static, ()> {
        let passed = moment.since_start().saturating_sub(self.1);
        self.0.sleep_until(Moment::after_start(passed))
    }
}

/// Counts what a manager tells.
#[derive(Debug, Default, Clone)]
pub(crate) struct Counts(Arc<[AtomicU64; 5]>);

impl Counts {
    pub(crate) fn attempts(&self) -> u64 {
        self.0[0].load(Ordering::SeqCst)
    }
    pub(crate) fn dropped(&self) -> u64 {
        self.0[1].load(Ordering::SeqCst)
    }
    pub(crate) fn lost(&self) -> u64 {
        self.0[2].load(Ordering::SeqCst)
    }
    pub(crate) fn renewals(&self) -> u64 {
        self.0[3].load(Ordering::SeqCst)
    }
    pub(crate) fn released(&self) -> u64 {
        self.0[4].load(Ordering::SeqCst)
    }
    fn add(&self, which: usize) {
        self.0[which].fetch_add(1, Ordering::SeqCst);
    }
}

impl LockHooks for Counts {
    fn attempted(&self, _: &'static str, _: stocklock_locks::metrics::AttemptOutcome) {
        self.add(0);
    }
    fn guard_dropped(&self, _: &'static str) {
        self.add(1);
    }
    fn lost(&self, _: &'static str, _: Duration, _: LostReason) {
        self.add(2);
    }
    fn renewed(&self, _: usize, _: Duration, _: bool) {
        self.add(3);
    }
    fn released(&self, _: &'static str, _: Duration) {
        self.add(4);
    }
}
