//! Levels that Redis does not have: they come from SQL once, and never older than what was sold.

use std::sync::Arc;

use rstest::rstest;
use stocklock::stock::Home;
use stocklock::store::{Attempt, InRedis};
use tokio::task::JoinSet;

use crate::store_contract::fixture::{Fixture, On, adjustment, deduction, level_change, name};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_level_that_redis_has_lost_is_loaded_once_by_whoever_comes_first() {
    let fixture = Fixture::on(On::REDIS).await;
    for round in 0..5_i64 {
        let sku = format!("sku-{round}");
        fixture.put(&sku, 50).await;
        sell(&fixture, &sku, 10).await;
        fixture.settle().await;
        fixture.redis::<()>(&redis::cmd("FLUSHDB")).await;

        let mut buyers = JoinSet::new();
        for buyer in 0..60 {
            let (store, sku) = (Arc::clone(&fixture.store), sku.clone());
            buyers.spawn(async move {
                let how = [InRedis::Script, InRedis::Watch][buyer % 2];
                loop {
                    let attempt = store.deduct_in_redis(&deduction(&sku, 1), how).await;
                    match attempt.expect("no error") {
                        Attempt::Stale => {}
                        settled => return settled,
                    }
                }
            });
        }
        let outcomes = buyers.join_all().await;
        let sold = |outcome: &&Attempt| matches!(outcome, Attempt::Journaled { .. });
        assert_eq!(outcomes.iter().filter(sold).count(), 40, "{outcomes:?}");
        let audit = fixture.audit(&sku).await;
        assert_eq!((audit.sold, audit.on_hand, audit.pending), (50, 0, 0));
        assert!(audit.consistent(), "{audit:?}");
    }
}

/// As when Redis evicts a key: the mirror in SQL is older than what the journal knows.
#[tokio::test]
async fn a_level_that_alone_was_lost_is_not_older_than_the_journal() {
    let fixture = Fixture::on(On::REDIS).await;
    fixture.put("other", 100).await;
    fixture.put("a", 10).await;
    sell(&fixture, "a", 2).await;
    fixture.settle().await;
    let before = fixture.level("a").await;
    sell(&fixture, "a", 3).await;
    // More entries than are looked through at once, of other levels and of this one.
    sell(&fixture, "other", 50).await;
    let key = fixture.key("stock:*:a:main").await;
    fixture.redis::<()>(redis::cmd("DEL").arg(key)).await;

    let level = fixture.level("a").await;

    assert_eq!(level.on_hand, 5);
    // Nobody who read a version before the loss may take this for the same state.
    assert!(level.version > before.version + 1000, "{level:?}");
    sell(&fixture, "a", 5).await;
    let one_more = deduction("a", 1);
    let refused = fixture
        .store
        .deduct_in_redis(&one_more, InRedis::Script)
        .await;
    assert_eq!(refused.unwrap(), Attempt::Insufficient { available: 0 });
    assert!(fixture.audit("a").await.consistent());
}

#[tokio::test]
async fn what_redis_lost_on_the_way_to_sql_is_sold_again_and_the_ledger_agrees() {
    let fixture = Fixture::on(On::REDIS).await;
    fixture.put("a", 10).await;
    sell(&fixture, "a", 4).await;
    fixture.settle().await;
    sell(&fixture, "a", 3).await;
    fixture.redis::<()>(&redis::cmd("FLUSHDB")).await;
    assert_eq!(fixture.level("a").await.on_hand, 6);
    let audit = fixture.audit("a").await;
    assert_eq!((audit.sold, audit.drift()), (4, 0), "{audit:?}");
}

/// Whoever reads a level, and writes after it was lost, must not take another state for what it read.
#[tokio::test]
async fn no_version_is_given_twice_however_often_redis_loses_what_sql_never_had() {
    let fixture = Fixture::on(On::REDIS).await;
    fixture.put("a", 10).await;
    for _ in 0..5 {
        sell(&fixture, "a", 2).await;
        let read = fixture.level("a").await;
        fixture.redis::<()>(&redis::cmd("FLUSHDB")).await;
        assert!(fixture.level("a").await.version > read.version);
        sell(&fixture, "a", 2).await;
        let sale = deduction("a", 1);
        let late = fixture.store.deduct_if_version(&sale, &read).await;
        assert_eq!(late.unwrap(), Attempt::Stale);
    }
}

