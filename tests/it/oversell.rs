//! Which strategies oversell: a race of every strategy on every database, with two replicas.
//!
//! Safe and guarded strategies must sell exactly the stock and agree with their ledger. The race
//! must catch the unsafe ones with evidence, which proves that it can detect an oversell.

use rstest::rstest;
use serde_json::json;
use stocklock::lab::race::{Evidence, RacePlan, Report, TableStyle, Verdict, run};
use stocklock::strategy::{Strategy, Tier};

use crate::support::app::TestApp;
use crate::support::lock_services::LockServices;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

async fn race(backend: Backend, replicas: u32, plan: &RacePlan, flags: &[&str]) -> Report {
    let app = TestApp::with_flags(backend, replicas, flags).await;
    let report = run(plan, app.targets(), &|_| {}).await;
    report.expect("the race runs")
}

/// A plan restricted to some strategies.
fn only(strategies: &str, mut plan: RacePlan) -> RacePlan {
    plan.strategies = strategies.parse().expect("names of strategies");
    plan
}

/// A lock prevents conflicts, while `optimistic` depends on the refused writes.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_strategy_keeps_its_promise(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
    #[values(5)] orders: usize,
) {
    // Five sixths of the orders can be sold.
    let stock = i64::try_from(50 * orders).expect("a small number") * 5 / 6;
    let plan = RacePlan::new(stock, 50, orders);
    let services = LockServices::fresh().await;
    let report = race(backend, 2, &plan, &services.flags()).await;
    let table = report.table(TableStyle::default());
    assert!(!report.broken(), "{table}");
    let raced: Vec<_> = report.rows.iter().map(|row| row.strategy.name()).collect();
    assert_eq!(raced, Strategy::names(), "{table}");
    for row in &report.rows {
        let caught = row.strategy.tier() == Tier::Unsafe;
        let expected = if caught {
            Verdict::Caught
        } else {
            Verdict::Exact
        };
        assert_eq!(row.verdict, expected, "{table}");
        assert_eq!(row.evidence.is_some(), caught, "{table}");
        let evidence = &row.evidence;
        let is_fitting = matches!(evidence, None | Some(Evidence::LostUpdate { .. }));
        assert!(is_fitting, "{table}");
        let optimistic = row.strategy == Strategy::Optimistic;
        let conflicts = row.locks.refused_writes.of("version") > 0;
        assert_eq!(conflicts, optimistic, "{table}");
        assert_eq!(row.locks.none(), !optimistic, "{table}");
    }
}

/// Orders of several lines, holds that are confirmed, and both: every unit of every SKU is sold once.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_and_holds_sell_every_sku_out(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
    #[values((3, false), (1, true), (2, true))] purchase: (usize, bool),
) {
    let (lines, holds) = purchase;
    let plan = RacePlan {
        quantity: 2,
        lines,
        holds,
        ..RacePlan::new(120, 20, 4)
    };
    let app = TestApp::with_flags(backend, 2, &[]).await;
    let report = run(&plan, app.targets(), &|_| {}).await;
    let report = report.expect("the race runs");
    let table = report.table(TableStyle::default());
    let [row] = &report.rows[..] else {
        panic!("{table}")
    };
    assert_eq!(row.strategy, Strategy::GroupCommit, "{table}");
    assert_eq!(row.verdict, Verdict::Exact, "{:?}", row.findings);
    let answers = (row.answers.sold, row.answers.refused, row.answers.failed);
    assert_eq!(answers, (60, 20, 0), "{table}");
    let mut skus: Vec<_> = row.skus.iter().map(|one| &*one.sku).collect();
    if lines == 1 {
        skus.push(&row.sku);
    }
    assert_eq!(skus.len(), lines);
    for sku in skus {
        let audit = app.audit(sku).await;
        let fields = ["sold", "on_hand", "held", "drift", "held_drift"];
        let sums = json!(fields.map(|field| &audit[field]));
        assert_eq!(sums, json!([120, 0, 0, 0, 0]));
        let held = format!("/stock/{sku}/movements?kind=held&limit=100");
        let held = app.get_json(&held).await["movements"]
            .as_array()
            .map(Vec::len);
        assert_eq!(held, Some(if holds { 60 } else { 0 }));
    }
}

/// 2,000 buyers of 100 units: most requests are refused.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flash_sale_sells_exactly_the_stock(#[values(Postgres)] backend: Backend) {
    let plan = RacePlan {
        buyers: 2_000,
        connections: Some(128),
        ..RacePlan::seckill()
    };
    let plan = only("single-sql,for-update,optimistic,group-commit", plan);
    let report = race(backend, 2, &plan, &[]).await;
    let table = report.table(TableStyle::default());
    assert!(!report.broken(), "{table}");
    for row in &report.rows {
        assert_eq!(row.answers.sold, 100, "{table}");
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_mutex_is_exact_on_one_replica(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let plan = only("local-mutex", RacePlan::new(200, 40, 6));
    let report = race(backend, 1, &plan, &[]).await;
    let (row, table) = (&report.rows[0], report.table(TableStyle::default()));
    let answers = (row.answers.sold, row.answers.refused, row.answers.failed);
    assert_eq!(answers, (200, 40, 0), "{table}");
    assert_eq!((row.audit.oversold, row.audit.drift), (0, 0), "{table}");
}

full! {
    every_strategy_keeps_its_promise(backend: Backend [Sqlite, Mysql, Postgres], orders: usize [12]);
    flash_sale_sells_exactly_the_stock(backend: Backend [Sqlite, Mysql]);
}
