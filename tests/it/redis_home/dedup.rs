//! The operations that Redis remembers after their movements have left the journal.

use std::time::Duration;

use rstest::rstest;
use stocklock::ports::{
    AttemptOutcome, ChangeOutcome, Condition, Expiry, LateAttempt, RedisMethod, StoreError,
};
use stocklock::ports::{DeductionStore as _, LedgerReader as _, LevelStore as _};
use stocklock::stock::{Adjustment, Deduction, LevelChange, OperationId};
use stocklock::store::RedisOptions;
use stocklock_testkit::assert_matches;

use super::{assert_exact, deduct, fixture, flush, run};
use crate::store_contract::fixture::{
    Attempt, Fixture, On, SOON, adjustment, deduction, deduction_with_key, level_change, place,
    redis_options,
};
use crate::support::proxy::Proxy;
use crate::support::services::Backend;

/// The hashes of dedup entries.
async fn buckets(fixture: &Fixture) -> Vec<String> {
    run(fixture, &["KEYS", "dedup:*"]).await
}

/// How many operations Redis remembers.
async fn remembered(fixture: &Fixture) -> usize {
    let mut entries = 0;
    for bucket in buckets(fixture).await {
        entries += run::<usize>(fixture, &["HLEN", &bucket]).await;
    }
    entries
}

fn adjustment_with_key(delta: i64, key: &str) -> Adjustment {
    Adjustment {
        idempotency: deduction_with_key("a", 1, key).idempotency,
        ..adjustment("a", delta)
    }
}

/// The ways to deduct from stock in Redis.
#[derive(Debug, Clone, Copy)]
pub(super) enum Way {
    Script,
    Watch,
    Write,
}

impl Way {
    pub(super) async fn deduct(self, fixture: &Fixture, deduction: &Deduction) -> AttemptOutcome {
        let attempt = self.try_deduct(fixture, deduction).await;
        attempt.expect("no error")
    }

    async fn try_deduct(self, fixture: &Fixture, deduction: &Deduction) -> Attempt {
        let store = &fixture.store;
        match self {
            Self::Script => store.deduct_in_redis(deduction, RedisMethod::Script).await,
            Self::Watch => store.deduct_in_redis(deduction, RedisMethod::Watch).await,
            Self::Write => {
                let Deduction { sku, warehouse, .. } = deduction;
                let read = fixture.subject().level(sku, warehouse).await?;
                let read = read.expect("the level exists");
                store.write_back(deduction, &read, Condition::Version).await
            }
        }
    }
}

