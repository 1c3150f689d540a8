//! The race of stock that lives in Redis: who is exact there, and that SQL agrees with it to the unit
//! afterwards.

use rstest::rstest;
use serde_json::{Value, json};
use sqlx::{Connection, MySqlConnection, PgConnection, SqliteConnection};
use stocklock::lab::race::{Evidence, Progress, RacePlan, Report, Row, Verdict, run};
use stocklock::stock::Home;
use stocklock::strategy::{Strategy, Tier};

use crate::support::app::TestApp;
use crate::support::lock_services::LockServices;
use crate::support::process::Process;
use crate::support::services::Backend;

/// Everyone who works on stock in Redis.
const RACING: [Strategy; 6] = [
    Strategy::NoLock,
    Strategy::LocalMutex,
    Strategy::RedisLock,
    Strategy::ZookeeperLock,
    Strategy::RedisWatch,
    Strategy::RedisLua,
];

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_redis_who_promises_is_exact_and_who_does_not_is_caught(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let services = LockServices::fresh().await;
    let flags = services.flags();
    let app = TestApp::with_flags(backend, 2, &flags.each_ref().map(|flag| &**flag)).await;
    let mut plan = RacePlan::new(60, 20, 4);
    plan.home = Home::Redis;
    let report = run(&plan, app.targets(), Progress::Silent).await;
    let report = report.expect("the race is run");
    let ran: Vec<Strategy> = report.rows.iter().map(|row| row.strategy).collect();
    assert_eq!(ran, RACING, "{}", report.table());
    assert!(!report.broken(), "{}", report.table());
    for row in &report.rows {
        assert_is_told_apart(row, &report);
        assert_mirrored(backend, &app, row).await;
    }
    let caught = &report.rows[0];
    assert_eq!(caught.verdict, Verdict::Caught, "{}", report.table());
    app.stop().await;
}

fn assert_is_told_apart(row: &Row, report: &Report) {
    let table = report.table();
    assert_eq!((row.failed, row.pending), (0, 0), "{table}");
    if row.strategy.tier() == Tier::Unsafe {
        assert_eq!(row.tier, Tier::Unsafe, "{table}");
        assert_eq!(row.evidence.is_some(), row.drift > 0, "{table}");
        if let Some(evidence) = &row.evidence {
            let found = matches!(evidence, Evidence::LostUpdate { .. });
            assert!(found, "{table}");
        }
    } else {
        assert_eq!(row.tier, Tier::Volatile, "{table}");
        assert_eq!(row.verdict, Verdict::Exact, "{table}");
        assert_eq!((row.sold, row.refused, row.left), (60, 20, 0), "{table}");
        assert_eq!((row.ledger_sold, row.drift), (60, 0), "{table}");
        // The lock alone kept the others out.
        assert!(row.locks.none(), "{table}");
    }
}

/// What every replica says of the level, and Redis with it, is what SQL has of it.
async fn assert_mirrored(backend: Backend, app: &TestApp, row: &Row) {
    let in_redis = app.get_json(&format!("/stock/{}", row.sku)).await;
    let in_redis = &in_redis["warehouses"][0];
    assert_eq!(in_redis["home"], "redis", "{in_redis}");
    let in_sql = on_hand(backend, &app.database_url, &row.sku).await;
    assert_eq!(in_redis["on_hand"], in_sql, "{}", row.strategy);
    assert_eq!(row.left, in_sql, "{}", row.strategy);
}

/// The SKU's row in SQL, past the service.
async fn on_hand(backend: Backend, url: &str, sku: &str) -> i64 {
    const ON_HAND: &str = "SELECT on_hand FROM stock WHERE sku = ?";
    let answer = match backend {
        Backend::Sqlite => {
            let mut connection = SqliteConnection::connect(url).await.expect("a connection");
            let query = sqlx::query_scalar(ON_HAND).bind(sku);
            query.fetch_one(&mut connection).await
        }
        Backend::Mysql => {
            let mut connection = MySqlConnection::connect(url).await.expect("a connection");
            let query = sqlx::query_scalar(ON_HAND).bind(sku);
            query.fetch_one(&mut connection).await
        }
        Backend::Postgres => {
            let mut connection = PgConnection::connect(url).await.expect("a connection");
            let query = sqlx::query_scalar("SELECT on_hand FROM stock WHERE sku = $1").bind(sku);
            query.fetch_one(&mut connection).await
        }
    };
    answer.expect("the row is there")
}

#[tokio::test]
async fn the_command_races_in_redis_and_names_the_home() {
    let services = LockServices::fresh().await;
    let variables = [("REDIS_URL", services.redis_url())];
    let words = "race --home redis --stock 20 --buyers 10 --orders 3 --json race.json \
                 --strategy redis-watch,redis-lua";
    let words: Vec<_> = words.split_whitespace().collect();
    let ended = Process::run(&words, &variables).await;
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.contains("\nhome redis: "), "{}", ended.stdout);
    let file = std::fs::read(ended.directory.path().join("race.json"));
    let report: Value = serde_json::from_slice(&file.expect("the file")).expect("it is JSON");
    assert_eq!(report["plan"]["home"], "redis", "{report}");
    for row in report["rows"].as_array().expect("the rows") {
        assert_eq!(
            (&row["tier"], &row["verdict"], &row["pending"]),
            (&json!("volatile"), &json!("exact"), &json!(0)),
            "{row}"
        );
    }
    // Its ledger was a temporary one: nobody will ever ask for that stock again.
    let client = redis::Client::open(services.redis_url()).expect("the URL is one");
    let connection = client.get_multiplexed_async_connection().await;
    let mut connection = connection.expect("Redis lets the test in");
    let mut keys = redis::cmd("KEYS");
    let keys = keys.arg("*").query_async(&mut connection).await;
    let keys: Vec<String> = keys.expect("an answer");
    assert_eq!(keys, [""; 0]);
}

#[tokio::test]
async fn a_race_in_a_redis_that_nobody_named_is_refused_in_one_line() {
    let ended = Process::run(&["race", "--home", "redis"], &[]).await;
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    assert!(ended.stderr.contains("REDIS_URL"), "{}", ended.stderr);
}
