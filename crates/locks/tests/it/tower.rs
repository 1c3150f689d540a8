//! The layer for web services: two servers of axum with a manager each, on one Redis.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::extract::{Extension, Request};
use axum::response::Response;
use axum::routing::post;
use axum::{Router, body::Body};
use reqwest::{Client, RequestBuilder, StatusCode};
use stocklock_locks::tower::LockLayer;
use stocklock_locks::{LockBuilder, LockGuard, LockManager};
use stocklock_testkit::ports::free_port;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use crate::rig::redis::RedisRig;
use crate::rig::{Counts, Faults as _, RigExt as _, eventually, try_lock};

/// How long a test waits for what happens in any case.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the handlers of both servers do.
struct Handlers {
    /// How many handlers run now, and how many ran together at most.
    running: AtomicU32,
    most: AtomicU32,
    /// How many have ended early.
    dropped: AtomicU32,
    /// The tokens of those that have finished, added up.
    finished: AtomicU32,
    /// A handler needs a permit to finish.
    may_finish: Semaphore,
    /// How long a handler blocks its thread before it returns.
    blocks: Duration,
}

/// One running handler.
struct Running<'a>(&'a Handlers, bool);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
        let end = if self.1 {
            &self.0.finished
        } else {
            &self.0.dropped
        };
        end.fetch_add(1, Ordering::SeqCst);
    }
}

impl Handlers {
    fn new() -> Arc<Self> {
        Self::blocking(Duration::ZERO)
    }

    fn blocking(blocks: Duration) -> Arc<Self> {
        let [running, most, dropped, finished] = [(); 4].map(|()| AtomicU32::new(0));
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
    async fn handle(&self, guard: Option<Extension<Arc<LockGuard>>>) -> String {
        let together = 1 + self.running.fetch_add(1, Ordering::SeqCst);
        self.most.fetch_max(together, Ordering::SeqCst);
        let mut running = Running(self, false);
        self.may_finish.acquire().await.unwrap().forget();
        #[expect(clippy::disallowed_methods, reason = "this handler blocks its thread")]
        std::thread::sleep(self.blocks);
        running.1 = true;
        guard.map_or("free".to_owned(), |guard| guard.token().to_string())
    }

    fn count(counter: &AtomicU32) -> u32 {
        counter.load(Ordering::SeqCst)
    }

    async fn wait_until_running(&self, count: u32) {
        let running = async || Self::count(&self.running) == count;
        eventually("the handlers run", PATIENCE, running).await;
    }
}

/// The lock that the header names.
fn lock_of(locks: &LockManager, request: &Request) -> Option<LockBuilder> {
    let header = |name| request.headers().get(name)?.to_str().ok();
    let lock = locks.lock(header("lock")?);
    let wait = header("wait-ms").map_or(PATIENCE, |wait| {
        Duration::from_millis(wait.parse().unwrap())
    });
    let lock = lock.wait(wait);
    if header("no-renewal").is_none() {
        return Some(lock);
    }
    // The handler has two seconds to stop before the server grants the lock to another client.
    let lock = lock.lease(Duration::from_secs(5)).max_renewals(0);
    Some(lock.safety_margin(Duration::from_secs(2)))
}

fn layer(
    locks: LockManager,
) -> LockLayer<impl Fn(&Request) -> Option<LockBuilder> + Clone + Send + Sync + 'static, Body> {
    LockLayer::new(move |request: &Request| lock_of(&locks, request))
}

/// A server whose only route is locked.
struct Server {
    url: String,
    _running: AbortOnDropHandle<()>,
}

