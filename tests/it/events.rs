//! `GET /events`: each change of a level once, in the order of its versions.

use std::time::Duration;

use reqwest::{Method, RequestBuilder, Response};
use rstest::rstest;
use serde_json::{Value, json};
use stocklock_testkit::eventually;
use stocklock_testkit::run::number;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::bulk::import;
use crate::support::app::{Answer, TestApp, rows, send};
use crate::support::rival::Raw;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};
use crate::support::services::{TestDatabase, fresh_database};

mod kills;
mod publisher;

/// Another replica looks through the levels every 5 s.
pub(crate) const FOUND: Duration = Duration::from_secs(30);

pub(crate) const ON: [&str; 2] = ["--events", "on"];

/// The events of a query after a cursor, when there are so many; and the cursor after them.
async fn events(app: &TestApp, query: &str, after: &str, count: usize) -> (Vec<Value>, String) {
    let (start, mut found, mut after) = (Instant::now(), Vec::new(), after.to_owned());
    while found.len() < count {
        assert!(start.elapsed() < FOUND, "{query} has only {found:?}");
        let from = if after.is_empty() { "" } else { "&after=" };
        let path = format!("/events?wait_s=1&{query}{from}{after}");
        let page = app.get(&path).await;
        found.extend(page.ok()["events"].as_array().expect("a list").clone());
        after = cursor(&page);
    }
    (found, after)
}

/// Replicas that publish, as soon as the feed has started.
async fn publishing(backend: Backend, replicas: u32) -> TestApp {
    let app = TestApp::with_flags(backend, replicas, &ON).await;
    has_started(&app).await;
    app
}

/// The head of a stream of events.
async fn send_stream(request: RequestBuilder) -> Response {
    let accepted = request.header("accept", "text/event-stream");
    let answer = accepted.send().await.expect("it answers");
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    answer
}

/// Waits until the feed has started. From then on, changes are published.
pub(crate) async fn has_started(app: &TestApp) {
    let is_ready = async || app.get("/events").await.status == 200;
    eventually("the feed starts", FOUND, is_ready).await;
}

fn cursor(page: &Answer) -> String {
    page.ok()["cursor"].as_str().expect("a cursor").to_owned()
}

/// The SKU and the version of each event.
fn names(events: &[Value]) -> Vec<String> {
    let name = |event: &Value| {
        let sku = event["sku"].as_str().expect("a SKU");
        format!("{sku} {}", event["version"])
    };
    events.iter().map(name).collect()
}

async fn sell(app: &TestApp, replica: usize, sku: &str, quantity: i64) {
    let body = json!({"sku": sku, "quantity": quantity, "reference": "order-7"});
    let answer = send(app.deduct(replica, "group-commit", &body)).await;
    answer.ok();
}

