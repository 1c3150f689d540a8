//! Webhooks: every event arrives, in order, signed, whatever the receiver does.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use sha2::Sha256;
use stocklock_testkit::eventually;
use tokio::net::TcpListener;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use crate::support::app::{Answer, TestApp, send};
use crate::support::process::Process;
use crate::support::rival::Raw;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};
use crate::support::services::fresh_database;

const ON: [&str; 4] = ["--events", "on", "--webhook-allow", "127.0.0.0/8"];

/// Another replica becomes the sender after the lease of a lock.
const LONG: Duration = Duration::from_mins(1);

/// A message as it came.
#[derive(Debug, Clone)]
struct Got {
    headers: HeaderMap,
    body: String,
    answered: u16,
}

impl Got {
    fn id(&self) -> &str {
        self.headers["webhook-id"].to_str().expect("text")
    }

    fn events(&self) -> Vec<Value> {
        let body: Value = serde_json::from_str(&self.body).expect("JSON");
        body["data"]["events"].as_array().expect("a list").clone()
    }
}

/// What a receiver does with its next messages; the last one is done again and again.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Does {
    Answers(u16),
    Redirects,
    /// Never answers.
    Hangs,
    /// Answers, and never sends all of the body.
    Dribbles,
}

struct Receiver {
    url: String,
    got: Arc<Mutex<Vec<Got>>>,
    _server: AbortOnDropHandle<()>,
}

type Shared = (Arc<Mutex<Vec<Got>>>, Arc<Mutex<Vec<Does>>>);

async fn receive(
    State((got, plan)): State<Shared>,
    headers: HeaderMap,
    body: Bytes,
) -> axum::response::Response {
    let does = {
        let mut plan = plan.lock().expect("the plan");
        if plan.len() > 1 {
            plan.remove(0)
        } else {
            plan[0]
        }
    };
    let status = match does {
        Does::Answers(status) => status,
        Does::Redirects => 307,
        Does::Hangs => 0,
        Does::Dribbles => 200,
    };
    got.lock().expect("the list").push(Got {
        headers,
        body: String::from_utf8(body.into()).expect("text"),
        answered: status,
    });
    if does == Does::Hangs {
        std::future::pending::<()>().await;
    }
    let body = if does == Does::Dribbles {
        let first = futures_util::stream::once(async { Ok::<_, std::io::Error>("a") });
        let rest = futures_util::stream::pending();
        axum::body::Body::from_stream(futures_util::StreamExt::chain(first, rest))
    } else {
        axum::body::Body::empty()
    };
    let answer =
        axum::http::Response::builder().status(StatusCode::from_u16(status).expect("a status"));
    answer
        .header("location", "/other")
        .body(body)
        .expect("an answer")
}

impl Receiver {
    async fn start(plan: &[Does]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound port");
        let shared: Shared = (Arc::default(), Arc::new(Mutex::new(plan.to_vec())));
        let got = Arc::clone(&shared.0);
        let routes = Router::new()
            .route("/", post(receive))
            .route("/other", post(receive));
        let serving = axum::serve(listener, routes.with_state(shared));
        let server = tokio::spawn(async move { serving.await.expect("it serves") });
        Self {
            url: format!("http://{address}/"),
            got,
            _server: AbortOnDropHandle::new(server),
        }
    }

    fn got(&self) -> Vec<Got> {
        self.got.lock().expect("the list").clone()
    }

    /// The SKUs and versions that were answered 2xx, each id once.
    fn accepted(&self) -> Vec<(String, i64)> {
        let mut ids = Vec::new();
        let mut events = Vec::new();
        for got in self.got() {
            if got.answered == 200 && !ids.contains(&got.id().to_owned()) {
                ids.push(got.id().to_owned());
                events.extend(got.events().iter().map(name));
            }
        }
        events
    }
}

fn name(event: &Value) -> (String, i64) {
    let sku = event["sku"].as_str().expect("a SKU").to_owned();
    (sku, event["version"].as_i64().expect("a version"))
}

/// Asserts that the versions of each level follow each other from `first` on.
fn assert_in_order(events: &[(String, i64)], first: i64) {
    let mut last: BTreeMap<&str, i64> = BTreeMap::new();
    for (sku, version) in events {
        let last = last.entry(sku).or_insert(first - 1);
        assert_eq!(*version, *last + 1, "{sku} in {events:?}");
        *last = *version;
    }
}

async fn started(app: &TestApp) {
    let is_ready = async || app.get("/events").await.status == 200;
    eventually("the feed starts", LONG, is_ready).await;
}

async fn create(app: &TestApp, body: Value) -> Answer {
    send(app.request(0, Method::POST, "/webhooks").json(&body)).await
}

