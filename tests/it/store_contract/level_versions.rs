//! The order of a level's movements: each has the number of its commit, without gaps.

use std::sync::Arc;

use rstest::rstest;
use stocklock::ports::{ChangeOutcome, DeductionStore as _, LevelStore as _, SqlMethod};
use stocklock::stock::{LevelChange, Movement, Precondition};
use stocklock_testkit::assert_matches;

use super::contention::until_waiting;
use super::deductions::Way;
use super::fixture::{
    Fixture, MYSQL, On, POSTGRES, REDIS, Raw, SQLITE, adjustment, deduction, deduction_with_key,
    level_change, place,
};
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

fn level_versions(movements: &[Movement]) -> Vec<Option<i64>> {
    movements.iter().map(|one| one.level_version).collect()
}

/// From `last` down to 1.
fn numbered(last: i64) -> Vec<Option<i64>> {
    (1..=last).rev().map(Some).collect()
}

#[rstest]
#[tokio::test]
async fn every_writer_numbers_its_movement(#[values(SQLITE, MYSQL, POSTGRES, REDIS)] on: On) {
    let fixture = Fixture::on(on).await;
    fixture.put("a", 20).await;
    fixture.put("b", 20).await;
    for way in Way::all(on) {
        let sale = deduction("a", 1);
        way.deduct(&fixture, &sale).await.unwrap();
        fixture.settle().await;
    }
    for delta in [3, -2] {
        let adjusted = fixture.store.adjust(&adjustment("a", delta)).await.unwrap();
        assert!(matches!(adjusted, ChangeOutcome::Done { .. }));
        fixture.settle().await;
    }
    fixture.put("a", 5).await;
    let east = LevelChange {
        warehouse: place("east"),
        ..level_change("b", 7)
    };
    fixture.set(east).await;

    let movements = fixture.movements("a").await;
    assert_eq!(level_versions(&movements), numbered(9));
    if on != On::Redis {
        assert_eq!(
            movements[0].level_version,
            Some(fixture.level("a").await.version)
        );
    }
    // Each level has numbers of its own.
    let movements = fixture.movements("b").await;
    assert_eq!(level_versions(&movements), [Some(1), Some(1)]);
}

/// A refused or repeated request uses no number.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_have_no_gaps_under_contention(#[values(SQLITE, MYSQL, POSTGRES, REDIS)] on: On) {
    let fixture = Fixture::on(on).await;
    fixture.put("a", 30).await;
    let [way, _] = Way::atomic(on);
    let sales: Vec<_> = (0..40)
        .map(|n| deduction_with_key("a", 1, &format!("key-{}", n % 35)))
        .collect();
    for some in sales.chunks(8) {
        let attempts = some.iter().map(|sale| way.deduct(&fixture, sale));
        for attempt in futures_util::future::join_all(attempts).await {
            assert!(attempt.is_ok(), "{attempt:?}");
        }
    }
    let movements = fixture.movements("a").await;
    assert_eq!(level_versions(&movements), numbered(31));
}

/// Sells a unit of `raw` like a replica of the previous release: the movement has no number.
async fn sell_unnumbered(raw: &mut Raw) {
    raw.record_key().await;
    let sold = "UPDATE stock SET on_hand = on_hand - 1, version = version + 1 WHERE sku = 'raw'";
    raw.run(sold).await.unwrap();
}

#[rstest]
#[tokio::test]
async fn sale_of_an_older_release_has_no_number(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let fixture = Fixture::new(backend).await;
    fixture.put("raw", 20).await;
    let mut raw = Raw::connect(backend, &fixture.url).await;
    sell_unnumbered(&mut raw).await;
    let sale = deduction("raw", 1);
    let sale = fixture.store.deduct_in_sql(&sale, SqlMethod::Guarded).await;
    sale.unwrap();
    let movements = fixture.movements("raw").await;
    assert_eq!(level_versions(&movements), [Some(3), Some(1), None]);
    assert!(fixture.audit("raw").await.consistent());
}

/// The unique index of the numbers cannot notice that this level was changed since it was read.
#[rstest]
#[tokio::test]
async fn level_change_counts_a_sale_that_it_waits_for(#[values(Mysql, Postgres)] backend: Backend) {
    let fixture = Fixture::new(backend).await;
    fixture.put("raw", 5).await;
    let mut older = Raw::connect(backend, &fixture.url).await;
    older.begin().await;
    sell_unnumbered(&mut older).await;
    let store = Arc::clone(&fixture.store);
    let change = LevelChange {
        precondition: Some(Precondition::Exists),
        ..level_change("raw", 9)
    };
    let waiting = tokio::spawn(async move { store.set_level(&change).await });
    until_waiting(&fixture).await;
    older.run("COMMIT").await.unwrap();
    let outcome = waiting.await.unwrap();
    assert_matches!(outcome, Ok(ChangeOutcome::Done { created: false, .. }));
    let audit = fixture.audit("raw").await;
    assert!(audit.consistent(), "{audit:?}");
    assert_eq!(audit.on_hand, 9);
}
