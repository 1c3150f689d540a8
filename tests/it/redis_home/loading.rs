//! Levels that Redis does not have: they are loaded from SQL once, and are never older than what
//! was sold.

use std::sync::Arc;

use rstest::rstest;
use stocklock::ports::{AttemptOutcome, Condition, DeductionStore as _, RedisMethod, SqlMethod};
use stocklock::stock::Home;
use tokio::task::JoinSet;

use super::{assert_exact, deduct, deduct_until_decided, flush, lose_level, run, sell};
use crate::store_contract::fixture::{Fixture, On, deduction, guarded, level_change, name};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_level_is_loaded_once_by_concurrent_buyers() {
    let fixture = Fixture::on(On::Redis).await;
    for round in 0..5_i64 {
        let sku = format!("sku-{round}");
        fixture.put(&sku, 50).await;
        sell(&fixture, &sku, 10).await;
        fixture.settle().await;
        flush(&fixture).await;

        let buyer = |number: usize| {
            let how = [RedisMethod::Script, RedisMethod::Watch][number % 2];
            deduct_until_decided(Arc::clone(&fixture.store), sku.clone(), how)
        };
        let attempts: JoinSet<_> = (0..60).map(buyer).collect();
        let attempts = attempts.join_all().await;
        let sold = |attempt: &&AttemptOutcome| matches!(attempt, AttemptOutcome::Deducted { .. });
        assert_eq!(attempts.iter().filter(sold).count(), 40, "{attempts:?}");
        assert_exact(&fixture, &sku, 50, 0).await;
    }
}

/// As when Redis evicts a key: the level in SQL is older than the journal.
#[tokio::test]
async fn evicted_level_is_loaded_with_the_sales_in_the_journal() {
    let fixture = Fixture::on(On::Redis).await;
    fixture.put("other", 100).await;
    fixture.put("a", 10).await;
    sell(&fixture, "a", 2).await;
    fixture.settle().await;
    let before = fixture.level("a").await;
    sell(&fixture, "a", 3).await;
    // More entries than the load reads at once, of other levels and of this one.
    sell(&fixture, "other", 50).await;
    lose_level(&fixture, "a").await;

    let level = fixture.level("a").await;

    assert_eq!(level.on_hand, 5);
    // A version that was read before the loss must not match this state.
    assert!(level.version > before.version + 1000, "{level:?}");
    sell(&fixture, "a", 5).await;
    let refused = deduct(&fixture, "a", RedisMethod::Script).await;
    let short = AttemptOutcome::Unrecorded { available: 0 };
    assert_eq!(refused.unwrap(), short);
    assert!(fixture.audit("a").await.consistent());
}

#[tokio::test]
async fn sales_lost_before_sql_had_them_are_sold_again() {
    let fixture = Fixture::on(On::Redis).await;
    fixture.put("a", 10).await;
    sell(&fixture, "a", 4).await;
    fixture.settle().await;
    sell(&fixture, "a", 3).await;
    flush(&fixture).await;
    assert_eq!(fixture.level("a").await.on_hand, 6);
    let audit = fixture.audit("a").await;
    assert_eq!((audit.sold, audit.drift()), (4, 0), "{audit:?}");
}

/// A write with a version that was read before a loss must not match a later state.
#[tokio::test]
async fn versions_are_never_reused_after_repeated_losses() {
    let fixture = Fixture::on(On::Redis).await;
    fixture.put("a", 10).await;
    for _ in 0..5 {
        sell(&fixture, "a", 2).await;
        let read = fixture.level("a").await;
        flush(&fixture).await;
        assert!(fixture.level("a").await.version > read.version);
        sell(&fixture, "a", 2).await;
        let late = fixture.write_back(&read, Condition::Version).await;
        assert_eq!(late.unwrap(), AttemptOutcome::Conflict);
    }
}

/// As when a failover or `appendfsync everysec` rolls Redis back: the ledger has sales that the
/// level in Redis does not know of.
#[tokio::test]
async fn sales_that_only_sql_has_show_as_drift() {
    let fixture = Fixture::on(On::Redis).await;
    fixture.put("a", 10).await;
    let earlier = sell_and_remember(&fixture, "a", 4).await;
    sell(&fixture, "a", 3).await;
    fixture.settle().await;
    roll_back(&fixture, &earlier).await;

    let audit = fixture.audit("a").await;

    let found = (audit.sold, audit.on_hand, audit.drift());
    assert_eq!(found, (7, 6, 3), "{audit:?}");
    assert!(!audit.consistent());
    sell(&fixture, "a", 6).await;
    let audit = fixture.audit("a").await;
    let found = (audit.sold, audit.oversold(), audit.drift());
    assert_eq!(found, (13, 3, 3), "{audit:?}");
}