async fn sell(app: &TestApp, replica: usize, sku: &str) {
    send(app.deduct(replica, "group-commit", &json!({ "sku": sku })))
        .await
        .ok();
}

async fn patch(app: &TestApp, id: &str, body: Value) -> Answer {
    send(
        app.request(1, Method::PATCH, &format!("/webhooks/{id}"))
            .json(&body),
    )
    .await
}

/// Fails, hangs, redirects, answers slowly, then works: all events in order, repeats with the same content.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receiver_that_fails_gets_all_events_in_order(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = TestApp::with_flags(backend, 2, &ON).await;
    started(&app).await;
    let plan = [
        Does::Answers(500),
        Does::Redirects,
        Does::Answers(200),
        Does::Dribbles,
        Does::Answers(503),
        Does::Answers(200),
    ];
    let receiver = Receiver::start(&plan).await;
    create(&app, json!({"url": receiver.url})).await;
    let skus = ["a", "b", "c"];
    for sku in skus {
        app.set_level(sku, 1_000).await;
    }
    for sale in 0..60 {
        sell(&app, sale, skus[sale % 3]).await;
        sleep(Duration::from_millis(20)).await;
    }
    let is_complete = async || receiver.accepted().len() >= 63;
    eventually("all events arrive", LONG, is_complete).await;
    let events = receiver.accepted();
    assert_eq!(events.len(), 63);
    assert_in_order(&events, 1);
    let got = receiver.got();
    assert_eq!((got[0].answered, got[1].answered), (500, 307));
    assert_eq!((got[0].id(), &got[0].body), (got[1].id(), &got[1].body));
    assert_eq!((got[0].id(), &got[0].body), (got[2].id(), &got[2].body));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receiver_that_hangs_gets_the_same_batch_again() {
    let app = TestApp::with_flags(Sqlite, 1, &ON).await;
    started(&app).await;
    let receiver = Receiver::start(&[Does::Hangs, Does::Answers(200)]).await;
    create(
        &app,
        json!({"url": receiver.url, "types": ["stock.received"], "low_at": 5}),
    )
    .await;
    app.set_level("tea", 9).await;
    sell(&app, 0, "tea").await;
    let is_complete = async || receiver.accepted().len() == 1;
    eventually("the event arrives", LONG, is_complete).await;
    let got = receiver.got();
    assert_eq!((got[0].id(), &got[0].body), (got[1].id(), &got[1].body));
    assert_eq!(name(&got[1].events()[0]), ("tea".to_owned(), 1));
}