/// A replica that publishes, or does not, on a database.
async fn replica(database: &TestDatabase, is_on: bool) -> TestApp {
    let flags: &[&str] = if is_on { &ON } else { &[] };
    let app = TestApp::on(&database.url, 1, flags).await;
    if is_on {
        has_started(&app).await;
    }
    app
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_tell_what_each_change_did(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = publishing(backend, 2).await;
    app.set_level("tea", 10).await;
    sell(&app, 1, "tea", 7).await;
    let hold = json!({"lines": [{"sku": "tea", "quantity": 3}]});
    let hold = call!(app, POST "/holds", key "h", (hold) => 201).id;
    call!(app, 1 POST "/operations/{hold}/release" => 200);
    let (all, end) = events(&app, "sku=tea&low_at=3", "", 4).await;
    let fields = [
        "type",
        "version",
        "delta",
        "held_delta",
        "before",
        "available",
        "crossed",
    ];
    let expected = [
        json!(["stock.received", 1, 10, 0, 0, 10, ["replenished"]]),
        json!(["stock.deducted", 2, -7, 0, 10, 3, ["low"]]),
        json!(["stock.held", 3, 0, 3, 3, 0, ["depleted"]]),
        json!(["stock.released", 4, 0, -3, 0, 3, ["replenished"]]),
    ];
    assert_eq!(rows(&all, &fields), expected);
    assert_eq!(all[1]["reference"], "order-7");
    assert_eq!([&all[2]["hold"], &all[3]["hold"]], [&*hold; 2]);
    let operation = all[1]["operation"].as_str().expect("an id");
    assert_eq!(all[1]["id"], format!("{operation}/0"));

    let (of_type, _) = events(&app, "type=stock.held&limit=1", "", 1).await;
    assert_eq!(names(&of_type), ["tea 3"]);
    // Filters move the cursor, too.
    app.set_level("other", 1).await;
    let (after, _) = events(&app, "", &end, 1).await;
    assert_eq!(names(&after), ["other 1"]);
    let page = app.get(&format!("/events?sku=tea&after={end}")).await;
    assert_eq!(page.ok()["events"], json!([]));
    assert_ne!(cursor(&page), end);
    for wrong in [
        "type=stock.sold",
        "wait_s=31",
        "after=v1;x",
        "low_at=-1",
        "limit=0",
    ] {
        call!(app, GET "/events?{wrong}" => 422 "invalid-request");
    }
    call!(app, GET "/events?after=v1;1000" => 410 "cursor-expired");
}

/// The request waits at one replica, and the sale is made by the other one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_request_gets_the_event_of_another_replica() {
    let app = publishing(Sqlite, 2).await;
    app.set_level("tea", 10).await;
    let (_, end) = events(&app, "", "", 1).await;
    let wait = format!("/events?wait_s=30&after={end}");
    let waiting = async { send(app.request(0, Method::GET, &wait)).await };
    let selling = async {
        sleep(Duration::from_millis(300)).await;
        sell(&app, 1, "tea", 1).await;
    };
    let (page, ()) = tokio::join!(waiting, selling);
    let found = names(page.ok()["events"].as_array().expect("a list"));
    assert_eq!(found, ["tea 2"]);
    assert!(page.after < Duration::from_secs(5), "{page:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_resumes_after_the_last_event_id() {
    let app = publishing(Sqlite, 1).await;
    app.set_level("tea", 10).await;
    events(&app, "", "", 1).await;
    // One row of the feed may have several events.
    for _ in 0..3 {
        sell(&app, 0, "tea", 1).await;
    }
    let stream = async |last: Option<String>, count: usize| {
        let request = app.request(0, Method::GET, "/events");
        let request = match last {
            Some(last) => request.header("last-event-id", last),
            None => request,
        };
        let mut answer = send_stream(request).await;
        let mut text = String::new();
        while text.matches("\n\n").count() < count {
            let chunk = answer.chunk().await.expect("the stream goes on");
            text += str::from_utf8(&chunk.expect("more events")).expect("text");
        }
        let value = |line: &str, name| line.strip_prefix(name).map(str::to_owned);
        let ids: Vec<_> = text
            .lines()
            .filter_map(|line| value(line, "id: "))
            .collect();
        let data = text.lines().filter_map(|line| value(line, "data: "));
        let data: Vec<Value> = data
            .map(|data| serde_json::from_str(&data).expect("JSON"))
            .collect();
        assert!(text.contains("event: stock.deducted\n"), "{text}");
        (ids, names(&data))
    };
    let (ids, seen) = stream(None, 4).await;
    assert_eq!(seen, ["tea 1", "tea 2", "tea 3", "tea 4"]);
    for (read, id) in ids[..3].iter().enumerate() {
        let (_, seen_again) = stream(Some(id.clone()), 3 - read).await;
        assert_eq!(seen_again, seen[read + 1..]);
    }
}

/// Otherwise a client that connects again would read the same events each time, until its cursor expires.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_sends_the_position_after_events_of_others() {
    let app = publishing(Sqlite, 1).await;
    app.set_level("tea", 10).await;
    let (_, cursor) = events(&app, "", "", 1).await;
    let request = app.request(0, Method::GET, "/events?type=stock.returned");
    let mut answer = send_stream(request).await;
    let first = answer.chunk().await.expect("the stream goes on");
    assert_eq!(first.expect("a position"), format!("id: {cursor}\n\n"));
    sell(&app, 0, "tea", 1).await;
    let (_, cursor) = events(&app, "", &cursor, 1).await;
    let next = answer.chunk().await.expect("the stream goes on");
    assert_eq!(next.expect("a position"), format!("id: {cursor}\n\n"));
}