/// Every operation of a flash sale is remembered; a second copy of each would halve what fits into
/// the memory.
#[tokio::test]
async fn operation_is_remembered_once_with_or_without_a_key() {
    let fixture = Fixture::on(On::Redis).await;
    fixture.put("a", 10).await;
    let before = remembered(&fixture).await;
    let [scripted, watched, written] =
        ["scripted", "watched", "written"].map(|key| deduction_with_key("a", 1, key));
    for (way, sale) in [
        (Way::Script, &scripted),
        (Way::Watch, &watched),
        (Way::Write, &written),
    ] {
        let sold = way.deduct(&fixture, sale).await;
        assert_matches!(sold, AttemptOutcome::Deducted { .. });
    }
    let adjustment = adjustment_with_key(1, "adjusted");
    fixture.store.adjust(&adjustment).await.unwrap();
    assert_eq!(remembered(&fixture).await, before + 4);
    for how in [RedisMethod::Script, RedisMethod::Watch] {
        deduct(&fixture, "a", how).await.unwrap();
    }
    assert_eq!(remembered(&fixture).await, before + 6);
    // Entries with a key are kept for 24 hours, and for at most 12 hours more. Those without a key are kept
    // for 6 to 9 deadlines.
    let mut lifetimes = Vec::new();
    for bucket in buckets(&fixture).await {
        let left = run(&fixture, &["PTTL", &bucket]).await;
        let left = Duration::from_millis(left);
        let entries: usize = run(&fixture, &["HLEN", &bucket]).await;
        lifetimes.push((left, entries));
    }
    let (keyed, keyless): (Vec<_>, Vec<_>) =
        (lifetimes.iter()).partition(|(left, _)| *left > Duration::from_hours(1));
    let entries =
        |buckets: &[&(Duration, usize)]| buckets.iter().map(|(_, entries)| entries).sum::<usize>();
    assert_eq!(
        (entries(&keyed), entries(&keyless)),
        (4, before + 2),
        "{lifetimes:?}"
    );
    let hours = Duration::from_hours(24)..=Duration::from_hours(36);
    assert!(
        keyed.iter().all(|(left, _)| hours.contains(left)),
        "{lifetimes:?}"
    );
    let deadlines = Duration::from_secs(30)..=Duration::from_secs(45);
    assert!(
        keyless.iter().all(|(left, _)| deadlines.contains(left)),
        "{lifetimes:?}"
    );
    // The operation can still be found by its key.
    for (way, sale) in [(Way::Script, &watched), (Way::Watch, &written)] {
        assert_eq!(way.deduct(&fixture, sale).await, AttemptOutcome::Duplicate);
        let key = sale.idempotency.as_ref();
        let found = fixture.store.recorded(&sale.sku, sale.operation, key).await;
        let operation = found.unwrap().map(|movement| movement.operation);
        assert_eq!(operation, Some(sale.operation));
    }
}

#[rstest]
#[tokio::test]
async fn key_is_found_in_sql_after_redis_has_lost_everything(
    #[values(Way::Script, Way::Watch, Way::Write)] way: Way,
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let fixture = fixture(backend).await;
    for sku in ["a", "b"] {
        fixture.put(sku, 10).await;
    }
    let first = deduction_with_key("a", 2, "k");
    let sold = way.deduct(&fixture, &first).await;
    assert_eq!(sold, On::Redis.done(8));
    fixture.settle().await;
    flush(&fixture).await;

    let repeat = deduction_with_key("a", 2, "k");
    let other_quantity = deduction_with_key("a", 3, "k");
    for later in [&repeat, &other_quantity, &repeat] {
        assert_eq!(way.deduct(&fixture, later).await, AttemptOutcome::Duplicate);
        let key = later.idempotency.as_ref();
        let found = fixture.store.recorded(&later.sku, later.operation, key);
        let found = found.await.expect("no error");
        let found = found.expect("it is remembered again");
        let movement = (found.operation, found.delta, found.available_after);
        assert_eq!(movement, (first.operation, -2, 8));
        let hash = first.idempotency.as_ref().map(|key| key.hash);
        assert_eq!(found.request_hash, hash);
    }
    // A new key counts as unused, and so does the same key on another SKU.
    for (sku, key, remaining) in [("a", "new", 7), ("b", "k", 9)] {
        let sold = way.deduct(&fixture, &deduction_with_key(sku, 1, key)).await;
        assert_eq!(sold, On::Redis.done(remaining));
    }
    assert_exact(&fixture, "a", 3, 7).await;
    assert_exact(&fixture, "b", 1, 9).await;
}

/// Goal: a sale whose answer was lost is not refused because Redis has lost it since.
#[tokio::test]
async fn late_attempt_finds_in_sql_what_redis_has_lost() {
    let fixture = Fixture::on(On::Redis).await;
    fixture.put("a", 1).await;
    let late = async |sale: &Deduction| {
        let late = fixture.store.late_attempt(sale, Expiry::passed()).await;
        late.expect("no error")
    };
    let sale = deduction_with_key("a", 1, "k");
    Way::Script.deduct(&fixture, &sale).await;
    fixture.settle().await;
    flush(&fixture).await;
    let LateAttempt::Recorded(found) = late(&sale).await else {
        panic!("the sale is in SQL");
    };
    assert_eq!(found.operation, sale.operation);
    let other = late(&deduction_with_key("a", 1, "other")).await;
    assert_matches!(other, LateAttempt::Dead);
}

