//! The lock strategies in a race. A lock that works excludes others; the report says if one did
//! not, and then the conditional write alone prevents an oversell.

use std::time::Duration;

use rstest::rstest;
use stocklock::lab::race::{RacePlan, Report, Row, TableStyle, Target, Verdict, run};
use stocklock_testkit::run::variable;
use tokio_util::task::AbortOnDropHandle;

use crate::support::app::TestApp;
use crate::support::lock_services::LockServices;
use crate::support::services::{Backend, connect_to_redis, fresh_database};

/// 80 orders of 60 units. With `TEST_RACE=full`, 6,000 orders of 5,000 units.
fn plan() -> RacePlan {
    match variable("TEST_RACE").as_deref() {
        Some("full") => RacePlan::new(5_000, 100, 60),
        _ => RacePlan::new(60, 20, 4),
    }
}

/// Races with both safeguards (conditional write and local check), or without them.
async fn race(strategies: &str, safeguards: bool, targets: &[Target]) -> Report {
    let mut plan = plan();
    plan.strategies = strategies.parse().expect("names of strategies");
    (plan.guard, plan.check) = (safeguards, safeguards);
    let report = run(&plan, targets, &|_| {}).await;
    report.expect("the race runs")
}

/// Replicas on the database with locks on these services.
async fn replicas(url: &str, count: u32, services: &LockServices) -> TestApp {
    TestApp::on(url, count, &services.flags()).await
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn working_lock_excludes_without_the_safeguards(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
    #[values(3, 5)] masters: usize,
) {
    let services = LockServices::with_masters(masters);
    let (database, services) = tokio::join!(fresh_database(backend), services);
    let app = replicas(&database.url, 2, &services).await;
    let strategies = "sql-lock,redis-lock,redlock,zookeeper-lock";
    let report = race(strategies, false, app.targets()).await;
    let table = report.table(TableStyle::default());
    assert!(table.contains("\nguard off: "), "{table}");
    assert_eq!(report.rows.len(), 4, "{table}");
    // Each lock excluded other holders by itself: no lock was lost, and no write refused.
    for row in &report.rows {
        assert_eq!(row.verdict, Verdict::Exact, "{table}");
        let answers = (row.answers.sold, row.answers.refused);
        let (stock, orders) = (plan().stock, plan().total_orders());
        assert_eq!(answers, (stock, orders - stock), "{table}");
        assert!(row.locks.none(), "{table}");
    }
}

fn only_row(report: &Report) -> &Row {
    let [row] = &report.rows[..] else {
        panic!("{}", report.table(TableStyle::default()))
    };
    row
}

/// The locks of the two replicas are on different Redis servers, so that neither excludes the other.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guard_is_exact_and_reported_if_the_lock_does_not_exclude(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let database = fresh_database(backend).await;
    let (one, other) = tokio::join!(LockServices::fresh(), LockServices::fresh());
    let first = replicas(&database.url, 1, &one).await;
    let second = replicas(&database.url, 1, &other).await;
    let targets = [first.targets(), second.targets()].concat();
    let report = race("redis-lock", true, &targets).await;
    let (row, table) = (only_row(&report), report.table(TableStyle::default()));
    assert_eq!(row.verdict, Verdict::Exact, "{table}");
    assert!(row.locks.refused_writes.total() > 0, "{table}");
    assert_eq!(row.locks.lost_locks.total(), 0, "{table}");
    let expected = "redis-lock: the lock did not exclude by itself: writes refused: ";
    assert!(table.contains(expected), "{table}");
}

/// Lets a Redis lose everything every two milliseconds.
fn keep_flushing(url: &str) -> AbortOnDropHandle<()> {
    let url = url.to_owned();
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut connection = connect_to_redis(&url).await.expect("Redis answers");
        loop {
            let flushed = redis::cmd("FLUSHDB").exec_async(&mut connection).await;
            flushed.expect("Redis answers");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_locks_are_reported_as_stolen() {
    let (database, services) = tokio::join!(fresh_database(Backend::Sqlite), LockServices::fresh());
    let app = replicas(&database.url, 2, &services).await;
    let flushing = keep_flushing(services.redis_url());
    let report = race("redis-lock", true, app.targets()).await;
    drop(flushing);
    let (row, table) = (only_row(&report), report.table(TableStyle::default()));
    assert_eq!(row.verdict, Verdict::Exact, "{table}");
    assert!(row.locks.lost_locks.of("stolen") > 0, "{table}");
}
