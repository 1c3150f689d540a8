//! Checkpoints: audits that use them equal the sum of all movements, with any number of writers.

use std::sync::Arc;

use rstest::rstest;
use stocklock::ports::{AttemptOutcome, StoreError};
use stocklock::stock::Audit;
use stocklock_testkit::eventually;
use tokio::task::JoinSet;

use super::fixture::{
    Fixture, Raw, SOON, adjustment, deduction, level_change_in, name, open_waiting,
};
use crate::support::app::TestApp;
use crate::support::seeded_ledger::Seeded;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

async fn number(raw: &mut Raw, value: &str, rows: &str) -> i64 {
    // PostgreSQL adds spaces up to the length.
    let query = format!("SELECT cast({value} AS char(20)) FROM {rows}");
    let text = raw.text(query.leak()).await.expect("one row");
    text.trim().parse().expect("a number")
}

/// `(received, sold)` of all movements of each warehouse of a SKU.
async fn full_sums(raw: &mut Raw, sku: &str, warehouses: &[&str]) -> Vec<(i64, i64)> {
    let mut sums = Vec::new();
    for warehouse in warehouses {
        let rows = format!("movement WHERE sku = '{sku}' AND warehouse = '{warehouse}'");
        let received = "sum(CASE WHEN kind = 'deducted' THEN 0 ELSE delta END)";
        let sold = "sum(CASE WHEN kind = 'deducted' THEN -delta ELSE 0 END)";
        let received = number(raw, received, &rows).await;
        sums.push((received, number(raw, sold, &rows).await));
    }
    sums
}

fn sums(audits: &[Audit]) -> Vec<(i64, i64)> {
    audits.iter().map(|one| (one.received, one.sold)).collect()
}

/// How many levels have a checkpoint, and the sum of their versions.
async fn checkpoints(raw: &mut Raw) -> (i64, i64) {
    let levels = number(raw, "count(*)", "checkpoint").await;
    let versions = number(raw, "coalesce(sum(level_version), 0)", "checkpoint").await;
    (levels, versions)
}

#[rstest]
#[tokio::test]
async fn audit_of_100_000_movements_equals_the_full_sum(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let (fixture, mut raw) = Fixture::with_raw(backend).await;
    for (operations, warehouse, movements) in [(1, "east", 30_000), (2, "main", 70_000)] {
        fixture.set(level_change_in(warehouse, "a", 1000)).await;
        let seeded = Seeded {
            warehouse,
            operations,
            ..Seeded::of("a", movements)
        };
        seeded.insert(&mut raw).await;
    }
    // The first audit takes seconds on a busy machine.
    let patient = open_waiting(&fixture.url, 4, SOON);
    let audit = async || patient.audit(&name("a")).await.unwrap();
    let full = full_sums(&mut raw, "a", &["east", "main"]).await;
    assert_eq!(sums(&audit().await), full);

    patient.write_due().await.unwrap();

    assert_eq!(checkpoints(&mut raw).await, (2, 100_000));
    let audits = audit().await;
    assert_eq!(sums(&audits), full);
    assert!(audits.iter().all(Audit::consistent), "{audits:?}");

    // A changed row shows that the audit does not read the movements before a checkpoint.
    raw.run("UPDATE movement SET delta = delta - 1 WHERE level_version = 500")
        .await
        .unwrap();
    assert_eq!(sums(&audit().await), full);
    fixture.store.write(&adjustment("a", -3)).await.unwrap();
    let audits = audit().await;
    assert!(audits.iter().all(Audit::consistent), "{audits:?}");
}

/// For example because an operator has changed the level by hand.
#[rstest]
#[tokio::test]
async fn versions_without_movements_stop_no_checkpoint(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let (fixture, mut raw) = Fixture::with_raw(backend).await;
    fixture.put("a", 50).await;
    let by_hand = "UPDATE stock SET version = version + 30000";
    raw.run(by_hand).await.unwrap();
    fixture.store.write_due().await.unwrap();
    assert_eq!(checkpoints(&mut raw).await, (1, 30_000));
    fixture.store.write(&adjustment("a", -3)).await.unwrap();
    assert!(fixture.audit("a").await.consistent());
}

/// Sales, several writers of checkpoints, and audits at the same time.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audits_stay_exact_while_checkpoints_move(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let fixture = Arc::new(Fixture::new(backend).await);
    fixture.put("a", 1_000_000).await;
    let mut tasks = JoinSet::new();
    for seller in 0..4_u32 {
        let fixture = Arc::clone(&fixture);
        tasks.spawn(async move {
            for sale in 0..400 {
                let sale = deduction("a", 1 + (sale + seller) % 3);
                let sold = loop {
                    match fixture.store.deduct(&sale).await {
                        // A busy machine: it waited too long, and sold nothing.
                        Ok(AttemptOutcome::Conflict)
                        | Err(StoreError::Exhausted | StoreError::LockWait(_)) => {}
                        sold => break sold.unwrap(),
                    }
                };
                assert!(matches!(sold, AttemptOutcome::Deducted { .. }), "{sold:?}");
            }
        });
    }
    let mut raw = Raw::connect(backend, &fixture.url).await;
    while !tasks.is_empty() {
        let (written, again) = tokio::join!(fixture.store.write_due(), fixture.store.write_due());
        assert!(written.is_ok() && again.is_ok(), "{written:?} {again:?}");
        let [audit] = &fixture.store.audit(&name("a")).await.unwrap()[..] else {
            panic!("one warehouse");
        };
        assert_eq!((audit.drift(), audit.oversold()), (0, 0), "{audit:?}");
        while let Some(ended) = tasks.try_join_next() {
            ended.unwrap();
        }
    }
    assert!(fixture.audit("a").await.consistent());
    fixture.store.write_due().await.unwrap();
    let (levels, version) = checkpoints(&mut raw).await;
    assert_eq!(levels, 1);
    assert!((602..=1601).contains(&version), "{version}");
    let audit = fixture.audit("a").await;
    assert!(audit.consistent());
    assert_eq!(sums(&[audit]), full_sums(&mut raw, "a", &["main"]).await);
}

/// Every replica writes checkpoints in the background.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_writes_checkpoints(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let (fixture, mut raw) = Fixture::with_raw(backend).await;
    fixture.put("a", 50).await;
    Seeded::of("a", 25_000).insert(&mut raw).await;
    let app = TestApp::on(&fixture.url, 1, &[]).await;
    let is_written = async || checkpoints(&mut raw).await == (1, 25_001);
    eventually("a checkpoint is written", SOON, is_written).await;
    app.assert_consistent("a").await;
}
