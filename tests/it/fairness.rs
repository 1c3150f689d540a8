//! Bounds are fair: neither reads nor the buyers of a hot SKU stop the sales of another SKU.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use reqwest::Method;
use rstest::rstest;
use serde_json::json;
use tokio::task::JoinSet;

use crate::faults::until;
use crate::support::app::{Answer, TestApp, send};
use crate::support::rival::Rival;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

/// Fewer connections than requests. A busy machine may need longer than the default limits.
const POOL: [&str; 3] = [
    "--database-pool-size=4",
    "--wait-limit-ms=8000",
    "--request-deadline-ms=20000",
];
/// More units than a test sells.
const PLENTY: i64 = 1_000_000;

async fn buy(strategy: &str, app: &TestApp, sku: &str) -> Answer {
    send(app.deduct(0, strategy, &json!({ "sku": sku }))).await
}

fn assert_succeeds_or_is_overloaded(answer: &Answer) {
    let expected = [(200, ""), (503, "overloaded")];
    assert!(expected.contains(&answer.status_and_code()), "{answer:?}");
}

/// Sells and reads `cold`, until `flood` ends or `times` times.
async fn assert_cold_sells(strategy: &str, app: &TestApp, flood: &mut JoinSet<Answer>, times: u32) {
    for _ in 0..times {
        buy(strategy, app, "cold").await.ok();
        app.get_json("/stock/cold").await;
        while let Some(ended) = flood.try_join_next() {
            ended.expect("no panic");
        }
        if flood.is_empty() {
            return;
        }
    }
}

/// Goal: the sales of a SKU continue while clients flood the service with audits of other SKUs.
///
/// Method: the proxy holds the first answer to an audit on each of four connections. If audits could
/// use the connections for sales, they would block all of them.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audits_do_not_stop_sales(#[values(Mysql, Postgres)] backend: Backend) {
    let (proxy, app) = TestApp::proxied(backend, &POOL).await;
    let audited = ["a", "b", "c", "d"];
    for sku in audited.into_iter().chain(["cold"]) {
        app.set_level(sku, PLENTY).await;
    }
    // A name of a column that only audits have.
    let holds = [(); 4].map(|()| proxy.hold_answer(b"received"));
    let mut audits = JoinSet::new();
    for sku in audited.repeat(16) {
        let path = format!("/stock/{sku}/audit");
        audits.spawn(send(app.request(0, Method::GET, &path)));
    }
    holds[0].held().await;
    assert_cold_sells("single-sql", &app, &mut audits, 20).await;
    drop(holds);
    for audit in audits.join_all().await {
        assert_succeeds_or_is_overloaded(&audit);
    }
    app.audit("a").await;
}

/// Goal: the bound on audits also holds for clients that hang up: the database still works for them.
///
/// Method: the proxy holds the answer to an audit, and its client hangs up. Audits of one SKU have one
/// connection, so the next one has to wait.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abandoned_audit_counts_until_it_is_answered(#[values(Mysql, Postgres)] backend: Backend) {
    let (proxy, app) = TestApp::proxied(backend, &["--wait-limit-ms=1000"]).await;
    app.set_level("a", PLENTY).await;
    let hold = proxy.hold_answer(b"received");
    let audit = || send(app.request(0, Method::GET, "/stock/a/audit"));
    let abandoned = tokio::spawn(audit());
    hold.held().await;
    abandoned.abort();
    audit().await.assert_is(503, "overloaded");
    hold.let_go();
    until("the next audit is answered", async || {
        audit().await.status == 200
    })
    .await;
}

/// Goal: another transaction that has locked many SKUs does not stop the sales of the others.
///
/// Method: twice as many SKUs are locked as there are connections, and each has several buyers. If all
/// connections could wait for rows, none would be left for `cold`.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_locked_skus_leave_connections_for_others(
    #[values(Mysql, Postgres)] backend: Backend,
    #[values("single-sql", "for-update", "optimistic", "group-commit")] strategy: &str,
) {
    const LOCKED: usize = 8;
    let flags = [POOL[0], "--wait-limit-ms=1000"];
    let app = TestApp::with_flags(backend, 1, &flags).await;
    let locked = (0..LOCKED).map(|number| format!("locked-{number}"));
    for sku in locked.chain(["cold".to_owned()]) {
        app.set_level(&sku, PLENTY).await;
    }
    let lock = "UPDATE stock SET held = held WHERE sku LIKE 'locked-%'";
    let holder = Rival::holding(backend, &app.database_url, lock).await;
    let mut buyers = JoinSet::new();
    for number in 0..4 * LOCKED {
        let sku = format!("locked-{}", number % LOCKED);
        buyers.spawn(send(app.deduct(0, strategy, &json!({ "sku": sku }))));
    }
    assert_cold_sells(strategy, &app, &mut buyers, u32::MAX).await;
    holder.let_go().await;
    buy(strategy, &app, "locked-0").await.ok();
}

/// Goal: a SKU with one buyer gets its turn while 256 buyers wait for two other SKUs. In the order of
/// arrival, each of the 257 buyers would get as many units as the others.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hot_skus_do_not_starve_a_third(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    const BUYERS: u32 = 128;
    const COLD_SALES: u32 = 100;
    /// How many times as much the buyer of the third SKU must get at least.
    const TIMES: f64 = 5.0;
    let app = Arc::new(TestApp::with_flags(backend, 1, &POOL).await);
    for sku in ["hot-1", "hot-2", "cold"] {
        app.set_level(sku, PLENTY).await;
    }
    let hot_sales = Arc::new(AtomicU32::new(0));
    let mut buyers = JoinSet::new();
    for number in 0..2 * BUYERS {
        let (app, hot_sales) = (Arc::clone(&app), Arc::clone(&hot_sales));
        let sku = ["hot-1", "hot-2"][number as usize % 2];
        buyers.spawn(async move {
            loop {
                let sale = buy("single-sql", &app, sku).await;
                assert_succeeds_or_is_overloaded(&sale);
                hot_sales.fetch_add(u32::from(sale.status == 200), SeqCst);
            }
        });
    }
    until("all of them buy", async || {
        hot_sales.load(SeqCst) > 2 * BUYERS
    })
    .await;
    let before = hot_sales.load(SeqCst);
    let mut cold_sales = 0;
    for _ in 0..3 * COLD_SALES {
        if cold_sales == COLD_SALES {
            break;
        }
        let sale = buy("single-sql", &app, "cold").await;
        assert_succeeds_or_is_overloaded(&sale);
        cold_sales += u32::from(sale.status == 200);
    }
    assert_eq!(cold_sales, COLD_SALES);
    let of_each = f64::from(hot_sales.load(SeqCst) - before) / f64::from(2 * BUYERS);
    let is_fair = f64::from(COLD_SALES) >= TIMES * of_each;
    assert!(is_fair, "{of_each} sales for each of the others");
    buyers.shutdown().await;
}
