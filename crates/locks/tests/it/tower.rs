//! The layer for web services: two services with a manager each, on one model of a lock server.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Request, Response, StatusCode};
use stocklock_locks::local::LocalBackend;
use stocklock_locks::tower::LockLayer;
use stocklock_locks::{LockBuilder, LockGuard, LockManager};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tower_layer::Layer;
use tower_service::Service;

use crate::model::{LEASE, counted, manager, server};
use crate::rig::{eventually, try_lock};

type Answer = Result<Response<String>, Infallible>;

/// What the handlers of both services do.
struct Handlers {
    /// How many handlers run now, and how many ran together at most.
    running: AtomicU32,
    most: AtomicU32,
    /// How many have ended early, and how many have finished.
    dropped: AtomicU32,
    finished: AtomicU32,
    /// A handler needs a permit to finish.
    may_finish: Semaphore,
    /// How long a handler blocks its thread before it returns.
    blocks: Duration,
}

struct Running<'a>(&'a Handlers, bool);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
        let ended = [&self.0.dropped, &self.0.finished][usize::from(self.1)];
        ended.fetch_add(1, Ordering::SeqCst);
    }
}

impl Handlers {
    fn blocking(blocks: Duration) -> Arc<Self> {
        let [running, most, dropped, finished] = [const { AtomicU32::new(0) }; 4];
        Arc::new(Self {
            running,
            most,
            dropped,
            finished,
            may_finish: Semaphore::new(0),
            blocks,
        })
    }

    /// Answers with the token of the lock, or with `free` if there is none.
    async fn handle(self: Arc<Self>, request: Request<()>) -> Answer {
        let together = 1 + self.running.fetch_add(1, Ordering::SeqCst);
        self.most.fetch_max(together, Ordering::SeqCst);
        let mut running = Running(&self, false);
        self.may_finish.acquire().await.unwrap().forget();
        #[expect(clippy::disallowed_methods, reason = "this handler blocks its thread")]
        std::thread::sleep(self.blocks);
        running.1 = true;
        let guard = request.extensions().get::<Arc<LockGuard>>();
        let token = guard.map_or("free".to_owned(), |guard| guard.token().to_string());
        Ok(Response::new(token))
    }

    /// How many have ended early, and how many have finished.
    fn ended(&self) -> (u32, u32) {
        let count = |counter: &AtomicU32| counter.load(Ordering::SeqCst);
        (count(&self.dropped), count(&self.finished))
    }

    async fn wait_until_running(&self, count: u32) {
        let running = async || self.running.load(Ordering::SeqCst) == count;
        eventually("the handlers run", LEASE, running).await;
    }
}

#[derive(Clone)]
struct Work(Arc<Handlers>);

impl Service<Request<()>> for Work {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Answer>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        Arc::clone(&self.0).handle(request).boxed()
    }
}

/// A layer that takes the lock which the header names.
fn layer(
    locks: &LockManager,
    settings: fn(LockBuilder) -> LockBuilder,
) -> LockLayer<impl Fn(&Request<()>) -> Option<LockBuilder> + Clone + use<>, String> {
    let locks = locks.clone();
    LockLayer::new(move |request: &Request<()>| {
        let name = request.headers().get("lock")?.to_str().ok()?;
        Some(settings(locks.lock(name)))
    })
}

/// Handles a request under this lock in a task.
fn send<K>(handlers: &Arc<Handlers>, layer: &LockLayer<K, String>, lock: &str) -> JoinHandle<Answer>
where
    K: Fn(&Request<()>) -> Option<LockBuilder> + Clone,
{
    let request = Request::builder().header("lock", lock).body(());
    let mut service = layer.layer(Work(Arc::clone(handlers)));
    tokio::spawn(service.call(request.unwrap()))
}

async fn answer(task: JoinHandle<Answer>) -> Response<String> {
    task.await.unwrap().unwrap()
}

/// Requests with one key run one after the other, whichever service they reach, and each has a later token.
/// Requests with other keys, and without a key, do not wait for them.
#[tokio::test(start_paused = true)]
async fn route_is_locked_by_key_over_two_services() {
    let (server, handlers) = (server(), Handlers::blocking(Duration::ZERO));
    let layers = [(); 2].map(|()| layer(&manager(&server), |lock| lock));
    let same = [0; 10].map(|_| "account:1");
    let requests = same.iter().zip(layers.iter().cycle());
    let requests: Vec<_> = requests
        .map(|(lock, layer)| send(&handlers, layer, lock))
        .collect();
    handlers.wait_until_running(1).await;
    let other = send(&handlers, &layers[0], "account:2");
    handlers.wait_until_running(2).await;
    let mut service = layers[1].layer(Work(Arc::clone(&handlers)));
    let without = tokio::spawn(service.call(Request::new(())));
    handlers.wait_until_running(3).await;
    handlers.may_finish.add_permits(12);
    let mut tokens = Vec::new();
    for request in requests {
        tokens.push(answer(request).await.into_body());
    }
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 10);
    assert_eq!(answer(other).await.status(), StatusCode::OK);
    assert_eq!(answer(without).await.body(), "free");
    // Those of the first key, one at a time, and the other two.
    assert_eq!(handlers.most.load(Ordering::SeqCst), 3);
    assert_eq!(handlers.ended(), (0, 12));
}

