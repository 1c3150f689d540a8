//! Imports that are cut off or changed; their bounds.

use std::future::pending;
use std::time::Duration;

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use stocklock_testkit::eventually;
use stocklock_testkit::run::{number, rng};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::{exported, import, lines, outcomes, text, with_rows};
use crate::faults::SOON;
use crate::support::app::{TestApp, rows as table, send};
use crate::support::client::client;
use crate::support::process::Process;
use crate::support::rival::Rival;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};
use crate::support::services::fresh_database;
use crate::support::topology::Topology;

/// Rows of which each succeeds once, if they are made in their order; and what they make of the levels.
fn rows(count: u64) -> (Vec<Value>, Vec<Value>) {
    let (mut rng, mut rows) = (rng(), Vec::new());
    let mut units = [None; 40];
    for _ in 0..count {
        let level = rng.usize(..units.len());
        let sku = format!("s-{level:02}");
        let sent = rng.i64(1..100);
        let (row, after) = match units[level] {
            None => (json!({"sku": sku, "on_hand": sent, "create": true}), sent),
            Some(before) if rng.u32(..10) == 0 => {
                (json!({"sku": sku, "on_hand": sent, "from": before}), sent)
            }
            Some(before) => (json!({"sku": sku, "add": sent}), before + sent),
        };
        units[level] = Some(after);
        rows.push(row);
    }
    let level = |(level, units): (usize, &Option<i64>)| {
        json!([format!("s-{level:02}"), "main", (*units)?]).into()
    };
    let levels = units.iter().enumerate().filter_map(level);
    (rows, levels.collect())
}

/// Goal: an import that is cut off is continued by sending the file again.
///
/// Method: kill the replica after a random row, many times. Each time the file is sent from its start.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn import_killed_and_sent_again_equals_the_file(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let kills = number("TEST_IMPORT_KILLS", 3);
    let count = 1_000 + 500 * kills;
    let (rows, expected) = rows(count);
    let database = fresh_database(backend).await;
    let mut replica = Process::serving(&["serve"], &[("DATABASE_URL", &database.url)]).await;
    let (client, mut rng) = (client(), rng());
    let send = |replica: &Process| {
        let request = client.post(replica.url("/import?rows=all"));
        with_rows(request, "file", text(&rows)).send()
    };
    let mut killed = 0;
    for kill in 0..kills {
        let last = count * (kill + 1) / (kills + 1);
        let row = rng.u64(count * kill / (kills + 1)..last).max(1);
        let mut answer = send(&replica).await.expect("it answers");
        let mut seen = String::new();
        while (seen.lines().count() as u64) < row {
            let part = answer.chunk().await.expect("it still runs");
            seen += str::from_utf8(&part.expect("there are more rows")).expect("text");
        }
        // The next chunk is being made.
        sleep(Duration::from_micros(rng.u64(..20_000))).await;
        replica.kill9();
        let rest = answer.bytes().await;
        killed += u64::from(rest.is_err());
        replica.restart().await;
    }
    assert!(killed > 0, "no kill interrupted the import");
    let answer = send(&replica).await.expect("it answers").text().await;
    let answer = answer.expect("a whole answer");
    let end: Value = serde_json::from_str(answer.lines().last().expect("a line")).expect("JSON");
    let seen = json!([end["done"], end["rows"], end["failed"]]);
    assert_eq!(seen, json!([true, count, 0]));
    let levels = lines(&replica.get("/export").await);
    assert_eq!(table(&levels, &["sku", "warehouse", "on_hand"]), expected);
    for audit in lines(&replica.get("/audit").await) {
        assert_eq!(audit["warehouses"][0]["consistent"], true, "{audit}");
    }
    println!(
        "figure: {killed} of {kills} kills interrupted an import of {count} rows on {backend:?}"
    );
}

