//! The race with its services a network away: safe and guarded strategies stay exact, and every
//! exchange with a service takes a round trip.

use rstest::rstest;
use serde_json::{Value, json};

use crate::commands::assert_one_line_error;
use crate::support::lock_services::LockServices;
use crate::support::process::{Ended, Process};
use crate::support::services::Backend::{self, Mysql, Postgres};
use crate::support::services::fresh_database;

const EXACT: &str = "single-sql,for-update,optimistic,group-commit,sql-lock,redis-lock,redlock,zookeeper-lock,\
     redis-watch,redis-lua";

/// Runs `stocklock race` with these words; it must succeed.
pub(crate) async fn race(words: &str, variables: &[(&str, &str)]) -> (Value, Ended) {
    let words = format!("race --json race.json {words}");
    let words: Vec<_> = words.split(' ').collect();
    let ended = Process::run(&words, variables).await;
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    let file = std::fs::read(ended.directory.path().join("race.json"));
    let report = serde_json::from_slice(&file.expect("the file")).expect("it is JSON");
    (report, ended)
}

/// The rows of the strategies that have run.
pub(crate) fn rows(report: &Value) -> Vec<&Value> {
    let runs = report["runs"].as_array().expect("runs");
    runs.iter().map(|run| &run["row"]).collect()
}

/// Asserts that these strategies raced and were exact.
fn assert_exact(report: &Value, strategies: &str, ended: &Ended) {
    let rows = rows(report);
    let raced: Vec<_> = rows.iter().map(|row| row["strategy"].as_str()).collect();
    let expected: Vec<_> = strategies.split(',').map(Some).collect();
    assert_eq!(raced, expected, "{}", ended.stdout);
    for row in rows {
        assert_eq!(row["verdict"], "exact", "{}", ended.stdout);
    }
}

/// Asserts that half of the exchanges of each row took at least `round_trips` of `rtt_ms`.
fn assert_takes(report: &Value, rtt_ms: f64, round_trips: &[(&str, f64)]) {
    let rows = rows(report);
    assert_eq!(rows.len(), round_trips.len(), "{report:#}");
    for (row, (strategy, round_trips)) in rows.iter().zip(round_trips) {
        assert_eq!(row["strategy"], *strategy);
        let p50 = row["p50_ms"].as_f64().expect("there were answers");
        assert!(p50 >= round_trips * rtt_ms, "{strategy}: {p50} ms");
    }
}

#[rstest]
#[tokio::test]
async fn race_at_one_millisecond_is_exact(#[values(Mysql, Postgres)] backend: Backend) {
    let (database, services) = tokio::join!(fresh_database(backend), LockServices::fresh());
    let [redis, masters, zookeeper] = services.variables();
    let words = format!("--rtt 1ms --stock 60 --buyers 20 --orders 4 --strategy {EXACT}");
    let database = ("DATABASE_URL", &*database.url);
    let (report, ended) = race(&words, &[database, redis, masters, zookeeper]).await;
    assert_exact(&report, EXACT, &ended);
    for row in rows(&report) {
        let counts = [&row["sold"], &row["refused"], &row["left"]];
        assert_eq!(counts, [60, 20, 0], "{}", ended.stdout);
    }
    assert_eq!(report["plan"]["plan"]["rtt_ms"], 1.0);
    let result = &report["end"]["result"];
    assert!(result["measured_rtt_ms"].as_f64() >= Some(1.0), "{report}");
    let everything = json!([
        "the SQL database",
        "Redis",
        "the Redis masters",
        "ZooKeeper"
    ]);
    assert_eq!(result["delayed"], everything);
    let expected = "rtt: the SQL database, Redis, the Redis masters and ZooKeeper a round trip of 1 ms \
                    away (measured: ";
    assert!(ended.stdout.contains(expected), "{}", ended.stdout);
    assert!(ended.stderr.contains(&expected[5..]), "{}", ended.stderr);
}

