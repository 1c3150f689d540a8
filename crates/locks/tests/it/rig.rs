//! Test rigs: a lock server with its clients, and the faults that a test can cause.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{BoxFuture, join_all};
use stocklock_locks::backend::{Change, Claim, Fencing, NumberKey, NumberRequest, Request};
use stocklock_locks::clock::{Clock, Moment};
use stocklock_locks::coordination::Barrier;
use stocklock_locks::metrics::{AttemptOutcome, LockHooks};
use stocklock_locks::{
    Claimant, LockBuilder, LockError, LockGuard, LockManager, LostReason, ManagerBuilder, Nonce,
    ReleaseOutcome, Token,
};
pub(crate) use stocklock_testkit::eventually;
use stocklock_testkit::proxy::{Mode, Proxy};
use stocklock_testkit::run::variable;
use stocklock_testkit::servers::PrivateServer;
use tokio::task::JoinHandle;

pub(crate) mod cluster;
pub(crate) mod memory;
pub(crate) mod redis;
pub(crate) mod redlock;
pub(crate) mod sql;
pub(crate) mod zookeeper;

tokio::task_local! {
    /// What [`RigExt::lock`] acquires: a lock, or permits that exclude their like.
    pub(crate) static CLAIM: Claim;
}

#[async_trait]
pub(crate) trait Rig: Send + Sync {
    /// The lease to test with. On ZooKeeper, three fifths of the session timeout.
    const LEASE: Duration;
    /// The maximum duration of an operation that does not have to wait, on an idle machine.
    const MOMENT: Duration;
    /// The maximum duration of such an operation on a busy machine: on a real server, it only ends a hang.
    const SOON: Duration = Duration::from_secs(10);
    /// The step by which cancel tests increase the time before a drop.
    const STEP: Duration;

    type Backend: Fencing<Token: ReadToken> + Clone;
    type Clock: Clock + Default;

    /// Creates a client. Each client stands for one process.
    fn backend(&self) -> Self::Backend;

    fn clock(&self) -> Self::Clock {
        Self::Clock::default()
    }

    /// Returns how many locks, or places in lock queues, the server knows.
    async fn left(&self) -> usize;
}

/// [`Token`], or `()` if the back end has no tokens.
pub(crate) type TokenOf<R> = <<R as Rig>::Backend as Fencing>::Token;

/// A token that a back end gives its guards, or `()`.
pub(crate) trait ReadToken: Sized {
    /// The fencing token of a guard, if there is one.
    fn read(guard: &LockGuard<Self>) -> Option<Token>;
}

impl ReadToken for Token {
    fn read(guard: &LockGuard) -> Option<Token> {
        Some(guard.token())
    }
}

impl ReadToken for () {
    fn read(_: &LockGuard<()>) -> Option<Token> {
        None
    }
}

/// A rig whose back end has fencing tokens.
pub(crate) trait TokenRig: Rig<Backend: Fencing<Token = Token>> {}

impl<R: Rig<Backend: Fencing<Token = Token>>> TokenRig for R {}

/// The faults of a rig with a server.
#[async_trait]
pub(crate) trait Faults: Rig {
    /// Removes a held lock from the server without informing its holder.
    async fn take_away(&self, name: &str);

    /// Creates a client that is not affected by blocked connections.
    fn outsider(&self) -> Self::Backend;

    /// What the connections of the other clients go through.
    fn proxies(&self) -> Vec<&Proxy> {
        Vec::new()
    }

    fn servers(&self) -> Vec<&PrivateServer> {
        Vec::new()
    }

    /// Drops all renewals of the other clients, without closing their connections.
    async fn block_renewals(&self) {
        self.block().await;
    }

    /// Stops all traffic to the server, without closing connections.
    async fn block(&self) {
        let proxies = self.proxies().into_iter();
        join_all(proxies.map(|proxy| proxy.set(Mode::Blackhole))).await;
    }

    /// Resumes the traffic, including what was on its way.
    async fn unblock(&self) {
        let proxies = self.proxies().into_iter();
        join_all(proxies.map(|proxy| proxy.set(Mode::Pass))).await;
    }

    /// Loses the answer to the next acquisition of this lock, after its execution.
    async fn lose_acquire_answer(&self, name: &str);

    async fn crash(&self) {
        self.servers().into_iter().for_each(PrivateServer::kill9);
    }

