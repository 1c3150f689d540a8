//! What an audit and the first page of a ledger cost in a large ledger, with and without filters.
//!
//! `TEST_LEDGER_ROWS` is the number of movements. From a million on, the times are checked.

use rstest::rstest;
use stocklock::stock::{MovementFilter, MovementKind};
use stocklock_testkit::run::{number, rng};
use tokio::time::{Duration, Instant};

use crate::store_contract::fixture::{Fixture, all_of, deduction, name};
use crate::support::seeded_ledger::Seeded;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

const DEFAULT_ROWS: u64 = 100_000;
/// From this size on, the times are checked.
const LARGE: u64 = 1_000_000;

const AUDIT_LIMIT: Duration = Duration::from_millis(50);
const PAGE_LIMIT: Duration = Duration::from_millis(5);
const FILTERED_PAGE_LIMIT: Duration = Duration::from_millis(20);

/// The median time of a few repetitions, after one that fills the caches.
async fn median(mut work: impl AsyncFnMut()) -> Duration {
    work().await;
    let mut times = Vec::new();
    for _ in 0..11 {
        let start = Instant::now();
        work().await;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    times[times.len() / 2]
}

/// The time of the slowest first page with filters.
async fn slowest_filtered_page(fixture: &Fixture) -> Duration {
    let (returned, sold) = (Some(MovementKind::Returned), Some(MovementKind::Deducted));
    let reference = Some("none".to_owned());
    let mut slowest = Duration::ZERO;
    for (kind, reference) in [
        (returned.clone(), None),
        (sold, None),
        (None, reference.clone()),
        (returned, reference),
    ] {
        let filter = MovementFilter {
            limit: 100,
            kind,
            reference,
            ..all_of("big")
        };
        let page = median(async || drop(fixture.store.movements(&filter).await.unwrap())).await;
        slowest = slowest.max(page);
    }
    slowest
}

#[rstest]
#[tokio::test]
async fn audit_and_page_cost_the_same_in_any_ledger(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let rows = number("TEST_LEDGER_ROWS", DEFAULT_ROWS);
    let (fixture, mut raw) = Fixture::with_raw(backend).await;
    let seed = rng().u64(..1_000_000);
    fixture.put("big", 100).await;
    fixture.put("small", 1_000).await;
    for part in 0..2 {
        let seeded = Seeded {
            operations: part,
            after: 1 + u64::from(part) * (rows / 2),
            seed,
            ..Seeded::of("big", rows / 2)
        };
        seeded.insert(&mut raw).await;
        for _ in 0..30 {
            fixture.store.deduct(&deduction("small", 1)).await.unwrap();
        }
    }
    if backend == Postgres {
        raw.run("ANALYZE").await.unwrap();
    }
    let start = Instant::now();
    fixture.store.write_due().await.unwrap();
    let checkpoints_time = start.elapsed();
    // As many movements as may follow a checkpoint.
    let tail = Seeded {
        operations: 2,
        after: 1 + rows / 2 * 2,
        seed,
        ..Seeded::of("big", 999)
    };
    tail.insert(&mut raw).await;
    fixture.store.write_due().await.unwrap();

    let sku = name("big");
    let audit_time = median(async || drop(fixture.store.audit(&sku).await.unwrap())).await;
    let audit = fixture.audit("big").await;
    assert!(audit.consistent(), "{audit:?}");
    let full = "SELECT cast(sum(delta) AS char(20)) FROM movement WHERE sku = 'big'";
    let start = Instant::now();
    let full = raw.text(full).await.unwrap();
    let full_time = start.elapsed();
    assert_eq!(full.trim(), (audit.received - audit.sold).to_string());
    let page_time = async |sku: &str| {
        let filter = MovementFilter {
            limit: 100,
            ..all_of(sku)
        };
        median(async || drop(fixture.store.movements(&filter).await.unwrap())).await
    };
    let (small, big) = (page_time("small").await, page_time("big").await);
    let filtered = slowest_filtered_page(&fixture).await;
    println!(
        "figure: {backend:?}, {rows} movements: audit {audit_time:?}, first page {small:?} (of the large \
         SKU {big:?}, with a filter {filtered:?}); all movements were summed in {full_time:?}, \
         checkpoints written in {checkpoints_time:?}"
    );
    if rows >= LARGE {
        assert!(2 * audit_time < full_time, "{audit_time:?}, {full_time:?}");
        assert!(audit_time <= AUDIT_LIMIT, "{audit_time:?}");
        let in_time = small <= PAGE_LIMIT && big <= PAGE_LIMIT;
        assert!(in_time, "{small:?}, {big:?}");
        assert!(filtered <= FILTERED_PAGE_LIMIT, "{filtered:?}");
    }
}