#[rstest]
#[tokio::test]
async fn changed_file_is_refused_before_its_chunk(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let app = TestApp::start(backend).await;
    let (mut rows, _) = rows(1_600);
    import(&app, "K", "", &text(&rows[..1_200])).await;
    let before = exported(&app).await;
    rows.insert(700, json!({"sku": "s-01", "add": 1}));
    let ended = import(&app, "K", "", &text(&rows)).await;
    let [end] = &ended[..] else {
        panic!("{ended:?}")
    };
    let seen = json!([end["done"], end["code"], end["failed"]]);
    assert_eq!(seen, json!([false, "file-changed", 0]));
    assert!(end["rows"].as_u64().is_some_and(|rows| rows < 701), "{end}");
    assert!(
        end["detail"]
            .as_str()
            .is_some_and(|detail| detail.contains("row 701")),
        "{end}"
    );
    assert_eq!(exported(&app).await, before);
}

/// Goal: a row that may be made later ends the import, so that it undoes no later row of its level.
///
/// Method: the level is locked until its first row is refused. The rows after it would find it free.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_that_may_be_made_later_ends_the_import(#[values(Mysql, Postgres)] backend: Backend) {
    let app = TestApp::with_flags(backend, 1, &["--wait-limit-ms=1000"]).await;
    app.set_level("a", 42).await;
    app.set_level("b", 0).await;
    let count = |units| json!({"sku": "a", "on_hand": units, "from": null});
    let mut rows = vec![count(40), count(39)];
    rows.extend(vec![json!({"sku": "b", "add": 1}); 499]);
    // In the next chunk.
    rows.push(count(38));
    let rows = text(&rows);
    let lock = "UPDATE stock SET held = held WHERE sku = 'a'";
    let rival = Rival::holding(backend, &app.database_url, lock).await;
    let letting_go = async {
        let counts = "stock_operations_total{kind=\"counted\"";
        let is_refused = async || app.counted(0, counts).await == 1;
        eventually("the first row is refused", SOON, is_refused).await;
        rival.let_go().await;
    };
    let (ended, ()) = tokio::join!(import(&app, "K", "", &rows), letting_go);
    assert_eq!(outcomes(&ended), [json!([1, 503, "contended"])]);
    let end = &ended[1];
    let seen = json!([end["done"], end["code"], end["rows"], end["failed"]]);
    assert_eq!(seen, json!([false, "contended", 1, 1]));
    let again = import(&app, "K", "", &rows).await;
    let end = json!({"done": true, "rows": 502, "replayed": 0, "failed": 0});
    assert_eq!(again, [end]);
    let audit = app.assert_consistent("a").await;
    assert_eq!(audit["on_hand"], 38);
}

/// A row that is longer than it must be, so that few rows fill the buffers of connections.
fn padded(row: &Value) -> String {
    format!("{:2000}\n", row.to_string())
}

/// nginx sends no more of a request after the head of its answer. An answer to the first rows that fail would
/// stop the import then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn import_with_failures_passes_nginx() {
    let database = fresh_database(Sqlite).await;
    let topology = Topology::up(&[
        ("DATABASE_URL", &database.url),
        ("REDIS_URL", "redis://127.0.0.1:1"),
        ("ZOOKEEPER_CONNECT", "127.0.0.1:1"),
    ])
    .await;
    let row = |number: u64| match number {
        0 => json!({"sku": "a", "on_hand": 0, "create": true}),
        number if number % 100 == 1 => json!({"sku": "absent", "add": 1}),
        _ => json!({"sku": "a", "add": 1}),
    };
    let rows: String = (0..10_000).map(|number| padded(&row(number))).collect();
    let request = client().post(topology.url("/import"));
    let answer = send(with_rows(request, "large", rows)).await;
    let end = lines(&answer).pop();
    let expected = Some(json!({"done": true, "rows": 10_000, "replayed": 0, "failed": 100}));
    assert_eq!(end, expected);
    let export = client().get(topology.url("/export"));
    assert_eq!(lines(&send(export).await)[0]["on_hand"], 9_899);
}

/// An import of which the first rows were sent.
async fn begun(replica: &Process, key: usize, rows: &str) -> TcpStream {
    let mut stream = TcpStream::connect(replica.address())
        .await
        .expect("it listens");
    let head = format!(
        "POST /import?rows=all HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\n\
         Idempotency-Key: {key}\r\nContent-Length: 1000000\r\n\r\n{rows}"
    );
    stream.write_all(head.as_bytes()).await.expect("it is sent");
    stream
}