/// As when a failover, or `appendfsync everysec`, rolls Redis back behind what SQL has: the counter
/// there has not noticed sales that the ledger knows of.
#[tokio::test]
async fn sales_that_redis_forgot_and_sql_has_show_as_drift() {
    let fixture = Fixture::on(On::REDIS).await;
    fixture.put("a", 10).await;
    let earlier = sell_and_remember(&fixture, "a", 4).await;
    sell(&fixture, "a", 3).await;
    fixture.settle().await;
    roll_back(&fixture, &earlier).await;

    let audit = fixture.audit("a").await;

    assert_eq!(
        (audit.sold, audit.on_hand, audit.drift()),
        (7, 6, 3),
        "{audit:?}"
    );
    assert!(!audit.consistent());
    sell(&fixture, "a", 6).await;
    let audit = fixture.audit("a").await;
    assert_eq!(
        (audit.sold, audit.oversold(), audit.drift()),
        (13, 3, 3),
        "{audit:?}"
    );
}

/// As the README has it: an adjustment would be one more movement, and leave the drift as it is.
#[tokio::test]
async fn drift_is_taken_off_the_counter_itself() {
    let fixture = Fixture::on(On::REDIS).await;
    fixture.put("a", 10).await;
    let level = fixture.key("stock:*:a:main").await;
    sell(&fixture, "a", 4).await;
    fixture.settle().await;
    let mut forget = redis::cmd("HINCRBY");
    fixture
        .redis::<()>(forget.arg(&level).arg("on_hand").arg(3))
        .await;
    let drift = fixture.audit("a").await.drift();
    assert_eq!(drift, 3);
    fixture
        .store
        .adjust(&adjustment("a", -drift))
        .await
        .unwrap();
    assert_eq!(fixture.audit("a").await.drift(), drift);
    fixture.store.adjust(&adjustment("a", drift)).await.unwrap();

    let read = fixture.level("a").await;
    for (field, by) in [("on_hand", -drift), ("version", 1)] {
        let mut correct = redis::cmd("HINCRBY");
        fixture
            .redis::<()>(correct.arg(&level).arg(field).arg(by))
            .await;
    }

    assert!(fixture.audit("a").await.consistent());
    let late = fixture
        .store
        .deduct_if_version(&deduction("a", 1), &read)
        .await;
    assert_eq!(late.unwrap(), Attempt::Stale);
    sell(&fixture, "a", 6).await;
    let audit = fixture.audit("a").await;
    assert_eq!((audit.sold, audit.oversold(), audit.drift()), (10, 0, 0));
}

/// As after a failover to a machine whose clock is behind: what is journaled there must come after
/// what SQL has, or it would reach neither the mirror nor a level that is loaded again.
#[tokio::test]
async fn a_clock_that_is_behind_loses_no_sale_of_a_level_that_was_loaded() {
    let fixture = Fixture::on(On::REDIS).await;
    fixture.put("a", 10).await;
    sell(&fixture, "a", 1).await;
    let journal = fixture.key("journal:*").await;
    let (seconds, _): (u64, u64) = fixture.redis(&redis::cmd("TIME")).await;
    let ahead = format!("{}-5", (seconds + 3600) * 1000);
    let mut set = redis::cmd("XSETID");
    fixture.redis::<()>(set.arg(&journal).arg(&ahead)).await;
    sell(&fixture, "a", 1).await;
    fixture.settle().await;
    fixture.redis::<()>(&redis::cmd("FLUSHDB")).await;

    sell(&fixture, "a", 2).await;

    let key = fixture.key("stock:*:a:main").await;
    fixture.redis::<()>(redis::cmd("DEL").arg(key)).await;
    assert_eq!(fixture.level("a").await.on_hand, 6, "by the journal");
    fixture.settle().await;
    fixture.redis::<()>(&redis::cmd("FLUSHDB")).await;
    assert_eq!(fixture.level("a").await.on_hand, 6, "by the mirror");
    assert!(fixture.audit("a").await.consistent());
    sell(&fixture, "a", 6).await;
    let audit = fixture.audit("a").await;
    assert_eq!((audit.sold, audit.pending), (10, 0), "{audit:?}");
}

