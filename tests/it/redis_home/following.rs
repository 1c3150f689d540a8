//! The write-behind: every entry of the journals is in SQL once, in whatever order, however often.

use std::collections::HashMap;

use rstest::rstest;
use stocklock::stock::MovementKind;
use stocklock::store::{Attempt, Change, InRedis, StoreError};

use super::loading::sell;
use crate::store_contract::fixture::{
    Fixture, On, adjustment, deduction, deduction_with_key, name,
};
use crate::support::services::Backend;
use crate::support::services::Backend::{Mysql, Postgres, Sqlite};

/// An entry as the raw connection reads it.
type Entry = (String, Vec<String>);

#[rstest]
#[tokio::test]
async fn sql_agrees_with_redis_to_the_unit_on_every_database(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let fixture = Fixture::in_redis(backend, |options| options).await;
    fixture.put("货", 10).await;
    let first = deduction_with_key("货", 2, "k");
    for (deduction, how) in [
        (&first, InRedis::Script),
        (&deduction("货", 3), InRedis::Watch),
    ] {
        let sold = fixture.store.deduct_in_redis(deduction, how).await.unwrap();
        assert!(matches!(sold, Attempt::Journaled { .. }), "{sold:?}");
    }
    fixture.store.adjust(&adjustment("货", 4)).await.unwrap();
    let read = fixture.level("货").await;
    for _ in 0..2 {
        // Both from the same reading: a unit that the counter does not notice.
        let sold = fixture
            .store
            .overwrite(&deduction("货", 1), &read)
            .await
            .unwrap();
        assert_eq!(sold, Attempt::Journaled { remaining: 8 });
    }
    let waiting = &fixture.store.audit(&name("货")).await.unwrap()[0];
    assert_eq!(
        (waiting.received, waiting.sold, waiting.pending),
        (14, 7, 5)
    );
    assert_eq!((waiting.drift(), waiting.consistent()), (1, false));

    let movements = fixture.movements("货").await;

    let recorded: Vec<_> = movements
        .iter()
        .map(|m| (m.kind, m.delta, m.available_after))
        .collect();
    let (sale, receipt) = (MovementKind::Deducted, MovementKind::Received);
    let expected = [
        (sale, -1, 8),
        (sale, -1, 8),
        (receipt, 4, 9),
        (sale, -3, 5),
        (sale, -2, 8),
    ];
    assert_eq!(recorded[..5], expected);
    assert_eq!(movements[0].read_version, Some(read.version));
    assert_eq!(
        movements[4].request_hash,
        first.idempotency.map(|key| key.hash)
    );
    assert!(
        movements[4].created_at > movements[5].created_at,
        "{movements:?}"
    );
    assert!(movements[4].created_at.ends_with('Z'), "{movements:?}");
    let audit = fixture.audit("货").await;
    assert_eq!(
        (audit.received, audit.sold, audit.pending, audit.drift()),
        (14, 7, 0, 1)
    );
    // The mirror is what Redis had: from it, it comes back.
    fixture.redis::<()>(&redis::cmd("FLUSHDB")).await;
    assert_eq!(fixture.level("货").await.on_hand, 8);
}

/// As after a death between the commit and the departure, or where two consumers have the same.
#[rstest]
#[tokio::test]
async fn an_entry_that_comes_again_is_recorded_once(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let fixture = Fixture::in_redis(backend, |options| options).await;
    fixture.put("a", 10).await;
    let keyed = deduction_with_key("a", 1, "k");
    fixture
        .store
        .deduct_in_redis(&keyed, InRedis::Script)
        .await
        .unwrap();
    sell(&fixture, "a", 2).await;
    let journal = fixture.key("journal:*").await;
    let mut range = redis::cmd("XRANGE");
    let entries: Vec<Entry> = fixture.redis(range.arg(&journal).arg("-").arg("+")).await;
    assert_eq!(entries.len(), 3);
    fixture.settle().await;
    assert_eq!(waiting(&fixture, &journal).await, 0);
    // Again, the oldest last, among one that is new.
    for (_, fields) in entries.iter().rev() {
        let mut add = redis::cmd("XADD");
        fixture
            .redis::<String>(add.arg(&journal).arg("*").arg(fields))
            .await;
    }
    sell(&fixture, "a", 1).await;

    assert_eq!(fixture.movements("a").await.len(), 5);

    let audit = fixture.audit("a").await;
    assert_eq!((audit.sold, audit.on_hand, audit.pending), (4, 6, 0));
    assert!(audit.consistent(), "{audit:?}");
    assert_eq!(waiting(&fixture, &journal).await, 0);
}

