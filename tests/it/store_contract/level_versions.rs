//! The order of a level's movements: each has the number of its commit, without gaps.

use std::sync::Arc;

use futures_util::future::join_all;
use rstest::rstest;
use stocklock::ports::AttemptOutcome;
use stocklock::stock::{LevelChange, Precondition};
use stocklock_testkit::assert_matches;

use super::contention::until_waiting;
use super::deductions::Way;
use super::fixture::{
    Fixture, Operations as _, Raw, adjustment, deduction, deduction_with_key, guarded,
    level_change, place,
};
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

#[rstest]
#[tokio::test]
async fn every_writer_numbers_its_movement(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let fixture = Fixture::with(backend, "a", 20).await;
    fixture.put("b", 20).await;
    for way in [
        Way::Guarded,
        Way::RowLock,
        Way::Version,
        Way::Fenced,
        Way::Overwrite,
    ] {
        way.deduct(&fixture, &deduction("a", 1)).await.unwrap();
    }
    for delta in [3, -2] {
        let adjusted = fixture.store.adjust(&adjustment("a", delta)).await.unwrap();
        assert!(matches!(adjusted, AttemptOutcome::Changed(_)));
    }
    fixture.put("a", 5).await;
    let east = LevelChange {
        warehouse: place("east"),
        ..level_change("b", 7)
    };
    fixture.set(east).await;

    assert_eq!(fixture.assert_in_order("a").await.len(), 9);
    // Each level counts by itself.
    let movements = fixture.movements("b").await;
    let versions: Vec<_> = movements.iter().map(|one| one.level_version).collect();
    assert_eq!(versions, [1, 1]);
}

/// A refused or repeated request uses no number.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_have_no_gaps_under_contention(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let fixture = Fixture::with(backend, "a", 30).await;
    let sales: Vec<_> = (0..40)
        .map(|n| deduction_with_key("a", 1, &format!("key-{}", n % 35)))
        .collect();
    for some in sales.chunks(8) {
        let attempts = some.iter().map(|sale| guarded(&fixture.store, sale));
        for attempt in join_all(attempts).await {
            assert!(attempt.is_ok(), "{attempt:?}");
        }
    }
    assert_eq!(fixture.assert_in_order("a").await.len(), 31);
}

/// The unique index of the numbers would only refuse what was computed from the level before the sale.
#[rstest]
#[tokio::test]
async fn level_change_counts_a_sale_that_it_waits_for(#[values(Mysql, Postgres)] backend: Backend) {
    let fixture = Fixture::with(backend, "a", 5).await;
    let mut sale = Raw::connect(backend, &fixture.url).await;
    sale.begin().await;
    for statement in [
        "UPDATE stock SET on_hand = on_hand - 1, version = version + 1",
        "INSERT INTO movement SELECT * FROM (SELECT operation_id, 1 AS line, sku, warehouse,
                'deducted' AS kind, -1 AS delta, 0 AS held_delta, 4 AS available_after,
                2 AS level_version, read_version, strategy, caller, idempotency_key, request_hash,
                reason, reference, reverses, returned, created_at
            FROM movement) AS sold",
    ] {
        sale.run(statement).await.unwrap();
    }
    let store = Arc::clone(&fixture.store);
    let change = LevelChange {
        precondition: Some(Precondition::Exists),
        ..level_change("a", 9)
    };
    let waiting = tokio::spawn(async move { store.set_level(&change).await });
    until_waiting(&fixture).await;
    sale.run("COMMIT").await.unwrap();
    let outcome = waiting.await.unwrap();
    assert_matches!(outcome, Ok(AttemptOutcome::Changed(_)));
    let audit = fixture.audit("a").await;
    assert!(audit.consistent(), "{audit:?}");
    assert_eq!(audit.on_hand, 9);
}