/// What is sold after an export follows its cursor.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_after_the_cursor_of_an_export_have_later_changes() {
    let app = publishing(Sqlite, 1).await;
    app.set_level("tea", 10).await;
    events(&app, "", "", 1).await;
    let export = app.get("/export").await;
    let cursor = export.headers["x-events-cursor"].to_str().expect("text");
    sell(&app, 0, "tea", 1).await;
    let (later, _) = events(&app, "", cursor, 1).await;
    assert_eq!(names(&later), ["tea 2"]);
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn switching_off_and_on_again_skips_nothing(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let database = fresh_database(backend).await;
    let off = replica(&database, false).await;
    for sku in ["a", "b"] {
        off.set_level(sku, 100).await;
    }
    sell(&off, 0, "a", 1).await;
    call!(off, GET "/events" => 404 "events-off");
    off.stop().await;

    let on = replica(&database, true).await;
    sell(&on, 0, "a", 1).await;
    on.set_level("c", 100).await;
    let (mut first, cursor) = events(&on, "", "", 2).await;
    first.sort_by_key(|event| event["sku"].to_string());
    // What was there before is not published.
    assert_eq!(names(&first), ["a 3", "c 1"]);
    // A replica that stops publishes what it has sold.
    sell(&on, 0, "b", 1).await;
    on.stop().await;

    let off = replica(&database, false).await;
    sell(&off, 0, "a", 1).await;
    sell(&off, 0, "a", 1).await;
    off.set_level("d", 100).await;
    off.stop().await;

    let on = replica(&database, true).await;
    let (mut later, end) = events(&on, "", &cursor, 4).await;
    later.sort_by_key(|event| event["sku"].to_string());
    assert_eq!(names(&later), ["a 4", "a 5", "b 2", "d 1"]);
    let (all, same_end) = events(&on, "", "", 6).await;
    assert_eq!((all.len(), same_end), (6, end));
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_expire_and_are_not_published_again(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let database = fresh_database(backend).await;
    let app = replica(&database, true).await;
    app.set_level("tea", 100).await;
    let (_, first) = events(&app, "", "", 1).await;
    sell(&app, 0, "tea", 1).await;
    let (_, second) = events(&app, "", &first, 1).await;
    sell(&app, 0, "tea", 1).await;
    events(&app, "", &second, 1).await;
    app.stop().await;
    let mut raw = Raw::connect(backend, &database.url).await;
    let age = "UPDATE feed SET published_at = published_at - 8 * 86400000 WHERE seq <= 2";
    raw.run(age).await.expect("rows become old");

    let app = replica(&database, true).await;
    let expired = async || {
        let page = app.get(&format!("/events?after={first}")).await;
        page.status_and_code() == (410, "cursor-expired")
    };
    eventually("old events are deleted", FOUND, expired).await;
    sell(&app, 0, "tea", 1).await;
    for after in ["", &second] {
        let (left, _) = events(&app, "", after, 2).await;
        assert_eq!(names(&left), ["tea 3", "tea 4"]);
    }
}

/// Another program commits a movement late. Events with later numbers are published before, and readers have gone on.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_commit_is_not_skipped(#[values(Mysql, Postgres)] backend: Backend) {
    let delay = Duration::from_secs(number("TEST_LATE_SECONDS", 1));
    let app = publishing(backend, 2).await;
    for sku in ["raw", "tea"] {
        app.set_level(sku, 1_000_000).await;
    }
    events(&app, "", "", 2).await;
    let mut raw = Raw::connect(backend, &app.database_url).await;
    raw.begin().await;
    let sale = "UPDATE stock SET on_hand = on_hand - 1, version = version + 1 WHERE sku = 'raw'";
    raw.run(sale).await.expect("the level can be changed");
    raw.record(Uuid::from_u128(1)).await;
    let (start, mut sales) = (Instant::now(), 0);
    while start.elapsed() < delay {
        sell(&app, sales, "tea", 1).await;
        sales += 1;
    }
    let (_, cursor) = events(&app, "", "", 2 + sales).await;
    raw.run("COMMIT").await.expect("it is committed");
    sell(&app, 0, "tea", 1).await;
    let (late, _) = events(&app, "sku=raw", &cursor, 1).await;
    assert_eq!(names(&late), ["raw 2"]);
}

/// A cursor that is given before all levels are looked through could skip changes.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cursor_is_given_only_after_the_start(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = publishing(backend, 1).await;
    let mut raw = Raw::connect(backend, &app.database_url).await;
    for (filled, exported, created) in [(false, 503, 503), (true, 200, 201)] {
        let state = if filled {
            "UPDATE feed_state SET filled = 1"
        } else {
            "UPDATE feed_state SET filled = 0"
        };
        raw.run(state).await.expect("the state can be set");
        let export = app.get("/export").await;
        assert_eq!(export.status, exported, "{export:?}");
        assert_eq!(export.headers.contains_key("x-events-cursor"), filled);
        let continued = app.get("/export?after=a/main").await;
        assert!(!continued.headers.contains_key("x-events-cursor"));
        let webhook = app.request(0, Method::POST, "/webhooks");
        let webhook = send(webhook.json(&json!({"url": "https://1.1.1.1/"}))).await;
        assert_eq!(webhook.status, created, "{webhook:?}");
    }
}

/// More levels change at once than one transaction publishes.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_many_levels_are_all_published(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    const LEVELS: usize = 2_500;
    let app = publishing(backend, 1).await;
    let row = |number| format!("{{\"sku\": \"s{number}\", \"on_hand\": 1, \"create\": true}}\n");
    let rows: String = (0..LEVELS).map(row).collect();
    import(&app, "many", "", &rows).await;
    let (found, _) = events(&app, "limit=1000", "", LEVELS).await;
    let mut found = names(&found);
    found.sort_unstable();
    let mut expected: Vec<_> = (0..LEVELS).map(|number| format!("s{number} 1")).collect();
    expected.sort_unstable();
    assert_eq!(found, expected);
}

/// The publisher loses its connection twelve times, one round every 250 ms.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_published_is_measured(#[values(Mysql, Postgres)] backend: Backend) {
    let (proxy, app) = TestApp::proxied(backend, &ON).await;
    has_started(&app).await;
    let cut = proxy.cut_before(b"INSERT INTO feed (", 12);
    app.set_level("a", 1).await;
    let is_behind = async || app.gauge("feed_lag_seconds").await > Some(1.0);
    eventually("the publisher is behind", FOUND, is_behind).await;
    assert_eq!(names(&events(&app, "", "", 1).await.0), ["a 1"]);
    let lag = async || app.gauge("feed_lag_seconds").await;
    let is_done = async || lag().await.is_some_and(|lag| lag < 0.5);
    eventually("the publisher has published all", FOUND, is_done).await;
    assert_eq!(cut.fired(), 12);
}