#[tokio::test]
async fn an_entry_that_nobody_understands_stays_visible_and_holds_up_no_other() {
    let fixture = Fixture::on(On::REDIS).await;
    fixture.put("a", 10).await;
    sell(&fixture, "a", 1).await;
    let (journal, level) = (
        fixture.key("journal:*").await,
        fixture.key("stock:*:a:main").await,
    );
    let strange = HashMap::from([("level", &*level), ("movements", "{}")]);
    let mut add = redis::cmd("XADD");
    fixture
        .redis::<String>(add.arg(&journal).arg("*").arg(strange))
        .await;
    sell(&fixture, "a", 2).await;
    for _ in 0..2 {
        let audit = fixture.audit("a").await;
        assert_eq!((audit.sold, audit.on_hand, audit.drift()), (3, 7, 0));
        assert_eq!((audit.pending, audit.consistent()), (1, false));
        assert_eq!(waiting(&fixture, &journal).await, 1);
    }
}

#[tokio::test]
async fn a_journal_that_is_full_takes_no_more_until_the_ledger_has_followed() {
    let fixture = Fixture::in_redis(Sqlite, |mut options| {
        options.journal_limit = 3;
        options
    })
    .await;
    fixture.put("a", 10).await;
    sell(&fixture, "a", 3).await;
    let read = fixture.level("a").await;
    let store = &fixture.store;
    for how in [InRedis::Script, InRedis::Watch] {
        let refused = store.deduct_in_redis(&deduction("a", 1), how).await;
        assert!(
            matches!(refused, Err(StoreError::JournalFull)),
            "{refused:?}"
        );
    }
    let refused = store.deduct_if_version(&deduction("a", 1), &read).await;
    assert!(
        matches!(refused, Err(StoreError::JournalFull)),
        "{refused:?}"
    );
    let refused = store.adjust(&adjustment("a", 1)).await;
    assert!(
        matches!(refused, Err(StoreError::JournalFull)),
        "{refused:?}"
    );
    fixture.settle().await;
    let adjusted = store.adjust(&adjustment("a", 1)).await.unwrap();
    assert!(matches!(adjusted, Change::Done { .. }), "{adjusted:?}");
    sell(&fixture, "a", 2).await;
    let audit = fixture.audit("a").await;
    assert_eq!((audit.sold, audit.on_hand), (5, 6));
    assert!(audit.consistent());
}

/// One key, two SKUs: the second sale is its own, and keeps its place in the ledger, whether the
/// two lie in different shards (62 and 10) or in the same one.
#[rstest]
#[tokio::test]
async fn a_key_that_the_ledger_has_from_another_sku_does_not_stop_it(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
    #[values(["1001", "a"], ["1001", "b"])] skus: [&str; 2],
) {
    let fixture = Fixture::in_redis(backend, |options| options).await;
    for sku in skus {
        fixture.put(sku, 5).await;
        let keyed = deduction_with_key(sku, 1, "k");
        let sold = fixture.store.deduct_in_redis(&keyed, InRedis::Script).await;
        assert!(matches!(sold, Ok(Attempt::Journaled { .. })), "{sold:?}");
        let again = fixture.store.deduct_in_redis(&keyed, InRedis::Watch).await;
        assert_eq!(again.unwrap(), Attempt::Duplicate);
    }
    for sku in skus {
        let audit = fixture.audit(sku).await;
        assert_eq!((audit.sold, audit.consistent()), (1, true), "{audit:?}");
    }
}

async fn waiting(fixture: &Fixture, journal: &str) -> u64 {
    fixture.redis(redis::cmd("XLEN").arg(journal)).await
}