    /// Restarts the server, and waits until it answers.
    async fn bring_up(&self) {
        join_all(self.servers().into_iter().map(PrivateServer::restart)).await;
    }
}

/// A rig whose server other processes can use.
#[async_trait]
pub(crate) trait Served: Rig {
    /// The URL that the example `hold` takes.
    fn url(&self) -> String;

    /// Whether the server knows that a client waits for this lock, which another one holds.
    async fn has_waiter(&self, _name: &str) -> bool {
        self.left().await == 2
    }
}

/// The faults of a rig whose server has numbers.
#[async_trait]
pub(crate) trait NumberFaults: Faults + TokenRig {
    /// Loses the answer to the next change that makes a number this one, after its execution.
    async fn lose_change_answer(&self, number: i64);
}

pub(crate) trait RigExt: Rig + Sized {
    /// Creates a manager with the clock and lease of the rig.
    fn manager(&self) -> LockManager<TokenOf<Self>> {
        self.builder().build()
    }

    /// Starts to describe an acquisition of [`CLAIM`].
    fn lock(&self, manager: &LockManager<TokenOf<Self>>, name: &str) -> LockBuilder<TokenOf<Self>> {
        match CLAIM.get() {
            Claim::Permits { take, of } => manager.permits(name, take, of),
            _ => manager.lock(name),
        }
    }

    fn counted(&self) -> (LockManager<TokenOf<Self>>, Counts) {
        let counts = Counts::default();
        (self.builder().hooks(counts.clone()).build(), counts)
    }

    fn builder(&self) -> ManagerBuilder<TokenOf<Self>> {
        self.builder_for(self.backend())
    }

    fn builder_for(&self, backend: Self::Backend) -> ManagerBuilder<TokenOf<Self>> {
        let builder = LockManager::builder(backend).clock(self.clock());
        builder.lease(Self::LEASE)
    }

    /// Creates a manager that is not affected by blocked connections.
    fn past_the_proxy(&self) -> LockManager<TokenOf<Self>>
    where
        Self: Faults,
    {
        self.builder_for(self.outsider()).build()
    }

    fn lease(&self) -> Duration {
        Self::LEASE
    }

    /// A bound for what takes so many leases.
    fn leases(&self, count: u32) -> Duration {
        Self::LEASE * count + self.soon()
    }

    fn moment(&self) -> Duration {
        Self::MOMENT
    }

    /// The bound for an operation that does not have to wait; the exact one if `TEST_TIMES` is set.
    fn soon(&self) -> Duration {
        match variable("TEST_TIMES") {
            Some(_) => Self::MOMENT,
            None => Self::SOON,
        }
    }

    fn step(&self) -> Duration {
        Self::STEP
    }

    fn now(&self) -> Moment {
        self.clock().now()
    }

    /// The fencing token of a guard, if this back end has tokens.
    fn token(&self, guard: &LockGuard<TokenOf<Self>>) -> Option<Token> {
        ReadToken::read(guard)
    }

    /// Checks that tokens grow, if this back end has tokens.
    fn assert_grows(&self, last: Option<Token>, next: &LockGuard<TokenOf<Self>>) {
        let next = self.token(next);
        assert_eq!(last.is_some(), next.is_some());
        assert!(last.is_none() || last < next, "{last:?} before {next:?}");
    }
}

impl<R: Rig> RigExt for R {}

/// A clock that is ahead of another one.
#[derive(Debug)]
pub(crate) struct Ahead<C>(pub(crate) C, pub(crate) Duration);

impl<C: Clock> Clock for Ahead<C> {
    fn now(&self) -> Moment {
        self.0.now() + self.1
    }

    fn sleep_until(&self, moment: Moment) -> BoxFuture<'static, ()> {
        let passed = moment.since_start().saturating_sub(self.1);
        self.0.sleep_until(Moment::after_start(passed))
    }
}

#[derive(Debug, Default, Clone)]
pub(crate) struct Counts(Arc<[AtomicU64; 7]>);

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident = $index:literal;)*) => {
        $($(#[$doc])* pub(crate) fn $name(&self) -> u64 {
            self.0[$index].load(Ordering::SeqCst)
        })*
    };
}