#[tokio::test]
async fn race_on_sqlite_delays_the_locks_only_and_says_so() {
    let services = LockServices::fresh().await;
    let strategies = "redis-lock,redlock,zookeeper-lock";
    let words = format!("--rtt 40ms --stock 5 --buyers 1 --orders 5 --strategy {strategies}");
    let (report, ended) = race(&words, &services.variables()).await;
    let round_trips: Vec<_> = strategies.split(',').map(|name| (name, 1.0)).collect();
    assert_takes(&report, 40.0, &round_trips);
    let delayed = json!(["Redis", "the Redis masters", "ZooKeeper"]);
    assert_eq!(report["end"]["result"]["delayed"], delayed);
    let expected = "SQLite is part of the process and is not delayed";
    assert!(ended.stdout.contains(expected), "{}", ended.stdout);
    assert!(ended.stderr.contains(expected), "{}", ended.stderr);
}

#[tokio::test]
async fn race_without_rtt_reports_none() {
    let words = "--rtt 0 --stock 4 --buyers 2 --orders 2 --strategy single-sql";
    let (report, ended) = race(words, &[]).await;
    assert_eq!(report["plan"]["plan"]["rtt_ms"], 0.0);
    for key in ["measured_rtt_ms", "delayed"] {
        let value = report["end"]["result"].get(key);
        assert_eq!(value, Some(&Value::Null), "{report:#}");
    }
    assert!(!ended.stdout.contains("round trip"), "{}", ended.stdout);
}

#[rstest]
#[case("nothing to delay", &[])]
#[case("nothing to delay", &[("DATABASE_URL", "sqlite://stock.db")])]
#[case("DATABASE_URL", &[("DATABASE_URL", "postgres:///stock?host=/run/postgresql")])]
#[case("DATABASE_URL", &[("DATABASE_URL", "mysql://a:c4n4ry@db/stock?ssl-mode=verify_identity")])]
#[case("REDIS_URL", &[("REDIS_URL", "rediss://a:c4n4ry@cache")])]
#[case("REDLOCK_URLS", &[("REDLOCK_URLS", "redis://a,redis://b,rediss://a:c4n4ry@c")])]
#[case("ZOOKEEPER_CONNECT", &[("ZOOKEEPER_CONNECT", "zoo,")])]
#[tokio::test]
async fn race_with_rtt_refuses_what_it_cannot_delay(
    #[case] named: &str,
    #[case] variables: &[(&str, &str)],
) {
    let ended = Process::run(&["race", "--rtt=1ms"], variables).await;
    assert_one_line_error(&ended, named);
    assert!(!ended.stderr.contains("c4n4ry"), "{}", ended.stderr);
}

/// A single buyer does not wait for others, so that only the round trips remain. Each deduction
/// takes one statement at least. A row lock takes two and a COMMIT; a lock service takes more. A
/// counter takes one exchange, or two with `WATCH`.
async fn deduction_takes_a_round_trip_for_each_exchange(backend: Backend) {
    let (database, services) = tokio::join!(fresh_database(backend), LockServices::fresh());
    let [redis, masters, zookeeper] = services.variables();
    let words = format!("--rtt 40ms --stock 5 --buyers 1 --orders 5 --strategy {EXACT}");
    let database = ("DATABASE_URL", &*database.url);
    let (report, _) = race(&words, &[database, redis, masters, zookeeper]).await;
    let round_trips = [
        ("single-sql", 1.0),
        ("for-update", 3.0),
        ("optimistic", 2.0),
        ("group-commit", 1.0),
        ("sql-lock", 3.0),
        ("redis-lock", 3.0),
        ("redlock", 3.0),
        ("zookeeper-lock", 3.0),
        ("redis-watch", 3.0),
        ("redis-lua", 2.0),
    ];
    assert_takes(&report, 40.0, &round_trips);
}

full! { deduction_takes_a_round_trip_for_each_exchange(backend: Backend [Mysql, Postgres]); }
