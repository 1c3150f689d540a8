//! The strategies with a lock in a race: a lock that works keeps the others out by itself, one that
//! does not is told of, and then the conditional write alone is what saves the stock.

use std::time::Duration;

use rstest::rstest;
use stocklock::lab::race::{Progress, RacePlan, Report, Row, Target, Verdict, run};
use stocklock::strategy::Safeguards;
use tokio_util::task::AbortOnDropHandle;

use crate::support::app::TestApp;
use crate::support::lock_services::LockServices;
use crate::support::services::{Backend, fresh_database};

const ALL_ON: Safeguards = Safeguards {
    guard: true,
    check: true,
};
const ALL_OFF: Safeguards = Safeguards {
    guard: false,
    check: false,
};

fn plan(strategies: &str, safeguards: Safeguards) -> RacePlan {
    let mut plan = RacePlan::new(60, 20, 4);
    plan.strategies = strategies.parse().expect("names of strategies");
    plan.safeguards = safeguards;
    plan
}

async fn race(plan: &RacePlan, targets: &[Target]) -> Report {
    let report = run(plan, targets, Progress::Silent).await;
    report.expect("the race is run")
}

/// `count` replicas on the database, with locks on these services.
async fn replicas(url: &str, count: u32, services: &LockServices) -> TestApp {
    TestApp::on(url, count, &services.flags().each_ref().map(|flag| &**flag)).await
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_works_excludes_by_itself(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
    #[values(ALL_ON, ALL_OFF)] safeguards: Safeguards,
) {
    let (database, services) = tokio::join!(fresh_database(backend), LockServices::fresh());
    let app = replicas(&database.url, 2, &services).await;
    let plan = plan("redis-lock,zookeeper-lock", safeguards);
    let report = race(&plan, app.targets()).await;
    assert_eq!(report.rows.len(), 2, "{}", report.table());
    for row in &report.rows {
        assert_eq!(row.verdict, Verdict::Exact, "{}", report.table());
        assert_eq!((row.sold, row.refused), (60, 20), "{}", report.table());
        assert!(row.locks.none(), "{}", report.table());
    }
    app.stop().await;
}

/// Two replicas whose locks are on different Redis: neither keeps the other out.
async fn race_without_a_common_lock(backend: Backend, safeguards: Safeguards) -> Report {
    let database = fresh_database(backend).await;
    let (ours, theirs) = tokio::join!(LockServices::fresh(), LockServices::fresh());
    let first = replicas(&database.url, 1, &ours).await;
    let second = replicas(&database.url, 1, &theirs).await;
    let targets = [first.targets(), second.targets()].concat();
    let report = race(&plan("redis-lock", safeguards), &targets).await;
    tokio::join!(first.stop(), second.stop());
    report
}

fn only_row(report: &Report) -> &Row {
    let [row] = &report.rows[..] else {
        panic!("{}", report.table())
    };
    row
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_does_not_exclude_is_told_of_and_the_guard_saves_the_stock(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let report = race_without_a_common_lock(backend, ALL_ON).await;
    let (row, table) = (only_row(&report), report.table());
    assert_eq!(row.verdict, Verdict::Exact, "{table}");
    assert!(row.locks.refused_writes.total() > 0, "{table}");
    assert_eq!(row.locks.lost_locks.total(), 0, "{table}");
    let told = "redis-lock: the lock did not exclude by itself: writes refused: ";
    assert!(table.contains(told), "{table}");
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_guard_a_lock_that_does_not_exclude_loses_stock(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let report = race_without_a_common_lock(backend, ALL_OFF).await;
    let (row, table) = (only_row(&report), report.table());
    assert_eq!(row.verdict, Verdict::Broken, "{table}");
    assert!(row.drift > 0 && row.evidence.is_some(), "{table}");
    assert!(row.locks.none(), "{table}");
    assert!(table.contains("\nguard off: "), "{table}");
}

/// A Redis that keeps nothing for longer than a moment.
fn forgetting(url: &str) -> AbortOnDropHandle<()> {
    let client = redis::Client::open(url).expect("the URL is one");
    AbortOnDropHandle::new(tokio::spawn(async move {
        let connection = client.get_multiplexed_async_connection().await;
        let mut connection = connection.expect("Redis answers");
        loop {
            let forgotten: redis::RedisResult<()> =
                redis::cmd("FLUSHDB").query_async(&mut connection).await;
            forgotten.expect("Redis forgets");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_that_are_lost_are_told_of() {
    let (database, services) = tokio::join!(fresh_database(Backend::Sqlite), LockServices::fresh());
    let app = replicas(&database.url, 2, &services).await;
    let forgetting = forgetting(services.redis_url());
    let report = race(&plan("redis-lock", ALL_ON), app.targets()).await;
    drop(forgetting);
    let (row, table) = (only_row(&report), report.table());
    assert_eq!(row.verdict, Verdict::Exact, "{table}");
    assert!(row.locks.lost_locks.of("stolen") > 0, "{table}");
    app.stop().await;
}
