//! Who oversells: every strategy on every database with two replicas, through the race itself.
//!
//! The safe ones must sell to the unit and agree with their ledger; the unsafe ones must be
//! *caught*, with evidence, which is how we know that this test can see an oversell at all.

use stocklock::lab::race::{Entrants, Progress, RacePlan, Report, Verdict, run};
use stocklock::strategy::{Strategy, Tier};

use crate::support::app::TestApp;
use crate::support::lock_services::LockServices;
use crate::support::services::Backend;

/// Everyone who runs where there are a Redis and a ZooKeeper.
const RACING: [Strategy; 7] = [
    Strategy::NoLock,
    Strategy::LocalMutex,
    Strategy::SingleSql,
    Strategy::ForUpdate,
    Strategy::Optimistic,
    Strategy::RedisLock,
    Strategy::ZookeeperLock,
];

async fn race(backend: Backend, replicas: u32, plan: &RacePlan) -> Report {
    race_with_flags(backend, replicas, plan, &[]).await
}

async fn race_with_flags(
    backend: Backend,
    replicas: u32,
    plan: &RacePlan,
    flags: &[&str],
) -> Report {
    let app = TestApp::with_flags(backend, replicas, flags).await;
    let report = run(plan, app.targets(), Progress::Silent)
        .await
        .expect("the race is run");
    app.stop().await;
    report
}

/// Every strategy keeps what its tier promises; what promises nothing is caught. A lock keeps the
/// others out by itself, while `optimistic` needs the condition of its write.
fn assert_told_apart(report: &Report) {
    assert!(!report.broken(), "{}", report.table());
    let strategies: Vec<Strategy> = report.rows.iter().map(|row| row.strategy).collect();
    assert_eq!(strategies, RACING, "{}", report.table());
    for row in &report.rows {
        let expected = match row.strategy.tier() {
            Tier::Unsafe => Verdict::Caught,
            Tier::Safe | Tier::Guarded | Tier::Volatile => Verdict::Exact,
        };
        assert_eq!(row.verdict, expected, "{}", report.table());
        assert_eq!(
            row.evidence.is_some(),
            expected == Verdict::Caught,
            "{}",
            report.table()
        );
        let conflicts = row.locks.refused_writes.of("version") > 0;
        assert_eq!(
            (row.locks.none(), conflicts),
            match row.strategy {
                Strategy::Optimistic => (false, true),
                _ => (true, false),
            },
            "{}",
            report.table()
        );
    }
}

#[rstest::rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn safe_strategies_sell_to_the_unit_and_unsafe_ones_are_caught(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let plan = RacePlan::new(500, 50, 12);
    let services = LockServices::fresh().await;
    let flags = services.flags();
    let flags = flags.each_ref().map(|flag| &**flag);
    assert_told_apart(&race_with_flags(backend, 2, &plan, &flags).await);
}

/// 100 units and many more buyers than connections: the sold-out path under pressure.
#[rstest::rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flash_sale_sells_exactly_what_there_is(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let mut plan = RacePlan {
        buyers: 2_000,
        connections: 128,
        ..RacePlan::seckill()
    };
    plan.strategies = "single-sql,for-update,optimistic"
        .parse()
        .expect("names of strategies");
    let report = race(backend, 2, &plan).await;
    assert!(!report.broken(), "{}", report.table());
    assert!(
        report.rows.iter().all(|row| row.sold == 100),
        "{}",
        report.table()
    );
}

/// As many orders as units: nothing can be oversold, yet the unsafe strategies lose count.
#[rstest::rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_all_can_be_served_only_drift_tells_who_lost_count(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let mut plan = RacePlan {
        orders: 10,
        stock: 500,
        buyers: 50,
        connections: 50,
        ..RacePlan::jmeter()
    };
    plan.strategies = "no-lock,single-sql,for-update,optimistic"
        .parse()
        .expect("names of strategies");
    let report = race(backend, 2, &plan).await;
    for row in &report.rows {
        let exact = row.strategy.tier() != Tier::Unsafe;
        assert_eq!(
            (row.sold, row.refused, row.oversold),
            (500, 0, 0),
            "{}",
            report.table()
        );
        assert_eq!(row.drift == 0, exact, "{}", report.table());
    }
}

/// What the mutex cannot do across processes it can do within one.
#[rstest::rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_mutex_is_exact_with_one_replica(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let mut plan = RacePlan::new(200, 40, 6);
    plan.strategies = Entrants::Only(vec![Strategy::LocalMutex]);
    let report = race(backend, 1, &plan).await;
    let row = &report.rows[0];
    assert_eq!(
        (row.sold, row.refused, row.failed),
        (200, 40, 0),
        "{}",
        report.table()
    );
    assert_eq!((row.oversold, row.drift), (0, 0), "{}", report.table());
}