/// Goal: an answer with all rows begins before the end of the request; imports have a bound; and an import ends
/// with its client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn import_answers_while_it_reads_and_ends_with_its_client() {
    let database = fresh_database(Sqlite).await;
    let replica = Process::serving(&["serve"], &[("DATABASE_URL", &database.url)]).await;
    replica.set_level("a", 0).await;
    let rows = text(&vec![json!({"sku": "a", "add": 1}); 500]);
    let mut open = Vec::new();
    for key in 0..8 {
        let mut stream = begun(&replica, key, &rows).await;
        let mut seen = Vec::new();
        while !seen.windows(9).any(|part| part == b"\"row\":500") {
            assert_ne!(stream.read_buf(&mut seen).await.expect("it answers"), 0);
        }
        open.push(stream);
    }
    let one_more = async || {
        let request = replica.request(Method::POST, "/import");
        send(with_rows(request, "one", rows.clone())).await
    };
    one_more().await.assert_refused_for_now("overloaded");
    drop(open);
    eventually("the imports end", SOON, async || {
        one_more().await.status == 200
    })
    .await;
    assert_eq!(replica.get("/stock/a").await.ok()["available"], 9 * 500);
}

/// Goal: a client that sends only blank lines keeps no place of an import.
#[tokio::test]
async fn blank_lines_keep_no_import_open() {
    let database = fresh_database(Sqlite).await;
    let settings = [
        ("DATABASE_URL", &*database.url),
        ("BODY_TIMEOUT_MS", "1000"),
    ];
    let replica = Process::serving(&["serve"], &settings).await;
    let mut stream = begun(&replica, 0, "").await;
    let (mut reader, mut writer) = stream.split();
    let drip = async {
        while writer.write_all(b"\n").await.is_ok() {
            sleep(Duration::from_millis(100)).await;
        }
        pending::<()>().await;
    };
    let mut seen = Vec::new();
    let end = async {
        while !String::from_utf8_lossy(&seen).contains("request-timeout") {
            assert_ne!(reader.read_buf(&mut seen).await.expect("it answers"), 0);
        }
    };
    let ends = timeout(SOON, async {
        tokio::select! { () = end => {}, () = drip => {} }
    })
    .await;
    ends.expect("the import ends");
}

/// Goal: the memory of an import does not depend on the number of its rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_does_not_grow_with_the_rows() {
    let count = number("TEST_IMPORT_ROWS", 20_000_u64);
    let skus = 10_000.min(count / 10);
    let database = fresh_database(Postgres).await;
    let replica = Process::serving(&["serve"], &[("DATABASE_URL", &database.url)]).await;
    let send_rows = async |key: &str, row: &dyn Fn(u64) -> Value, count: u64| {
        let rows: String = (0..count)
            .map(|number| row(number).to_string() + "\n")
            .collect();
        let request = replica.request(Method::POST, "/import");
        let answer = send(with_rows(request, key, rows)).await;
        let end = lines(&answer).pop();
        let expected = json!({"done": true, "rows": count, "replayed": 0, "failed": 0});
        assert_eq!(end, Some(expected));
        answer.after
    };
    let name = |number: u64| format!("sku-{}", number % skus);
    let create = |number| json!({"sku": name(number), "on_hand": 0, "create": true});
    let created = send_rows("levels", &create, skus).await;
    let before = replica.peak_memory();
    let added = send_rows(
        "rows",
        &|number| json!({"sku": name(number), "add": 1}),
        count,
    )
    .await;
    let grown = replica.peak_memory().saturating_sub(before);
    let rate = |rows: u64, after: Duration| rows as f64 / after.as_secs_f64();
    println!(
        "figure: {count} rows add units of {skus} levels: {:.0} rows/s, {} MiB more; {:.0} levels/s created",
        rate(count, added),
        grown / 1024,
        rate(skus, created)
    );
    assert!(grown < 100 * 1024, "{grown} KiB");
}
