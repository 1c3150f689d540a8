//! The journal consumer: every entry is applied to SQL once, in whatever order and however often
//! it is read.

use rstest::rstest;
use stocklock::ports::{
    AttemptOutcome, ChangeOutcome, Condition, DeductionStore as _, LevelStore as _, RedisMethod,
    StoreError,
};
use stocklock::stock::{Adjustment, Remark};
use stocklock_testkit::assert_matches;

use super::{assert_exact, deduct, fixture, fixture_with_journal_limit, flush, run, sell};
use crate::store_contract::fixture::{
    Fixture, On, adjustment, assert_deducted, deduction, deduction_with_key, name,
};
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

#[rstest]
#[tokio::test]
async fn sql_agrees_with_redis_to_the_unit_on_every_database(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let fixture = fixture(backend).await;
    fixture.put("货", 10).await;
    let first = deduction_with_key("货", 2, "k");
    for (deduction, how) in [
        (&first, RedisMethod::Script),
        (&deduction("货", 3), RedisMethod::Watch),
    ] {
        assert_deducted(&fixture.store.deduct_in_redis(deduction, how).await);
    }
    let delivery = Adjustment {
        reference: Some(Remark::parse("reference", "R-1").unwrap()),
        ..adjustment("货", 4)
    };
    fixture.store.adjust(&delivery).await.unwrap();
    let read = fixture.level("货").await;
    for _ in 0..2 {
        // Both from the same read: a lost update, which the level does not notice.
        let sold = fixture.write_back(&read, Condition::None).await;
        assert_eq!(sold.unwrap(), On::Redis.done(8));
    }
    let waiting = &fixture.store.audit(&name("货")).await.unwrap()[0];
    let sums = (waiting.received, waiting.sold, waiting.pending);
    assert_eq!(sums, (14, 7, 5));
    assert_eq!((waiting.drift(), waiting.consistent()), (1, false));

    let movements = fixture.movements("货").await;

    let recorded = movements.iter();
    let recorded = recorded.map(|m| (m.kind.as_str(), m.delta, m.available_after));
    let recorded: Vec<_> = recorded.collect();
    let (sale, receipt) = ("deducted", "received");
    let expected = [
        (sale, -1, 8),
        (sale, -1, 8),
        (receipt, 4, 9),
        (sale, -3, 5),
        (sale, -2, 8),
    ];
    assert_eq!(recorded[..5], expected);
    assert_eq!(movements[0].read_version, Some(read.version));
    assert_eq!(movements[2].remarks.texts(), [Some("count"), Some("R-1")]);
    let hash = first.idempotency.map(|key| key.hash);
    assert_eq!(movements[4].request_hash, hash);
    let (created, first_sold) = (&movements[5].created_at, &movements[4].created_at);
    assert!(first_sold > created, "{movements:?}");
    assert!(first_sold.ends_with('Z'), "{movements:?}");
    let audit = fixture.audit("货").await;
    let sums = (audit.received, audit.sold, audit.pending, audit.drift());
    assert_eq!(sums, (14, 7, 0, 1));
    // The level in SQL equals the one that Redis had, because it is loaded from there.
    flush(&fixture).await;
    assert_eq!(fixture.level("货").await.on_hand, 8);
}

/// As after a crash between the commit and the ack, or if two consumers have read the same entry.
#[rstest]
#[tokio::test]
async fn entry_that_is_read_again_is_recorded_once(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let fixture = fixture(backend).await;
    fixture.put("a", 10).await;
    let keyed = deduction_with_key("a", 1, "k");
    let sold = fixture.store.deduct_in_redis(&keyed, RedisMethod::Script);
    sold.await.unwrap();
    sell(&fixture, "a", 2).await;
    let journal = fixture.key("journal:*").await;
    let range = ["XRANGE", &journal, "-", "+"];
    let entries: Vec<(String, Vec<String>)> = run(&fixture, &range).await;
    assert_eq!(entries.len(), 3);
    fixture.settle().await;
    assert_eq!(length(&fixture, &journal).await, 0);
    // Again in reverse order, followed by a new entry.
    for (_, fields) in entries.iter().rev() {
        let fields = fields.iter().map(String::as_str);
        let add: Vec<_> = ["XADD", &journal, "*"].into_iter().chain(fields).collect();
        run::<String>(&fixture, &add).await;
    }
    sell(&fixture, "a", 1).await;

    let movements = fixture.movements("a").await;
    let mut versions: Vec<_> = movements.iter().map(|one| one.level_version).collect();
    versions.sort_unstable();
    assert_eq!(versions, [1, 2, 3, 4, 5].map(Some), "each is numbered once");

    assert_exact(&fixture, "a", 4, 6).await;
    assert_eq!(length(&fixture, &journal).await, 0);
    // With their own ids, they are older than the level in SQL.
    run::<()>(&fixture, &["DEL", &journal]).await;
    for (id, fields) in &entries {
        let fields = fields.iter().map(String::as_str);
        let add: Vec<_> = ["XADD", &journal, id].into_iter().chain(fields).collect();
        run::<String>(&fixture, &add).await;
    }
    fixture.settle().await;
    assert_eq!(length(&fixture, &journal).await, 0);
    flush(&fixture).await;
    assert_exact(&fixture, "a", 4, 6).await;
}

