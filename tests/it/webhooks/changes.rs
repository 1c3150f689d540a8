//! Changes of webhooks while something fails.

use reqwest::Method;
use rstest::rstest;
use serde_json::json;
use stocklock_testkit::eventually;

use super::receiver::{Does, Receiver};
use super::{LONG, ON, create, patch, secret, sell, signed};
use crate::events::has_started;
use crate::support::app::{TestApp, send};
use crate::support::rival::Raw;
use crate::support::services::Backend::{self, Mysql, Postgres};

/// Method: the change has read the webhook, and is held back until the receiver has answered 410.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_does_not_enable_a_webhook_that_has_failed(
    #[values(Mysql, Postgres)] backend: Backend,
) {
    let (proxy, app) = TestApp::proxied(backend, &ON).await;
    has_started(&app).await;
    let receiver = Receiver::start(&[Does::Answers(200), Does::Answers(410)]).await;
    let created = create(&app, json!({"url": receiver.url})).await;
    app.set_level("tea", 9).await;
    let is_sent = async || receiver.accepted().len() == 1;
    eventually("the first event arrives", LONG, is_sent).await;
    let hold = proxy.hold_request(b"UPDATE webhook SET old_secret");
    let change = patch(&app, &created.id, json!({"low_at": 1}));
    let fail = async {
        hold.held().await;
        sell(&app, 0, "tea").await;
        let path = format!("/webhooks/{}", created.id);
        let is_disabled = async || !app.get(&path).await.ok()["disabled_at"].is_null();
        eventually("it is disabled", LONG, is_disabled).await;
        hold.let_go();
    };
    let (changed, ()) = tokio::join!(change, fail);
    let changed = changed.ok();
    assert_eq!(changed["low_at"], 1);
    assert!(!changed["disabled_at"].is_null(), "{changed}");
    // `problem` stays, so the metric still counts this webhook.
    assert_eq!(changed["problem"], "status 410 Gone");
    let path = format!("/webhooks/{}", created.id);
    assert_eq!(app.get(&path).await.ok()["problem"], "status 410 Gone");
}

/// Method: the database cannot read what a request has written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_secret_is_answered_without_a_read_after_it() {
    let app = TestApp::with_flags(Postgres, 1, &ON).await;
    has_started(&app).await;
    let mut raw = Raw::connect(Postgres, &app.database_url).await;
    let receiver = Receiver::start(&[Does::Answers(204)]).await;
    let unreadable = "ALTER TABLE webhook RENAME TO stored;
        CREATE VIEW webhook AS SELECT * FROM stored WHERE 1 / (revision - 1) IS NOT NULL";
    raw.run(unreadable).await.expect("a view of the table");
    let created = create(&app, json!({"url": receiver.url})).await;
    assert_eq!(created.status, 201, "{created:?}");
    let unreadable = "DROP VIEW webhook;
        CREATE VIEW webhook AS SELECT * FROM stored WHERE 1 / (revision - 2) IS NOT NULL";
    raw.run(unreadable).await.expect("another view");
    let rotated = patch(&app, &created.id, json!({"rotate_secret": true})).await;
    assert_eq!(rotated.status, 200, "{rotated:?}");
    let readable = "DROP VIEW webhook; ALTER TABLE stored RENAME TO webhook";
    raw.run(readable).await.expect("the table again");

    let path = format!("/webhooks/{}", created.id);
    let shown = app.get(&path).await;
    for field in ["url", "cursor", "created_at"] {
        assert_eq!(created.body[field], shown.ok()[field]);
    }
    let test = app.request(0, Method::POST, &format!("{path}/test"));
    send(test).await.ok();
    let got = receiver.got().pop().expect("a message");
    let [first, second] = [&created, &rotated].map(|answer| signed(&secret(answer), &got));
    let both = format!("{second} {first}");
    assert_eq!(got.headers["webhook-signature"], both);
}