fn signed(secret: &str, got: &Got) -> String {
    let key = STANDARD
        .decode(secret.trim_start_matches("whsec_"))
        .expect("base64");
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("a key");
    let timestamp = got.headers["webhook-timestamp"].to_str().expect("text");
    mac.update(format!("{}.{timestamp}.{}", got.id(), got.body).as_bytes());
    format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_signed_with_both_secrets_for_a_while() {
    const UNTIL: &str = "SELECT cast(old_until AS text) FROM webhook";
    let app = TestApp::with_flags(Sqlite, 2, &ON).await;
    started(&app).await;
    let receiver = Receiver::start(&[Does::Answers(204)]).await;
    let created = create(&app, json!({"url": receiver.url})).await;
    assert_eq!(created.status, 201);
    let secret = |answer: &Answer| answer.body["secret"].as_str().expect("a secret").to_owned();
    let first = secret(&created);
    let path = format!("/webhooks/{}", created.id);
    let test = async || {
        let tested = send(app.request(0, Method::POST, &format!("{path}/test"))).await;
        let expected = json!({"delivered": true, "status": 204, "problem": null});
        assert_eq!(*tested.ok(), expected);
        receiver.got().pop().expect("a message")
    };
    let got = test().await;
    assert_eq!(got.headers["webhook-signature"], signed(&first, &got));
    let second = secret(&patch(&app, &created.id, json!({"rotate_secret": true})).await);
    let got = test().await;
    let both = format!("{} {}", signed(&second, &got), signed(&first, &got));
    assert_eq!(got.headers["webhook-signature"], both);
    let mut raw = Raw::connect(Sqlite, &app.database_url).await;
    let until = raw.text(UNTIL).await;
    patch(&app, &created.id, json!({"low_at": 1})).await.ok();
    assert_eq!(raw.text(UNTIL).await, until, "only a rotation counts");
    let passed = raw.run("UPDATE webhook SET old_until = 0").await;
    passed.expect("a day passes");
    let got = test().await;
    assert_eq!(got.headers["webhook-signature"], signed(&second, &got));
    assert!(app.get(&path).await.ok()["secret"].is_null());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhook_is_disabled_and_goes_on_where_it_was() {
    let app = TestApp::with_flags(Sqlite, 2, &ON).await;
    started(&app).await;
    let receiver = Receiver::start(&[Does::Answers(410), Does::Answers(200)]).await;
    let created = create(&app, json!({"url": receiver.url})).await;
    let path = format!("/webhooks/{}", created.id);
    app.set_level("tea", 9).await;
    let is_disabled = async || !app.get(&path).await.ok()["disabled_at"].is_null();
    eventually("it is disabled", LONG, is_disabled).await;
    assert_eq!(app.get(&path).await.ok()["problem"], "status 410 Gone");
    sell(&app, 0, "tea").await;
    patch(&app, &created.id, json!({"enabled": true}))
        .await
        .ok();
    let is_complete = async || receiver.accepted().len() == 2;
    eventually("both events arrive", LONG, is_complete).await;
    assert_in_order(&receiver.accepted(), 1);
    let deleted = send(app.request(0, Method::DELETE, &path)).await;
    assert_eq!(deleted.status, 204);
    assert_eq!(
        app.get(&path).await.status_and_code(),
        (404, "unknown-webhook")
    );

    let second = create(&app, json!({"url": receiver.url})).await;
    patch(&app, &second.id, json!({"enabled": false}))
        .await
        .ok();
    sell(&app, 0, "tea").await;
    sell(&app, 0, "tea").await;
    let mut raw = Raw::connect(Sqlite, &app.database_url).await;
    let has_events = async || {
        raw.text("SELECT 'ok' FROM feed_state WHERE seq >= 3")
            .await
            .is_some()
    };
    eventually("they are published", LONG, has_events).await;
    raw.run("DELETE FROM feed")
        .await
        .expect("the events expire");
    let refused = patch(&app, &second.id, json!({"enabled": true})).await;
    assert_eq!(refused.status_and_code(), (409, "cursor-expired"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn private_addresses_are_refused_unless_allowed() {
    let app = TestApp::with_flags(Sqlite, 1, &ON[..2]).await;
    let receiver = Receiver::start(&[Does::Answers(200)]).await;
    for url in [
        &*receiver.url,
        "https://127.0.0.1/",
        "https://2130706433/",
        "https://[::ffff:a00:1]/",
    ] {
        let refused = create(&app, json!({ "url": url })).await;
        assert_eq!(refused.status_and_code(), (422, "invalid-request"), "{url}");
    }
    // The name is looked up when a message is sent.
    let port = receiver.url.rsplit(':').next().expect("a port");
    let created = create(&app, json!({"url": format!("https://localhost:{port}")})).await;
    let test = format!("/webhooks/{}/test", created.id);
    let tested = send(app.request(0, Method::POST, &test)).await;
    assert_eq!(
        tested.ok()["problem"],
        "the address of the host is not allowed"
    );
    assert!(receiver.got().is_empty());
    for wrong in [
        json!({"url": "https://a.example", "types": ["sold"]}),
        json!({"types": []}),
    ] {
        assert_eq!(create(&app, wrong).await.status, 422);
    }
}

/// The replica that sends is killed again and again.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_sender_is_replaced(#[values(Sqlite, Postgres)] backend: Backend) {
    let database = fresh_database(backend).await;
    let variables = [
        ("EVENTS", "on"),
        ("WEBHOOK_ALLOW", "127.0.0.1"),
        ("LOCK_LEASE_MS", "1000"),
    ];
    let mut first = Process::lab(&database.url, &variables).await;
    first.answers("/events").await;
    let second = Process::lab(&database.url, &variables).await;
    let receiver = Receiver::start(&[Does::Answers(200)]).await;
    let create = first.request(Method::POST, "/webhooks");
    let created = send(create.json(&json!({"url": receiver.url}))).await;
    assert_eq!(created.status, 201);
    first.set_level("tea", 1_000_000).await;
    let sell = async |at: &Process| {
        let lines: Vec<_> = (0..100).map(|_| json!({"sku": "tea"})).collect();
        let request = at.request(Method::POST, "/stock/deduct/batch");
        send(request.json(&json!({ "lines": lines }))).await.ok();
    };
    for _ in 0..3 {
        sell(&first).await;
        let is_moving = receiver.got().len();
        let moves = async || receiver.got().len() > is_moving;
        eventually("messages arrive", LONG, moves).await;
        first.kill9();
        sell(&second).await;
        first.restart().await;
    }
    let is_complete = async || receiver.accepted().len() >= 601;
    eventually("all events arrive", LONG, is_complete).await;
    assert_in_order(&receiver.accepted(), 1);
}
