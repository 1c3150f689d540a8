//! The rounds of the publisher.

use stocklock_testkit::eventually;
use tokio::time::Instant;

use super::{FOUND, ON, events, has_started, replica, sell};
use crate::support::app::TestApp;
use crate::support::proxy::Proxy;
use crate::support::rival::Raw;
use crate::support::services::Backend::Postgres;
use crate::support::services::fresh_database;

/// Goal: a round ends although changes keep coming.
///
/// Method: a level changes while a round publishes another one. The lag counts from the start of a round.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_during_a_round_is_left_to_the_next_one() {
    const PUBLISH: &[u8] = b"INSERT INTO feed (";
    let (proxy, app) = TestApp::proxied(Postgres, &ON).await;
    has_started(&app).await;
    for sku in ["a", "b"] {
        app.set_level(sku, 9).await;
    }
    events(&app, "", "", 2).await;
    let first = proxy.hold_request(PUBLISH);
    sell(&app, 0, "a", 1).await;
    first.held().await;
    sell(&app, 0, "b", 1).await;
    let second = proxy.hold_request(PUBLISH);
    let is_behind = async || app.gauge("feed_lag_seconds").await > Some(0.5);
    eventually("the first round takes long", FOUND, is_behind).await;
    let end = Instant::now();
    first.let_go();
    second.held().await;
    let lag = app.gauge("feed_lag_seconds").await;
    let since = end.elapsed().as_secs_f64();
    assert!(
        lag.is_some_and(|lag| lag < since),
        "{lag:?}, {since} s after the first round"
    );
}

/// Goal: new events do not wait until many old ones are deleted.
///
/// Method: a level changes while the first step deletes. It is an event when the second step begins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_published_while_old_ones_are_deleted() {
    let database = fresh_database(Postgres).await;
    let app = replica(&database, true).await;
    app.set_level("tea", 9).await;
    events(&app, "", "", 1).await;
    app.stop().await;
    let mut raw = Raw::connect(Postgres, &database.url).await;
    let old = "INSERT INTO feed (seq, sku, warehouse, first_version, last_version, published_at)
            SELECT 7 + n, 'old', 'main', n, n, 0 FROM generate_series(1, 20000) AS n;
        UPDATE feed_state SET seq = 20007";
    raw.run(old).await.expect("old events");

    let (proxy, url) = Proxy::before(&database.url).await;
    let first = proxy.hold_request(b"DELETE FROM feed");
    let app = TestApp::on(&url, 1, &ON).await;
    first.held().await;
    // The statement is prepared then: its message has only the number of the last row. That of the first step is 5006.
    let second = proxy.hold_request(&10_006_i64.to_be_bytes());
    sell(&app, 0, "tea", 1).await;
    first.let_go();
    second.held().await;
    let event = "SELECT 'yes' FROM feed WHERE sku = 'tea' AND last_version = 2";
    assert!(raw.text(event).await.is_some(), "it waits for the deletion");
}
