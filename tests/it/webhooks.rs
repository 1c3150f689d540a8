//! Webhooks: every event arrives, in order, signed, whatever the receiver does.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::future::join_all;
use hmac::{Hmac, KeyInit, Mac};
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use sha2::Sha256;
use stocklock_testkit::eventually;
use tokio::time::sleep;

use crate::events::has_started;
use crate::support::app::{Answer, TestApp, send};
use crate::support::process::Process;
use crate::support::rival::Raw;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};
use crate::support::services::{Certificates, fresh_database};
use receiver::{Does, Got, Receiver, name};

mod changes;
mod receiver;

const ON: [&str; 4] = ["--events", "on", "--webhook-allow", "127.0.0.0/8"];

/// Another replica becomes the sender after the lease of a lock.
const LONG: Duration = Duration::from_mins(1);

/// Asserts that the versions of each level follow each other from `first` on.
fn assert_in_order(events: &[(String, i64)], first: i64) {
    let mut last: BTreeMap<&str, i64> = BTreeMap::new();
    for (sku, version) in events {
        let last = last.entry(sku).or_insert(first - 1);
        assert_eq!(*version, *last + 1, "{sku} in {events:?}");
        *last = *version;
    }
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
    has_started(&app).await;
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
    has_started(&app).await;
    let receiver = Receiver::start(&[Does::Hangs, Does::Answers(200)]).await;
    create(
        &app,
        json!({"url": receiver.url, "types": ["stock.received"], "low_at": 5}),
    )
    .await;
    app.set_level("tea", 9).await;
    sell(&app, 0, "tea").await;
    let lag = async || app.gauge("webhook_lag_seconds").await;
    eventually("the webhook is behind", LONG, async || {
        lag().await > Some(3.0)
    })
    .await;
    let is_complete = async || receiver.accepted().len() == 1;
    eventually("the event arrives", LONG, is_complete).await;
    eventually("the webhook has all", LONG, async || {
        lag().await == Some(0.0)
    })
    .await;
    let got = receiver.got();
    assert_eq!((got[0].id(), &got[0].body), (got[1].id(), &got[1].body));
    assert_eq!(name(&got[1].events()[0]), ("tea".to_owned(), 1));
}