#[tokio::test]
async fn unreadable_entry_stays_visible_and_blocks_no_other() {
    let fixture = Fixture::on(On::Redis).await;
    fixture.put("a", 10).await;
    sell(&fixture, "a", 1).await;
    let journal = fixture.key("journal:*").await;
    let level = fixture.key("stock:*:a:main").await;
    let unreadable = ["XADD", &journal, "*", "level", &level, "movements", "{}"];
    run::<String>(&fixture, &unreadable).await;
    sell(&fixture, "a", 2).await;
    for _ in 0..2 {
        let audit = fixture.audit("a").await;
        assert_eq!((audit.sold, audit.on_hand, audit.drift()), (3, 7, 0));
        assert_eq!((audit.pending, audit.consistent()), (1, false));
        assert_eq!(length(&fixture, &journal).await, 0);
        let rejected = fixture.key("rejected:*").await;
        assert_eq!(length(&fixture, &rejected).await, 1);
    }
}

/// A replica of a newer release applies it.
#[tokio::test]
async fn entry_of_a_newer_format_stays_in_its_journal() {
    let fixture = Fixture::on(On::Redis).await;
    fixture.put("a", 10).await;
    sell(&fixture, "a", 1).await;
    let journal = fixture.key("journal:*").await;
    let newer = ["XADD", &journal, "*", "v", "3", "level", "b"];
    run::<String>(&fixture, &newer).await;
    sell(&fixture, "a", 2).await;
    assert_exact(&fixture, "a", 3, 7).await;
    assert_eq!(length(&fixture, &journal).await, 1);
}

#[tokio::test]
async fn full_journal_refuses_changes_until_entries_are_applied() {
    let fixture = fixture_with_journal_limit(3).await;
    fixture.put("a", 10).await;
    sell(&fixture, "a", 3).await;
    let read = fixture.level("a").await;
    let store = &fixture.store;
    for refused in [
        deduct(&fixture, "a", RedisMethod::Script).await.err(),
        deduct(&fixture, "a", RedisMethod::Watch).await.err(),
        fixture.write_back(&read, Condition::Version).await.err(),
        store.adjust(&adjustment("a", 1)).await.err(),
    ] {
        assert_matches!(refused, Some(StoreError::JournalFull));
    }
    fixture.settle().await;
    let adjusted = store.adjust(&adjustment("a", 1)).await.unwrap();
    assert_matches!(adjusted, ChangeOutcome::Done { .. });
    sell(&fixture, "a", 2).await;
    assert_exact(&fixture, "a", 5, 6).await;
}

/// Both sales happen and are recorded, whether the two SKUs have different shards (62 and 10) or
/// the same one.
#[rstest]
#[tokio::test]
async fn same_key_on_two_skus_sells_and_records_both(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
    #[values(["1001", "a"], ["1001", "b"])] skus: [&str; 2],
) {
    let fixture = fixture(backend).await;
    for sku in skus {
        fixture.put(sku, 5).await;
        let keyed = deduction_with_key(sku, 1, "k");
        let store = &fixture.store;
        assert_deducted(&store.deduct_in_redis(&keyed, RedisMethod::Script).await);
        let again = store.deduct_in_redis(&keyed, RedisMethod::Watch).await;
        assert_eq!(again.unwrap(), AttemptOutcome::Duplicate);
    }
    for sku in skus {
        assert_exact(&fixture, sku, 1, 4).await;
    }
}

async fn length(fixture: &Fixture, journal: &str) -> u64 {
    run(fixture, &["XLEN", journal]).await
}
