//! Sales beside an import and beside counts: how long they take, and that none is lost.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use stocklock_testkit::run::number;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, Interval, interval, sleep};

use super::{import, lines, text, with_rows};
use crate::support::app::{TestApp, send};
use crate::support::process::Process;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};
use crate::support::services::fresh_database;
use crate::support::timing::{p99, sales_during};

/// How many rows an import sends each second, in so many parts.
const ROWS_PER_SECOND: usize = 5_000;
const PARTS_PER_SECOND: usize = 100;
/// The levels to which the rows add.
const LEVELS: usize = 1_000;
/// How often sales are measured without an import and then beside one.
const ROUNDS: usize = 4;
/// Rows of an import; `TEST_PACED_ROWS` in `make verify`. From `LARGE` on, the rate is checked.
const DEFAULT_ROWS: usize = 1_000;
const LARGE: usize = 20_000;

/// How many counts are made; `TEST_COUNTS` in `make verify`.
const DEFAULT_COUNTS: u64 = 40;
/// How many sales each second there are beside the counts.
const SALES_PER_SECOND: usize = 1_000;

/// Something that happens so many times a second. What is late is done at once.
fn pace(times_per_second: usize) -> Interval {
    interval(Duration::from_secs(1) / u32::try_from(times_per_second).expect("few"))
}

/// Sends the rows at their rate. Returns how many were made each second.
async fn import_at_its_rate(replica: &Process, key: usize, rows: usize) -> f64 {
    let row = |row| json!({"sku": format!("s-{}", row % LEVELS), "add": 1});
    let rows_sent: Vec<Value> = (0..rows).map(row).collect();
    let parts = rows_sent.chunks(ROWS_PER_SECOND / PARTS_PER_SECOND);
    let parts: Vec<String> = parts.map(text).collect();
    let length: usize = parts.iter().map(String::len).sum();
    let head = format!(
        "POST /import HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\nConnection: close\r\n\
         Idempotency-Key: file-{key}\r\nContent-Length: {length}\r\n\r\n"
    );
    let stream = TcpStream::connect(replica.address()).await;
    let mut stream = stream.expect("it listens");
    let (start, mut ticks) = (Instant::now(), pace(PARTS_PER_SECOND));
    for part in [head].iter().chain(&parts) {
        ticks.tick().await;
        let sent = stream.write_all(part.as_bytes()).await;
        sent.expect("it is sent");
    }
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer).await;
    read.expect("it answers");
    let end: Option<Value> = answer
        .lines()
        .last()
        .and_then(|end| serde_json::from_str(end).ok());
    let expected = json!({"done": true, "rows": rows, "replayed": 0, "failed": 0});
    assert_eq!(end, Some(expected), "{answer}");
    rows as f64 / start.elapsed().as_secs_f64()
}

/// Goal: sales and an import succeed beside each other, and the import keeps its rate.
///
/// How much longer the sales take is only printed: replica, database and clients share the machine.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn import_and_sales_succeed_beside_each_other(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    const SOLD: (&str, &str) = ("other", "group-commit");
    let rows = number("TEST_PACED_ROWS", DEFAULT_ROWS);
    let database = fresh_database(backend).await;
    let replica = Process::lab(&database.url, &[]).await;
    replica.set_level("other", 10_000_000).await;
    let level = |level| json!({"sku": format!("s-{level}"), "on_hand": 0, "create": true});
    let levels = text(&(0..LEVELS).map(level).collect::<Vec<_>>());
    let created = replica.request(Method::POST, "/import");
    lines(&send(with_rows(created, "levels", levels)).await);

    let alone = Duration::from_secs_f64(rows as f64 / ROWS_PER_SECOND as f64);
    let (mut usual, mut beside, mut slowest) = (Vec::new(), Vec::new(), f64::MAX);
    for round in 0..ROUNDS {
        usual.extend(sales_during(&replica, SOLD, sleep(alone)).await.0);
        let import = import_at_its_rate(&replica, round, rows);
        let (sales, rate) = sales_during(&replica, SOLD, import).await;
        beside.extend(sales);
        slowest = slowest.min(rate);
    }
    let counts = [usual.len(), beside.len()];
    let [usual, beside] = [usual, beside].map(p99);
    let ratio = beside.as_secs_f64() / usual.as_secs_f64();
    println!(
        "figure: {backend:?}, {ROUNDS} imports of {rows} rows, at least {slowest:.0} rows/s: p99 of a sale \
         {beside:.1?}, usually {usual:.1?}, ratio {ratio:.2}, of {counts:?} sales"
    );
    if rows >= LARGE {
        assert!(slowest > 0.9 * ROWS_PER_SECOND as f64, "{slowest}");
    }
}