fn secret(answer: &Answer) -> String {
    let secret = answer.body["secret"].as_str();
    secret.expect("a secret").to_owned()
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
    has_started(&app).await;
    let receiver = Receiver::start(&[Does::Answers(204)]).await;
    let created = create(&app, json!({"url": receiver.url})).await;
    assert_eq!(created.status, 201);
    let first = secret(&created);
    let path = format!("/webhooks/{}", created.id);
    let test = async || {
        let tested = send(app.request(0, Method::POST, &format!("{path}/test"))).await;
        let expected = json!({"delivered": true, "status": 204, "problem": null});
        assert_eq!(*tested.ok(), expected);
        let mut got = receiver.got().into_iter();
        let is_test = |got: &Got| got.body.contains("webhook.test");
        got.rfind(is_test).expect("a message")
    };
    let got = test().await;
    assert_eq!(got.headers["webhook-signature"], signed(&first, &got));
    let rotated = async || secret(&patch(&app, &created.id, json!({"rotate_secret": true})).await);
    // The receiver does not get this one.
    rotated().await;
    let mut raw = Raw::connect(Sqlite, &app.database_url).await;
    let until = raw.text(UNTIL).await;
    let second = rotated().await;
    let both = |got: &Got| format!("{} {}", signed(&second, got), signed(&first, got));
    let got = test().await;
    assert_eq!(got.headers["webhook-signature"], both(&got));
    patch(&app, &created.id, json!({"low_at": 1})).await.ok();
    let same = raw.text(UNTIL).await;
    assert_eq!(same, until, "only the first rotation counts");

    // The sender knows the last change, and signs with both; later with one, without another change.
    app.set_level("tea", 1_000_000).await;
    let sends = async |expected: &dyn Fn(&Got) -> String| {
        let is_sent = async || {
            sell(&app, 0, "tea").await;
            let mut got = receiver.got().into_iter();
            got.any(|got| {
                let revision = got.id().split('_').nth(2);
                revision == Some("4") && got.headers["webhook-signature"] == expected(&got)
            })
        };
        eventually("an event is signed so", LONG, is_sent).await;
    };
    sends(&both).await;
    let passed = raw.run("UPDATE webhook SET old_until = 0").await;
    passed.expect("a day passes");
    let got = test().await;
    assert_eq!(got.headers["webhook-signature"], signed(&second, &got));
    sends(&|got| signed(&second, got)).await;
    assert!(app.get(&path).await.ok()["secret"].is_null());

    // A rotation that is no repeat of the last one keeps the secret that the receiver has.
    let third = rotated().await;
    let passed = raw.run("UPDATE webhook SET old_until = old_until - 7200000");
    passed.await.expect("two hours pass");
    let fourth = rotated().await;
    let got = test().await;
    let both = format!("{} {}", signed(&fourth, &got), signed(&third, &got));
    assert_eq!(got.headers["webhook-signature"], both);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhook_is_disabled_and_goes_on_where_it_was() {
    let app = TestApp::with_flags(Sqlite, 2, &ON).await;
    has_started(&app).await;
    let receiver = Receiver::start(&[Does::Answers(410), Does::Answers(200)]).await;
    let created = create(&app, json!({"url": receiver.url})).await;
    let path = format!("/webhooks/{}", created.id);
    app.set_level("tea", 9).await;
    let is_disabled = async || !app.get(&path).await.ok()["disabled_at"].is_null();
    eventually("it is disabled", LONG, is_disabled).await;
    assert_eq!(app.get(&path).await.ok()["problem"], "status 410 Gone");
    // Of the replica that sends.
    let disabled = async || {
        let both = [0, 1].map(|replica| app.counted(replica, "webhooks_disabled"));
        join_all(both).await.into_iter().sum::<u64>()
    };
    let is_seen = async || disabled().await == 1;
    eventually("an alert can fire", LONG, is_seen).await;
    sell(&app, 0, "tea").await;
    patch(&app, &created.id, json!({"enabled": true}))
        .await
        .ok();
    let is_complete = async || receiver.accepted().len() == 2;
    eventually("both events arrive", LONG, is_complete).await;
    assert_in_order(&receiver.accepted(), 1);
    let is_over = async || disabled().await == 0;
    eventually("the alert is over", LONG, is_over).await;
    let deleted = send(app.request(0, Method::DELETE, &path)).await;
    assert_eq!(deleted.status, 204);
    assert_eq!(
        app.get(&path).await.status_and_code(),
        (404, "unknown-webhook")
    );

    let gone = Receiver::start(&[Does::Answers(410)]).await;
    let failed = create(&app, json!({"url": gone.url})).await;
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
    eventually("the other one has failed", LONG, is_seen).await;
    let path = format!("/webhooks/{}", failed.id);
    let deleted = send(app.request(0, Method::DELETE, &path)).await;
    assert_eq!(deleted.status, 204);
    eventually("one that a request disabled does not count", LONG, is_over).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn private_addresses_are_refused_unless_allowed() {
    let app = TestApp::with_flags(Sqlite, 1, &ON[..2]).await;
    has_started(&app).await;
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

/// The certificate must be that of the host, from an authority that the machine trusts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn https_receiver_is_verified() {
    let certificates = Certificates::create();
    let receiver = Receiver::start_https(&[Does::Answers(200)], &certificates).await;
    let by_address = receiver.url.replace("localhost", "127.0.0.1");
    for (authority, url, problem) in [
        (&certificates, &receiver.url, None),
        (&certificates, &by_address, Some("invalid peer certificate")),
        (
            &Certificates::create(),
            &receiver.url,
            Some("invalid peer certificate"),
        ),
    ] {
        let database = fresh_database(Sqlite).await;
        let ca = authority.file("ca.pem");
        let variables = [
            ("EVENTS", "on"),
            ("WEBHOOK_ALLOW", "127.0.0.1,::1"),
            ("SSL_CERT_FILE", &*ca),
        ];
        let mut process = Process::lab(&database.url, &variables).await;
        process.answers("/events").await;
        let create = process.request(Method::POST, "/webhooks");
        let created = send(create.json(&json!({ "url": url }))).await;
        let before = receiver.got().len();
        let test = format!("/webhooks/{}/test", created.id);
        let tested = send(process.request(Method::POST, &test)).await;
        let found = tested.ok()["problem"].as_str().map(str::to_owned);
        let is_expected = match (&found, problem) {
            (Some(found), Some(problem)) => found.contains(problem),
            (None, None) => true,
            _ => false,
        };
        assert!(is_expected, "{found:?} is not {problem:?} for {url}");
        assert_eq!(
            receiver.got().len() - before,
            usize::from(problem.is_none())
        );
    }
}
