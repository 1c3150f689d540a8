//! The race with stock in Redis shows which strategies are exact. Afterwards SQL and Redis have the
//! same level.

use rstest::rstest;
use serde_json::json;
use stocklock::lab::race::{Evidence, RacePlan, Report, Row, TableStyle, Verdict, run};
use stocklock::stock::Home;
use stocklock::strategy::{Strategy, Tier};

use crate::distant_race::race;
use crate::faults::Ledger;
use crate::redis_home::command;
use crate::support::app::TestApp;
use crate::support::lock_services::LockServices;
use crate::support::process::Process;
use crate::support::services::Backend;

/// All strategies for stock in Redis.
const RACING: [Strategy; 8] = [
    Strategy::NoLock,
    Strategy::LocalMutex,
    Strategy::SqlLock,
    Strategy::RedisLock,
    Strategy::Redlock,
    Strategy::ZookeeperLock,
    Strategy::RedisWatch,
    Strategy::RedisLua,
];

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn race_in_redis_finds_volatile_exact_and_catches_no_lock(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let services = LockServices::fresh().await;
    let flags = services.flags();
    let app = TestApp::with_flags(backend, 2, &flags.each_ref().map(|flag| &**flag)).await;
    let mut plan = RacePlan::new(60, 20, 4);
    plan.home = Home::Redis;
    let report = run(&plan, app.targets(), &|_| {}).await;
    let report = report.expect("the race runs");
    let ran: Vec<Strategy> = report.rows.iter().map(|row| row.strategy).collect();
    assert_eq!(ran, RACING, "{}", report.table(TableStyle::default()));
    assert!(!report.broken(), "{}", report.table(TableStyle::default()));
    for row in &report.rows {
        assert_row(row, &report);
        assert_sql_agrees(&app, row).await;
    }
    let no_lock = &report.rows[0];
    assert_eq!(
        no_lock.verdict,
        Verdict::Caught,
        "{}",
        report.table(TableStyle::default())
    );
    app.stop().await;
}

fn assert_row(row: &Row, report: &Report) {
    let table = report.table(TableStyle::default());
    assert_eq!((row.answers.failed, row.audit.pending), (0, 0), "{table}");
    if row.strategy.tier() == Tier::Unsafe {
        assert_eq!(row.tier, Tier::Unsafe, "{table}");
        assert_eq!(row.evidence.is_some(), row.audit.drift > 0, "{table}");
        let expected = matches!(row.evidence, None | Some(Evidence::LostUpdate { .. }));
        assert!(expected, "{table}");
    } else {
        assert_eq!(row.tier, Tier::Volatile, "{table}");
        assert_eq!(row.verdict, Verdict::Exact, "{table}");
        let counts = (row.answers.sold, row.answers.refused, row.audit.on_hand);
        assert_eq!(counts, (60, 20, 0), "{table}");
        assert_eq!((row.audit.sold, row.audit.drift), (60, 0), "{table}");
        // The lock alone excluded other holders: the store refused no conditional write.
        assert!(row.locks.none(), "{table}");
    }
}

/// Asserts that the ledger in SQL has the level that a replica reads from Redis.
async fn assert_sql_agrees(app: &TestApp, row: &Row) {
    let in_redis = app.get_json(&format!("/stock/{}", row.sku)).await;
    let in_redis = &in_redis["warehouses"][0];
    assert_eq!(in_redis["home"], "redis", "{in_redis}");
    let in_sql = Ledger::at(&app.database_url).audit(&row.sku).await.on_hand;
    assert_eq!(in_redis["on_hand"], in_sql, "{}", row.strategy);
    assert_eq!(row.audit.on_hand, in_sql, "{}", row.strategy);
}

#[tokio::test]
async fn race_command_in_redis_reports_the_home_and_leaves_no_keys() {
    let services = LockServices::fresh().await;
    let variables = [("REDIS_URL", services.redis_url())];
    let words = "--home redis --stock 20 --buyers 10 --orders 3 --strategy redis-watch,redis-lua";
    let (report, ended) = race(words, &variables).await;
    assert!(ended.stdout.contains("\nhome redis: "), "{}", ended.stdout);
    assert_eq!(report["plan"]["home"], "redis", "{report}");
    for row in report["rows"].as_array().expect("rows") {
        let found = (&row["tier"], &row["verdict"], &row["pending"]);
        let expected = (&json!("volatile"), &json!("exact"), &json!(0));
        assert_eq!(found, expected, "{row}");
    }
    // The ledger of the race was temporary, so the command also deletes the stock from Redis.
    let keys: Vec<String> = command(services.redis_url(), &["KEYS", "*"]).await;
    assert_eq!(keys, [""; 0]);
}

#[tokio::test]
async fn race_command_in_redis_without_redis_url_is_refused() {
    let ended = Process::run(&["race", "--home", "redis"], &[]).await;
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    assert!(ended.stderr.contains("REDIS_URL"), "{}", ended.stderr);
}