/// Redis is open to others: what they write names a level of ours at most.
#[rstest]
#[case::nothing_else(&[])]
#[case::words(&["on_hand", "many", "held", "0", "backorder_limit", "0", "version", "1"])]
#[case::too_large(&["on_hand", "1", "held", "0", "backorder_limit", "0", "version", "99999999999999999999"])]
#[tokio::test]
async fn a_level_is_not_loaded_from_an_entry_that_has_no_counters(#[case] counters: &[&str]) {
    let fixture = Fixture::on(On::REDIS).await;
    fixture.put("a", 10).await;
    sell(&fixture, "a", 2).await;
    let (journal, level) = (
        fixture.key("journal:*").await,
        fixture.key("stock:*:a:main").await,
    );
    let mut add = redis::cmd("XADD");
    add.arg(&journal).arg("*").arg("level").arg(&level);
    fixture
        .redis::<String>(add.arg(counters).arg("movements").arg("{}"))
        .await;
    fixture.redis::<()>(redis::cmd("DEL").arg(&level)).await;

    assert_eq!(fixture.level("a").await.on_hand, 8);

    sell(&fixture, "a", 8).await;
}

#[tokio::test]
async fn each_home_refuses_the_others_stock() {
    let fixture = Fixture::on(On::REDIS).await;
    fixture.put("redis", 5).await;
    let mut in_sql = level_change("sql", 5);
    in_sql.home = Some(Home::Sql);
    fixture.set(in_sql).await;
    let store = &fixture.store;
    let (of_redis, of_sql) = (deduction("redis", 1), deduction("sql", 1));
    for how in [InRedis::Script, InRedis::Watch] {
        let refused = store.deduct_in_redis(&of_sql, how).await.unwrap();
        assert_eq!(refused, Attempt::WrongHome(Home::Sql));
    }
    let guarded = store.deduct_if_available(&of_redis).await.unwrap();
    assert_eq!(guarded, Attempt::WrongHome(Home::Redis));
    let locked = store.deduct_under_row_lock(&of_redis).await.unwrap();
    assert_eq!(locked, Attempt::WrongHome(Home::Redis));
    let homes = store.levels(None, 10).await.unwrap();
    let homes: Vec<_> = homes
        .iter()
        .map(|level| (level.sku.as_str(), level.home))
        .collect();
    assert_eq!(homes, [("redis", Home::Redis), ("sql", Home::Sql)]);
    assert!(store.audit(&name("redis")).await.unwrap()[0].consistent());
}

/// Sells so many units, one by one.
pub(super) async fn sell(fixture: &Fixture, sku: &str, units: i64) {
    for _ in 0..units {
        let sold = fixture
            .store
            .deduct_in_redis(&deduction(sku, 1), InRedis::Script)
            .await;
        assert!(matches!(sold, Ok(Attempt::Journaled { .. })), "{sold:?}");
    }
}

/// Keys with what they hold, as Redis writes it.
type Dumps = [(String, Vec<u8>); 2];

/// Sells so many units of the only SKU, and remembers what Redis has then.
pub(super) async fn sell_and_remember(fixture: &Fixture, sku: &str, units: i64) -> Dumps {
    sell(fixture, sku, units).await;
    let dump = async |pattern: &str| {
        let key = fixture.key(pattern).await;
        let dump: Vec<u8> = fixture.redis(redis::cmd("DUMP").arg(&key)).await;
        (key, dump)
    };
    [dump("stock:*").await, dump("journal:*}").await]
}

/// As a failover does, or `appendfsync everysec`: Redis is as it was.
pub(super) async fn roll_back(fixture: &Fixture, earlier: &Dumps) {
    for (key, dump) in earlier {
        let mut restore = redis::cmd("RESTORE");
        restore.arg(key).arg(0).arg(dump).arg("REPLACE");
        fixture.redis::<()>(&restore).await;
    }
}