impl Counts {
    counters! {
        attempts = 0;
        dropped = 1;
        lost = 2;
        renewals = 3;
        released = 4;
        /// Requests to renew locks that were not answered, at least for some of them.
        unanswered = 5;
        /// Attempts that the server did not answer, or refused.
        failed = 6;
    }

    fn add(&self, which: usize) {
        self.0[which].fetch_add(1, Ordering::SeqCst);
    }
}

impl LockHooks for Counts {
    fn attempted(&self, _: &'static str, outcome: AttemptOutcome) {
        self.add(0);
        if outcome == AttemptOutcome::Failed {
            self.add(6);
        }
    }
    fn guard_dropped(&self, _: &'static str) {
        self.add(1);
    }
    fn lost(&self, _: &'static str, _: Duration, _: LostReason) {
        self.add(2);
    }
    fn renewed(&self, _: usize, _: Duration, answered: bool) {
        self.add(if answered { 3 } else { 5 });
    }
    fn released(&self, _: &'static str, _: Duration) {
        self.add(4);
    }
}

/// Waits until the server knows no lock and no queue place.
pub(crate) async fn wait_until_nothing_is_left(rig: &impl Rig, within: Duration) {
    wait_until_left(rig, 0, within).await;
}

/// Waits until the server knows this many locks and queue places.
pub(crate) async fn wait_until_left(rig: &impl Rig, expected: usize, within: Duration) {
    let what = format!("the server knows {expected} locks and places");
    eventually(&what, within, async || rig.left().await == expected).await;
}

pub(crate) async fn use_lock<T>(manager: &LockManager<T>, name: &str) {
    manager.lock(name).acquire().await.unwrap().release().await;
}

pub(crate) async fn try_lock<T>(manager: &LockManager<T>, name: &str) -> Option<LockGuard<T>> {
    manager.lock(name).try_acquire().await.unwrap()
}

pub(crate) async fn hand_over<T>(
    guard: LockGuard<T>,
    waiter: JoinHandle<Result<LockGuard<T>, LockError>>,
) {
    guard.release().await;
    waiter.await.unwrap().unwrap().release().await;
}

/// Acquires and releases a lock. Returns the source of its token.
pub(crate) async fn source_of(manager: &LockManager, name: &str) -> String {
    let guard = manager.lock(name).acquire().await.unwrap();
    let source = guard.source().to_owned();
    guard.release().await;
    source
}

/// The only holder of a lock, as the server shows it.
pub(crate) async fn holder<T>(lock: LockBuilder<T>) -> Claimant {
    let mut view = lock.inspect().await.unwrap();
    assert_eq!(view.holders.len(), 1, "{view:?}");
    view.holders.remove(0)
}

/// Takes a lock away from its only holder. Returns the nonce of the holder.
pub(crate) async fn revoke_holder<T>(lock: LockBuilder<T>) -> Nonce {
    let nonce = holder(lock.clone()).await.nonce;
    assert!(lock.revoke(nonce).await.unwrap());
    nonce
}

/// Two processes use a barrier once.
pub(crate) async fn meet(one: &LockManager, other: &LockManager, name: &str) {
    meet_at(&one.barrier(name, 2), &other.barrier(name, 2)).await;
}

pub(crate) async fn meet_at(one: &Barrier, other: &Barrier) {
    const LONG: Duration = Duration::from_mins(1);
    let (first, second) = tokio::join!(one.enter(LONG), other.enter(LONG));
    let (first, second) = tokio::join!(first.unwrap().leave(LONG), second.unwrap().leave(LONG));
    first.and(second).unwrap();
}

pub(crate) fn request(name: &str, lease: Duration) -> Request {
    Request {
        name: name.into(),
        nonce: Nonce::random(),
        lease,
        claim: Claim::Exclusive,
    }
}

pub(crate) fn loss(outcome: ReleaseOutcome) -> Option<LostReason> {
    match outcome {
        ReleaseOutcome::AlreadyLost { reason, .. } => Some(reason),
        _ => None,
    }
}

/// A request to change the number with this name.
pub(crate) fn change(name: &str, change: Change) -> NumberRequest {
    let name = name.into();
    let kind = "number";
    NumberRequest::new(NumberKey { kind, name }, change, None)
}

pub(crate) fn lost_reason(error: &LockError) -> Option<LostReason> {
    match error {
        LockError::Lost { reason } => Some(*reason),
        _ => None,
    }
}
