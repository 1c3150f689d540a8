//! Changes of webhooks while something fails.

use reqwest::Method;
use serde_json::json;

use super::receiver::{Does, Receiver};
use super::{ON, create, patch, secret, signed, started};
use crate::support::app::{TestApp, send};
use crate::support::rival::Raw;
use crate::support::services::Backend::Postgres;

/// Method: the database cannot read what a request has written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_secret_is_answered_without_a_read_after_it() {
    let app = TestApp::with_flags(Postgres, 1, &ON).await;
    started(&app).await;
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