/// As after a failover to a machine whose clock is behind. New entries must get ids above those
/// that SQL has applied; otherwise they would be missing in SQL and in a level loaded again.
#[tokio::test]
async fn clock_that_is_behind_loses_no_sale_of_a_loaded_level() {
    let fixture = Fixture::on(On::Redis).await;
    fixture.put("a", 10).await;
    sell(&fixture, "a", 1).await;
    let journal = fixture.key("journal:*").await;
    let (seconds, _): (u64, u64) = run(&fixture, &["TIME"]).await;
    let ahead = format!("{}-5", (seconds + 3600) * 1000);
    run::<()>(&fixture, &["XSETID", &journal, &ahead]).await;
    sell(&fixture, "a", 1).await;
    fixture.settle().await;
    flush(&fixture).await;

    sell(&fixture, "a", 2).await;

    lose_level(&fixture, "a").await;
    assert_eq!(fixture.level("a").await.on_hand, 6, "by the journal");
    fixture.settle().await;
    flush(&fixture).await;
    assert_eq!(fixture.level("a").await.on_hand, 6, "by the level in SQL");
    assert!(fixture.audit("a").await.consistent());
    sell(&fixture, "a", 6).await;
    assert_exact(&fixture, "a", 10, 0).await;
}

/// Other clients may write to Redis. A level is not loaded from an entry whose counters are missing
/// or are not numbers.
#[rstest]
#[case::missing(&[])]
#[case::words(&["on_hand", "many", "held", "0", "backorder_limit", "0", "version", "1"])]
#[case::too_large(&["on_hand", "1", "held", "0", "backorder_limit", "0", "version", "99999999999999999999"])]
#[tokio::test]
async fn level_is_not_loaded_from_an_invalid_entry(#[case] counters: &[&str]) {
    let fixture = Fixture::on(On::Redis).await;
    fixture.put("a", 10).await;
    sell(&fixture, "a", 2).await;
    let journal = fixture.key("journal:*").await;
    let level = fixture.key("stock:*:a:main").await;
    let add = ["XADD", &journal, "*", "level", &level];
    let add = [&add, counters, &["movements", "{}"]].concat();
    run::<String>(&fixture, &add).await;
    lose_level(&fixture, "a").await;

    assert_eq!(fixture.level("a").await.on_hand, 8);

    sell(&fixture, "a", 8).await;
}

#[tokio::test]
async fn each_home_refuses_stock_of_the_other() {
    let fixture = Fixture::on(On::Redis).await;
    fixture.put("redis", 5).await;
    let mut in_sql = level_change("sql", 5);
    in_sql.home = Some(Home::Sql);
    fixture.set(in_sql).await;
    let store = &fixture.store;
    for how in [RedisMethod::Script, RedisMethod::Watch] {
        let refused = deduct(&fixture, "sql", how).await;
        assert_eq!(refused.unwrap(), AttemptOutcome::WrongHome(Home::Sql));
    }
    let in_redis = deduction("redis", 1);
    for refused in [
        guarded(store, &in_redis).await,
        store.deduct_in_sql(&in_redis, SqlMethod::RowLock).await,
    ] {
        assert_eq!(refused.unwrap(), AttemptOutcome::WrongHome(Home::Redis));
    }
    let (levels, _) = store.levels(None, 10).await.unwrap();
    let homes = levels.iter().map(|level| (level.sku.as_str(), level.home));
    let expected = [("redis", Home::Redis), ("sql", Home::Sql)];
    assert_eq!(homes.collect::<Vec<_>>(), expected);
    assert!(store.audit(&name("redis")).await.unwrap()[0].consistent());
}

/// Keys with their serialized values.
type Dumps = [(String, Vec<u8>); 2];

/// Sells units of the only SKU and dumps the level and the journal.
pub(super) async fn sell_and_remember(fixture: &Fixture, sku: &str, units: i64) -> Dumps {
    sell(fixture, sku, units).await;
    let dump = async |pattern: &str| {
        let key = fixture.key(pattern).await;
        let value = run(fixture, &["DUMP", &key]).await;
        (key, value)
    };
    [dump("stock:*").await, dump("journal:*}").await]
}

/// Sets Redis back, as a failover or `appendfsync everysec` does.
pub(super) async fn roll_back(fixture: &Fixture, earlier: &Dumps) {
    for (key, value) in earlier {
        let mut restore = redis::cmd("RESTORE");
        restore.arg(key).arg(0).arg(value).arg("REPLACE");
        fixture.redis::<()>(&restore).await;
    }
}