impl Server {
    async fn start<K>(handlers: &Arc<Handlers>, layer: LockLayer<K, Body>) -> Self
    where
        K: Fn(&Request) -> Option<LockBuilder> + Clone + Send + Sync + 'static,
    {
        let handlers = Arc::clone(handlers);
        let handler = move |guard: Option<Extension<Arc<LockGuard>>>| async move {
            handlers.handle(guard).await
        };
        let app = Router::new().route("/work", post(handler).layer(layer));
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let listener = TcpListener::bind(address).await.unwrap();
        let serve = async move { axum::serve(listener, app).await.unwrap() };
        Self {
            url: format!("http://{address}/work"),
            _running: AbortOnDropHandle::new(tokio::spawn(serve)),
        }
    }

    /// A request under the lock with this name.
    fn request(&self, lock: &str) -> RequestBuilder {
        client().post(&self.url).header("lock", lock)
    }
}

fn client() -> Client {
    let client = Client::builder().no_proxy().retry(reqwest::retry::never());
    client.build().unwrap()
}

/// The answer to a request that is sent by a task.
async fn answer(request: JoinHandle<reqwest::Result<reqwest::Response>>) -> reqwest::Response {
    let answer = timeout(PATIENCE, request).await;
    answer.expect("the server answers").unwrap().unwrap()
}

/// Two servers with a manager each.
async fn two_servers(rig: &RedisRig, handlers: &Arc<Handlers>) -> [Server; 2] {
    [
        Server::start(handlers, layer(rig.manager())).await,
        Server::start(handlers, layer(rig.manager())).await,
    ]
}

/// Requests with one key run one after the other, whichever server they reach, and each has a later
/// token. Requests with other keys, and without a key, do not wait for them.
#[tokio::test]
async fn route_is_locked_by_key_over_two_servers() {
    let rig = RedisRig::start().await;
    let handlers = Handlers::new();
    let servers = two_servers(&rig, &handlers).await;
    let mut requests = JoinSet::new();
    for number in 0..10 {
        let request = servers[number % 2].request("account:1");
        requests.spawn(async move { request.send().await.unwrap().text().await.unwrap() });
    }
    handlers.wait_until_running(1).await;
    let other = tokio::spawn(servers[0].request("account:2").send());
    handlers.wait_until_running(2).await;
    let without = tokio::spawn(client().post(&servers[1].url).send());
    handlers.wait_until_running(3).await;
    handlers.may_finish.add_permits(12);
    let tokens = requests.join_all().await;
    let mut tokens: Vec<u64> = tokens.iter().map(|token| token.parse().unwrap()).collect();
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 10);
    assert_eq!(answer(other).await.status(), StatusCode::OK);
    let free = answer(without).await.text().await.unwrap();
    assert_eq!(free, "free");
    // Those of the first key, one at a time, and the other two.
    assert_eq!(Handlers::count(&handlers.most), 3);
    assert_eq!(Handlers::count(&handlers.finished), 12);
}

/// Without a mapping of errors, a request that waits too long gets 503 and does not run. With one, it
/// gets what the mapping says.
#[tokio::test]
async fn wait_limit_answers_503_or_what_the_user_says() {
    let rig = RedisRig::start().await;
    let handlers = Handlers::new();
    let [first, second] = two_servers(&rig, &handlers).await;
    let conflict = layer(rig.manager()).on_error(|error| {
        let mut answer = Response::new(Body::from(error.to_string()));
        *answer.status_mut() = StatusCode::CONFLICT;
        answer
    });
    let third = Server::start(&handlers, conflict).await;
    let holder = tokio::spawn(first.request("a").send());
    handlers.wait_until_running(1).await;

    let refused = second.request("a").header("wait-ms", "50").send().await;
    let refused = refused.unwrap();
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused.headers()["retry-after"], "1");
    let refused = third.request("a").header("wait-ms", "50").send().await;
    let refused = refused.unwrap();
    assert_eq!(refused.status(), StatusCode::CONFLICT);
    let text = refused.text().await.unwrap();
    assert!(text.starts_with("the lock was not free within"), "{text}");
    let invalid = second.request(&"x".repeat(1_025)).send().await;
    assert_eq!(invalid.unwrap().status(), StatusCode::BAD_REQUEST);

    handlers.may_finish.add_permits(1);
    assert_eq!(answer(holder).await.status(), StatusCode::OK);
    assert_eq!(Handlers::count(&handlers.finished), 1);
    assert_eq!(Handlers::count(&handlers.dropped), 0);
}