#[tokio::test]
async fn adjustment_in_sql_is_not_repeated_after_a_loss_of_redis() {
    let fixture = Fixture::on(On::Redis).await;
    fixture.put("a", 10).await;
    let adjust = async || {
        let adjusted = fixture.store.adjust(&adjustment_with_key(5, "k")).await;
        adjusted.unwrap()
    };
    let done = adjust().await;
    assert_matches!(done, ChangeOutcome::Done { .. });
    fixture.settle().await;
    flush(&fixture).await;
    assert_eq!(adjust().await, ChangeOutcome::Duplicate);
    assert_eq!(fixture.level("a").await.on_hand, 15);
}

/// SQL is asked for a key only while Redis may have lost it: for 24 hours after the level was
/// loaded, and never for a level that was not lost.
#[rstest]
#[case::never_lost(None, false)]
#[case::long_ago(Some(24 * 3600 + 1), false)]
#[case::recently(Some(24 * 3600 - 60), true)]
#[tokio::test]
async fn sql_is_asked_for_keys_only_after_a_recent_loss(
    #[values(RedisMethod::Script, RedisMethod::Watch)] how: RedisMethod,
    #[case] loaded_ago: Option<u64>,
    #[case] asked: bool,
) {
    let fixture = Fixture::on(On::Redis).await;
    fixture.put("a", 10).await;
    let sell = async || {
        let sale = deduction_with_key("a", 1, "k");
        fixture.store.deduct_in_redis(&sale, how).await.unwrap()
    };
    sell().await;
    fixture.settle().await;
    if let Some(ago) = loaded_ago {
        flush(&fixture).await;
        fixture.level("a").await;
        let (now, _): (u64, u64) = run(&fixture, &["TIME"]).await;
        let level = fixture.key("stock:*:a:main").await;
        let loaded = ((now - ago) * 1_000_000).to_string();
        run::<()>(&fixture, &["HSET", &level, "loaded", &loaded]).await;
    } else {
        for bucket in buckets(&fixture).await {
            run::<()>(&fixture, &["DEL", &bucket]).await;
        }
    }
    let duplicate = sell().await == AttemptOutcome::Duplicate;
    assert_eq!(duplicate, asked);
}

/// Goal: a key sells once, although Redis loses the level again after SQL was asked for the key.
///
/// Method: SQL does not have the key. While the next message of that attempt is on its way, another attempt
/// sells with the key, and Redis loses the sale after SQL has it.
#[rstest]
#[case(Way::Script, b"EVALSHA\r\n")]
#[case(Way::Watch, b"WATCH\r\n")]
#[case(Way::Write, b"EVALSHA\r\n")]
#[tokio::test]
async fn key_is_looked_up_again_after_another_loss(#[case] way: Way, #[case] next: &[u8]) {
    let near = Fixture::on(On::Redis).await;
    let redis = near.redis_url().expect("stock lives in Redis");
    let (proxy, url) = Proxy::before(redis).await;
    let far = Fixture::at(Backend::Sqlite, near.url.clone()).await;
    let far = far.with(RedisOptions {
        wait_limit: SOON,
        ..redis_options(&url)
    });
    near.put("a", 10).await;
    // From now on Redis knows the scripts.
    way.deduct(&far, &deduction("a", 1)).await;
    let lose = async || {
        near.settle().await;
        flush(&near).await;
        near.store.confirm_redis(0).await.expect("it is bound");
        near.level("a").await;
    };
    lose().await;

    let sale = deduction_with_key("a", 1, "k");
    // The look-up of the entries of release 0.1.0, before SQL is asked.
    let look_up = proxy.hold_request(b"op:{");
    let late = way.deduct(&far, &sale);
    let other = async {
        look_up.held().await;
        let hold = proxy.hold_request(next);
        look_up.let_go();
        hold.held().await;
        let sold = way.deduct(&near, &deduction_with_key("a", 1, "k")).await;
        lose().await;
        hold.let_go();
        sold
    };
    let (late, other) = tokio::join!(late, other);
    assert_eq!(
        (late, other),
        (AttemptOutcome::Duplicate, On::Redis.done(8))
    );
    assert_exact(&near, "a", 2, 8).await;
}