/// Goal: a sale does not wait for the end of many rows: on SQLite a transaction of rows is small.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_of_rows_are_small_after_a_sale() {
    const ROWS: usize = 64;
    let app = TestApp::with_stock(Sqlite, 1, "hot", 1).await;
    app.deduct_all("group-commit", &json!([{"sku": "hot"}]))
        .await;
    let row = |row| json!({"sku": format!("s-{row}"), "on_hand": 0, "create": true});
    let rows = text(&(0..ROWS).map(row).collect::<Vec<_>>());
    let end = json!({"done": true, "rows": ROWS, "replayed": 0, "failed": 0});
    assert_eq!(import(&app, "levels", "", &rows).await, [end]);
    let small = app.counted(0, "batch_lines_bucket{le=\"16.0\"").await;
    let all = app.counted(0, "batch_lines_count").await;
    assert_eq!(small, all);
    assert!(all > 4, "{all}");
}

/// Goal: a count loses no sale. It is refused if a unit was sold after the units were counted.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_during_sales_lose_no_sale(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    const LINES: usize = 10;
    let counts = number("TEST_COUNTS", DEFAULT_COUNTS);
    let app = TestApp::with_stock(backend, 1, "hot", 1_000_000).await;
    let has_counted = AtomicBool::new(false);
    let counting = async {
        let (mut added, mut refused) = (0, 0);
        for count in 0_u64.. {
            if count >= counts && added > 0 && refused > 0 {
                break;
            }
            let level = app.get_json("/stock/hot").await["warehouses"][0]["on_hand"].clone();
            let units = level.as_i64().expect("units");
            // Sometimes sales have time to come between.
            sleep(Duration::from_millis(count % 2 * 20)).await;
            let row = json!({"sku": "hot", "on_hand": units + 7, "from": units}).to_string();
            let answer = import(&app, &format!("count-{count}"), "?rows=all", &row).await;
            match answer[0]["status"].as_u64() {
                Some(200) => added += 7,
                Some(412) => refused += 1,
                _ => panic!("{answer:?}"),
            }
        }
        has_counted.store(true, Relaxed);
        (added, refused)
    };
    let selling = async {
        let lines = json!(vec![json!({"sku": "hot"}); LINES]);
        let (start, mut ticks, mut sold) = (Instant::now(), pace(SALES_PER_SECOND / LINES), 0);
        while !has_counted.load(Relaxed) {
            ticks.tick().await;
            let sales = app.deduct_all("group-commit", &lines).await;
            sold += sales.iter().filter(|one| one["status"] == 200).count();
        }
        (sold, sold as f64 / start.elapsed().as_secs_f64())
    };
    let ((added, refused), (sold, rate)) = tokio::join!(counting, selling);
    let audit = app.assert_consistent("hot").await;
    let left = i64::try_from(sold).map(|sold| 1_000_000 + added - sold);
    assert_eq!(audit["on_hand"], left.expect("a small number"));
    println!(
        "figure: {sold} sales, {rate:.0} each second, {} counts made, {refused} refused on {backend:?}",
        added / 7
    );
    if counts > DEFAULT_COUNTS {
        assert!(rate > 0.9 * SALES_PER_SECOND as f64, "{rate}");
    }
}