/// The client closes its connection: the handler is dropped, and the lock is free for the other
/// server. This is not reported as a dropped guard.
#[tokio::test]
async fn lock_is_released_when_the_client_leaves() {
    let rig = RedisRig::start().await;
    let handlers = Handlers::new();
    let counts = Counts::default();
    let locks = rig.builder().hooks(counts.clone()).lease(PATIENCE).build();
    let server = Server::start(&handlers, layer(locks)).await;
    let leaving = tokio::spawn(server.request("a").send());
    handlers.wait_until_running(1).await;
    let other = rig.manager();
    assert!(try_lock(&other, "a").await.is_none());
    leaving.abort();
    let released = async || counts.released() == 1;
    eventually("the lock is released", PATIENCE / 2, released).await;
    let guard = try_lock(&other, "a").await;
    guard.expect("it is free").release().await;
    assert_eq!(Handlers::count(&handlers.dropped), 1);
    assert_eq!(counts.dropped(), 0);
}

/// The lock disappears from the server while the handler runs. The handler is dropped at its await
/// point, and the answer says that the outcome is unknown.
#[tokio::test]
async fn handler_is_dropped_when_its_lock_is_lost() {
    let rig = RedisRig::start().await;
    let handlers = Handlers::new();
    let server = Server::start(&handlers, layer(rig.manager())).await;
    let request = tokio::spawn(server.request("a").send());
    handlers.wait_until_running(1).await;
    rig.take_away("a").await;
    let answer = answer(request).await;
    assert_eq!(answer.status(), StatusCode::GATEWAY_TIMEOUT);
    assert!(answer.headers().get("retry-after").is_none());
    assert_eq!(Handlers::count(&handlers.dropped), 1);
}

/// A handler blocks its thread until the lock is lost, and returns without an await point.
#[tokio::test]
async fn handler_that_returns_after_the_loss_gets_504() {
    let rig = RedisRig::start().await;
    let handlers = Handlers::blocking(Duration::from_secs(6));
    let server = Server::start(&handlers, layer(rig.manager())).await;
    handlers.may_finish.add_permits(1);
    let request = server.request("a").header("no-renewal", "1").send();
    let answer = request.await.unwrap();
    assert_eq!(answer.status(), StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(Handlers::count(&handlers.finished), 1);
}

/// A handler that hangs keeps the lock for its lease and its renewals, here for none.
#[tokio::test]
async fn hanging_handler_loses_lock_after_max_renewals() {
    let rig = RedisRig::start().await;
    let handlers = Handlers::new();
    let [first, second] = two_servers(&rig, &handlers).await;
    let hanging = first.request("a").header("no-renewal", "1").send();
    let hanging = tokio::spawn(hanging);
    handlers.wait_until_running(1).await;
    let next = tokio::spawn(second.request("a").send());
    let lost = answer(hanging).await;
    assert_eq!(lost.status(), StatusCode::GATEWAY_TIMEOUT);
    handlers.wait_until_running(1).await;
    handlers.may_finish.add_permits(1);
    assert_eq!(answer(next).await.status(), StatusCode::OK);
    assert_eq!(Handlers::count(&handlers.most), 1);
}

/// A server of locks that is away is not an error of the handler.
#[tokio::test]
async fn request_is_refused_while_redis_is_away() {
    let rig = RedisRig::start().await;
    let handlers = Handlers::new();
    let server = Server::start(&handlers, layer(rig.manager())).await;
    rig.crash().await;
    let request = server.request("a").header("wait-ms", "200").send();
    let answer = request.await.unwrap();
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(Handlers::count(&handlers.most), 0);
}