/// Goal: a sale without a key whose answer was lost is not made again, although Redis has lost it since:
/// SQL has it.
#[rstest]
#[case(Way::Script, b"\tsingle-sql\t")]
#[case(Way::Watch, b"EXEC\r\n")]
#[case(Way::Write, b"\tsingle-sql\t")]
#[tokio::test]
async fn lost_sale_without_a_key_is_found_in_sql(#[case] way: Way, #[case] sent: &[u8]) {
    let near = Fixture::on(On::Redis).await;
    let redis = near.redis_url().expect("stock lives in Redis");
    let (proxy, url) = Proxy::before(redis).await;
    let far = Fixture::at(Backend::Sqlite, near.url.clone()).await;
    let far = far.with(redis_options(&url));
    near.put("a", 10).await;
    // From now on Redis knows the scripts.
    way.deduct(&far, &deduction("a", 1)).await;
    let sale = deduction("a", 1);
    let cut = proxy.cut_after(sent, 1);
    let attempt = way.try_deduct(&far, &sale).await;
    assert_matches!(attempt, Err(StoreError::OutcomeUnknown(..)));
    assert_eq!(cut.fired(), 1);
    near.settle().await;
    flush(&near).await;

    assert_eq!(way.deduct(&far, &sale).await, AttemptOutcome::Duplicate);

    let recorded = far.store.recorded(&sale.sku, sale.operation, None).await;
    assert_eq!(recorded.unwrap().expect("it is in SQL").delta, -1);
    let other = way.deduct(&far, &deduction("a", 1)).await;
    assert_matches!(other, AttemptOutcome::Deducted { .. });
    assert_exact(&near, "a", 3, 7).await;
}

/// Goal: two attempts with one key do not both sell, although they are for different levels.
///
/// Method: the second attempt is made while the last message of the first one, `EXEC`, is on its way.
#[rstest]
#[tokio::test]
async fn key_is_used_once_by_attempts_for_two_warehouses(
    #[values(Way::Script, Way::Watch, Way::Write)] way: Way,
) {
    let near = Fixture::on(On::Redis).await;
    let redis = near.redis_url().expect("stock lives in Redis");
    let (proxy, url) = Proxy::before(redis).await;
    let far = Fixture::at(Backend::Sqlite, near.url.clone()).await;
    let far = far.with(redis_options(&url));
    near.put("a", 10).await;
    let first = deduction_with_key("a", 1, "k");
    let second = Deduction {
        warehouse: place("east"),
        ..deduction_with_key("a", 1, "k")
    };
    let east = LevelChange {
        warehouse: place("east"),
        ..level_change("a", 10)
    };
    near.set(east).await;
    // Loads both levels.
    for used in [&first, &second] {
        let unkeyed = Deduction {
            idempotency: None,
            operation: OperationId::mint(),
            ..used.clone()
        };
        Way::Watch.deduct(&far, &unkeyed).await;
    }
    let hold = proxy.hold_request(b"EXEC\r\n");
    let late = Way::Watch.deduct(&far, &first);
    let other = async {
        hold.held().await;
        let sold = way.deduct(&near, &second).await;
        drop(hold);
        sold
    };
    let (late, other) = tokio::join!(late, other);
    assert_eq!((late, other), (AttemptOutcome::Conflict, On::Redis.done(8)));
    let again = Way::Watch.deduct(&far, &first).await;
    assert_eq!(again, AttemptOutcome::Duplicate);
}
