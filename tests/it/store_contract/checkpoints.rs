//! Checkpoints: audits that use them equal the sum of all movements, whoever wrote those.

use std::sync::Arc;

use rstest::rstest;
use stocklock::ports::{
    AttemptOutcome, DeductionStore as _, LevelStore as _, SqlMethod, StoreError,
};
use stocklock::stock::{Audit, LevelChange};
use stocklock::store::finish_migration;
use stocklock_testkit::eventually;
use stocklock_testkit::run::rng;
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant};

use super::deductions::Way;
use super::fixture::{
    Fixture, MYSQL, On, POSTGRES, REDIS, Raw, SOON, SQLITE, adjustment, deduction, level_change,
    name, place,
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

/// Forgets that every movement is numbered, as after an update of the schema, and the numbers.
async fn as_of_an_older_release(raw: &mut Raw) {
    for statement in [
        "UPDATE movement SET level_version = NULL",
        "UPDATE stock SET ledger_version = NULL",
        "DELETE FROM numbering",
        "DELETE FROM checkpoint",
    ] {
        raw.run(statement).await.unwrap();
    }
}

async fn fastest(mut work: impl AsyncFnMut()) -> Duration {
    let mut fastest = Duration::MAX;
    for _ in 0..7 {
        let start = Instant::now();
        work().await;
        fastest = fastest.min(start.elapsed());
    }
    fastest
}

#[rstest]
#[tokio::test]
async fn audit_of_100_000_movements_equals_the_full_sum(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let fixture = Fixture::new(backend).await;
    let mut raw = Raw::connect(backend, &fixture.url).await;
    for (operations, warehouse, movements) in [(1, "east", 30_000), (2, "main", 70_000)] {
        let creation = LevelChange {
            warehouse: place(warehouse),
            ..level_change("a", 1000)
        };
        fixture.set(creation).await;
        let (sku, seed) = ("a", rng().u64(..1_000_000));
        let seeded = Seeded {
            sku,
            warehouse,
            operations,
            movements,
            after: 1,
            seed,
        };
        seeded.insert(&mut raw).await;
    }
    let audit = async || fixture.store.audit(&name("a")).await.unwrap();
    let full = full_sums(&mut raw, "a", &["east", "main"]).await;
    assert_eq!(sums(&audit().await), full);
    let before = fastest(async || drop(audit().await)).await;

    fixture.store.write_checkpoints().await.unwrap();

    assert_eq!(checkpoints(&mut raw).await, (2, 100_000));
    let audits = audit().await;
    assert_eq!(sums(&audits), full);
    assert!(audits.iter().all(Audit::consistent), "{audits:?}");
    let after = fastest(async || drop(audit().await)).await;
    assert!(
        after * 4 < before,
        "{before:?} without, {after:?} with a checkpoint"
    );

    // A changed row shows that the audit does not read the movements before a checkpoint.
    raw.run("UPDATE movement SET delta = delta - 1 WHERE level_version = 500")
        .await
        .unwrap();
    assert_eq!(sums(&audit().await), full);
    fixture.store.adjust(&adjustment("a", -3)).await.unwrap();
    let audits = audit().await;
    assert!(audits.iter().all(Audit::consistent), "{audits:?}");
}

/// A ledger of an older release has a long tail when its checkpoints are first written.
#[rstest]
#[tokio::test]
async fn finish_writes_the_first_checkpoints(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let fixture = Fixture::new(backend).await;
    let mut raw = Raw::connect(backend, &fixture.url).await;
    fixture.put("a", 1000).await;
    fixture.put("b", 1000).await;
    let seeded = Seeded {
        sku: "a",
        warehouse: "main",
        operations: 1,
        movements: 5_000,
        after: 1,
        seed: rng().u64(..1_000_000),
    };
    seeded.insert(&mut raw).await;
    as_of_an_older_release(&mut raw).await;
    let sale = deduction("a", 1);
    let sold = fixture.store.deduct_in_sql(&sale, SqlMethod::Guarded).await;
    sold.unwrap();

    fixture.store.write_checkpoints().await.unwrap();
    assert_eq!(
        checkpoints(&mut raw).await,
        (0, 0),
        "older replicas may be left"
    );
    assert!(fixture.audit("a").await.consistent());

    for _ in 0..2 {
        assert_eq!(finish_migration(&fixture.url).await, Ok(2));
        assert_eq!(checkpoints(&mut raw).await, (2, 5003));
        let audit = fixture.audit("a").await;
        assert_eq!(sums(&[audit]), full_sums(&mut raw, "a", &["main"]).await);
    }

    // From now on, replicas write them.
    let seeded = Seeded {
        operations: 2,
        movements: 1_500,
        ..seeded
    };
    Seeded { sku: "b", ..seeded }.insert(&mut raw).await;
    fixture.store.write_checkpoints().await.unwrap();
    assert_eq!(checkpoints(&mut raw).await, (2, 5002 + 1501));
    assert!(fixture.audit("b").await.consistent());
}

/// After a rollback to an older release, movements without a number follow the checkpoint.
#[rstest]
#[tokio::test]
async fn audit_sums_what_an_older_replica_wrote_later(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let fixture = Fixture::new(backend).await;
    let mut raw = Raw::connect(backend, &fixture.url).await;
    fixture.put("raw", 50).await;
    let seeded = Seeded {
        sku: "raw",
        warehouse: "main",
        operations: 1,
        movements: 2_000,
        after: 1,
        seed: rng().u64(..1_000_000),
    };
    seeded.insert(&mut raw).await;
    fixture.store.write_checkpoints().await.unwrap();
    assert_eq!(checkpoints(&mut raw).await, (1, 2001));
    raw.record_key().await;
    let sold = "UPDATE stock SET on_hand = on_hand - 1, version = version + 1";
    raw.run(sold).await.unwrap();
    assert!(fixture.audit("raw").await.consistent());

    // No step goes over the gap.
    let seeded = Seeded {
        operations: 2,
        movements: 3_000,
        after: 2002,
        ..seeded
    };
    seeded.insert(&mut raw).await;
    fixture.store.write_checkpoints().await.unwrap();
    assert_eq!(checkpoints(&mut raw).await, (1, 2001));
    assert!(fixture.audit("raw").await.consistent());

    assert_eq!(finish_migration(&fixture.url).await, Ok(1));
    assert_eq!(checkpoints(&mut raw).await, (1, 5002));
    assert!(fixture.audit("raw").await.consistent());
}

/// Sales, several writers of checkpoints, and audits at the same time.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audits_stay_exact_while_checkpoints_move(
    #[values(SQLITE, MYSQL, POSTGRES, REDIS)] on: On,
) {
    let fixture = Arc::new(Fixture::on(on).await);
    fixture.put("a", 1_000_000).await;
    let mut tasks = JoinSet::new();
    for seller in 0..4_u32 {
        let fixture = Arc::clone(&fixture);
        tasks.spawn(async move {
            let [way, _] = Way::atomic(on);
            for sale in 0..400 {
                let sale = deduction("a", 1 + (sale + seller) % 3);
                let sold = loop {
                    match way.deduct(&fixture, &sale).await {
                        // A busy machine: it waited too long for a connection, and sold nothing.
                        Err(StoreError::Exhausted) => {}
                        sold => break sold.unwrap(),
                    }
                };
                assert!(matches!(sold, AttemptOutcome::Deducted { .. }), "{sold:?}");
            }
        });
    }
    let mut raw = Raw::connect(on.backend(), &fixture.url).await;
    while !tasks.is_empty() {
        fixture.settle().await;
        let (written, again) = tokio::join!(
            fixture.store.write_checkpoints(),
            fixture.store.write_checkpoints()
        );
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
    fixture.store.write_checkpoints().await.unwrap();
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
    let fixture = Fixture::new(backend).await;
    let mut raw = Raw::connect(backend, &fixture.url).await;
    fixture.put("a", 50).await;
    let seeded = Seeded {
        sku: "a",
        warehouse: "main",
        operations: 1,
        movements: 25_000,
        after: 1,
        seed: rng().u64(..1_000_000),
    };
    seeded.insert(&mut raw).await;
    let app = TestApp::on(&fixture.url, 1, &[]).await;
    let is_written = async || checkpoints(&mut raw).await == (1, 25_001);
    eventually("a checkpoint is written", SOON, is_written).await;
    assert_eq!(app.audit("a").await["consistent"], true);
    app.stop().await;
}