/// Without a mapping of errors, a request that waits too long gets 503 and does not run. With one, it gets what
/// the mapping says.
#[tokio::test(start_paused = true)]
async fn wait_limit_answers_503_or_what_the_user_says() {
    let (server, handlers) = (server(), Handlers::blocking(Duration::ZERO));
    let [one, other] = [(); 2].map(|()| manager(&server));
    let holder = send(&handlers, &layer(&one, |lock| lock), "a");
    handlers.wait_until_running(1).await;
    let short = layer(&other, |lock| lock.wait(LEASE / 100));
    let refused = answer(send(&handlers, &short, "a")).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused.headers()["retry-after"], "1");
    let conflict = short.clone().on_error(|error| {
        let mut answer = Response::new(error.to_string());
        *answer.status_mut() = StatusCode::CONFLICT;
        answer
    });
    let refused = answer(send(&handlers, &conflict, "a")).await;
    assert_eq!(refused.status(), StatusCode::CONFLICT);
    let text = refused.body();
    assert!(text.starts_with("the lock was not free within"), "{text}");
    let invalid = answer(send(&handlers, &short, &"x".repeat(1_025))).await;
    assert_eq!(invalid.status(), StatusCode::BAD_REQUEST);

    handlers.may_finish.add_permits(1);
    assert_eq!(answer(holder).await.status(), StatusCode::OK);
    assert_eq!(handlers.ended(), (0, 1));
}

/// The server drops the future of the response: the handler is dropped, and the lock is free. This is not
/// reported as a dropped guard.
#[tokio::test(start_paused = true)]
async fn lock_is_released_when_the_client_leaves() {
    let (server, handlers) = (server(), Handlers::blocking(Duration::ZERO));
    let (locks, counts) = counted(&server);
    let leaving = send(&handlers, &layer(&locks, |lock| lock), "a");
    handlers.wait_until_running(1).await;
    let other = manager(&server);
    assert!(try_lock(&other, "a").await.is_none());
    leaving.abort();
    let released = async || counts.released() == 1;
    eventually("the lock is released", LEASE / 2, released).await;
    let guard = try_lock(&other, "a").await;
    guard.expect("it is free").release().await;
    assert_eq!((handlers.ended(), counts.dropped()), ((1, 0), 0));
}

/// The lock disappears from the server while the handler runs. The handler is dropped at its await point, and
/// the answer says that the outcome is unknown.
#[tokio::test(start_paused = true)]
async fn handler_is_dropped_when_its_lock_is_lost() {
    let (server, handlers) = (server(), Handlers::blocking(Duration::ZERO));
    let request = send(&handlers, &layer(&manager(&server), |lock| lock), "a");
    handlers.wait_until_running(1).await;
    server.expire("a");
    let answer = answer(request).await;
    assert_eq!(answer.status(), StatusCode::GATEWAY_TIMEOUT);
    assert!(answer.headers().get("retry-after").is_none());
    assert_eq!(handlers.ended(), (1, 0));
}

/// A handler blocks its thread until the lock is lost, and returns without an await point.
#[tokio::test]
async fn handler_that_returns_after_the_loss_gets_504() {
    let handlers = Handlers::blocking(Duration::from_secs(1));
    let locks = LockManager::new(LocalBackend::new());
    let short = layer(&locks, |lock| {
        lock.lease(Duration::from_secs(1)).max_renewals(0)
    });
    handlers.may_finish.add_permits(1);
    let answer = answer(send(&handlers, &short, "a")).await;
    assert_eq!(answer.status(), StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(handlers.ended(), (0, 1));
}

/// A server of locks that is away is not an error of the handler.
#[tokio::test(start_paused = true)]
async fn request_is_refused_while_the_server_is_away() {
    let (server, handlers) = (server(), Handlers::blocking(Duration::ZERO));
    server.pause();
    let request = send(&handlers, &layer(&manager(&server), |lock| lock), "a");
    assert_eq!(
        answer(request).await.status(),
        StatusCode::SERVICE_UNAVAILABLE
    );
    assert_eq!(handlers.most.load(Ordering::SeqCst), 0);
}
