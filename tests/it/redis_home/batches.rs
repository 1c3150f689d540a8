//! Deductions that wait for Redis at the same time are sent in one script call. Each of them is
//! decided on its own.

use std::collections::BTreeSet;
use std::pin::pin;
use std::slice;
use std::sync::Arc;
use std::thread;

use futures_util::FutureExt;
use futures_util::future::join_all;
use rstest::rstest;
use stocklock::ports::{AttemptOutcome, Condition, DeductionStore as _, RedisMethod, StoreError};
use stocklock::stock::{Deduction, Durability};
use stocklock_testkit::assert_matches;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::{runtime, spawn};

use super::store_refusals::Private;
use super::{assert_exact, deduct, fixture, fixture_with_journal_limit, flush, run, sell};
use crate::store_contract::fixture::{
    Attempt, Fixture, On, deduction, deduction_with_key, redis_options,
};
use crate::support::proxy::Proxy;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};
use crate::support::services::fresh_redis;

/// Deducts all at once. The test has one thread, so all of them wait before the first call is sent.
async fn try_all(fixture: &Fixture, orders: &[Deduction]) -> Vec<Attempt> {
    let deduct = |order| fixture.store.deduct_in_redis(order, RedisMethod::Script);
    join_all(orders.iter().map(deduct)).await
}

async fn all(fixture: &Fixture, orders: &[Deduction]) -> Vec<AttemptOutcome> {
    let attempts = try_all(fixture, orders).await.into_iter();
    attempts.map(Result::unwrap).collect()
}

/// How many of `count` deductions of one unit are refused because the journal is full.
async fn refused_as_full(fixture: &Fixture, count: usize) -> usize {
    let attempts = try_all(fixture, &of_one_sku(vec![1; count])).await;
    attempts.iter().filter(|attempt| is_full(attempt)).count()
}

fn is_full(attempt: &Attempt) -> bool {
    matches!(attempt, Err(StoreError::JournalFull))
}

fn of_one_sku(units: impl IntoIterator<Item = u32>) -> Vec<Deduction> {
    let units = units.into_iter();
    units.map(|units| deduction("a", units)).collect()
}

fn sold(remaining: i64) -> AttemptOutcome {
    On::Redis.done(remaining)
}

/// The number of movements in each entry of the only journal.
async fn entries(fixture: &Fixture) -> Vec<usize> {
    let journal = fixture.key("journal:*").await;
    let range = ["XRANGE", &journal, "-", "+"];
    let entries: Vec<(String, Vec<String>)> = run(fixture, &range).await;
    let movements = |(_, fields): (String, Vec<String>)| {
        let name = fields.iter().position(|field| field == "movements");
        fields[name.expect("it has movements") + 1].lines().count()
    };
    entries.into_iter().map(movements).collect()
}

#[tokio::test]
async fn deductions_of_a_batch_are_decided_in_order_of_arrival() {
    let fixture = fixture(Sqlite).await;
    fixture.put("a", 10).await;
    let attempts = all(&fixture, &of_one_sku([4, 7, 3, 2, 2, 1, 1])).await;
    let short = |available| AttemptOutcome::Unrecorded { available };
    let expected = [
        sold(6),
        short(6),
        sold(3),
        sold(1),
        short(1),
        sold(0),
        short(0),
    ];
    assert_eq!(attempts, expected);
    assert_eq!(entries(&fixture).await, [4], "one entry for all of them");
    assert_eq!(fixture.level("a").await.on_hand, 0);
    assert_exact(&fixture, "a", 10, 0).await;
    let movements = fixture.movements("a").await;
    let left: Vec<_> = movements.iter().map(|m| m.available_after).collect();
    assert_eq!(left, [0, 1, 3, 6, 10]);
}

#[tokio::test]
async fn same_key_several_times_in_a_batch_sells_once() {
    let fixture = fixture(Sqlite).await;
    fixture.put("a", 10).await;
    let orders: Vec<_> = (0..8).map(|_| deduction_with_key("a", 1, "k")).collect();
    let attempts = all(&fixture, &orders).await;
    assert_eq!(attempts[0], sold(9));
    assert_eq!(attempts[1..], [const { AttemptOutcome::Duplicate }; 7]);
    // In the next batch it is a duplicate among others.
    let mut orders = of_one_sku([1, 1]);
    orders.insert(1, deduction_with_key("a", 1, "k"));
    let attempts = all(&fixture, &orders).await;
    assert_eq!(attempts, [sold(8), AttemptOutcome::Duplicate, sold(7)]);
}

/// After Redis has lost everything, SQL is asked for the keys. The deductions without a key do not
/// wait for that.
#[tokio::test]
async fn key_that_only_sql_has_is_found_in_a_batch() {
    let fixture = fixture(Sqlite).await;
    fixture.put("a", 10).await;
    all(&fixture, &[deduction_with_key("a", 1, "known")]).await;
    fixture.settle().await;
    flush(&fixture).await;
    fixture.level("a").await;

    let orders = [
        deduction("a", 1),
        deduction_with_key("a", 1, "known"),
        deduction_with_key("a", 1, "new"),
        deduction("a", 1),
    ];
    let attempts = all(&fixture, &orders).await;

    // Those with a key are sent after those without.
    let duplicate = AttemptOutcome::Duplicate;
    assert_eq!(attempts, [sold(8), duplicate, sold(6), sold(7)]);
    assert_eq!(entries(&fixture).await, [2, 1]);
    assert_eq!(fixture.audit("a").await.sold, 4);
}

/// More than fit into one call, one entry, one transaction or one prepared statement.
#[rstest]
#[tokio::test]
async fn nine_hundred_deductions_at_once_are_all_in_the_ledger(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let fixture = fixture(backend).await;
    fixture.put("a", 1500).await;
    let order = |number: u32| {
        if number.is_multiple_of(2) {
            deduction_with_key("a", 1, &format!("k{number}"))
        } else {
            deduction("a", 1)
        }
    };
    let orders: Vec<_> = (0..900).map(order).collect();
    let attempts = all(&fixture, &orders).await;
    // Each unit is sold once; which of two calls comes first is open.
    let left: BTreeSet<_> = (600..1500).collect();
    let remaining = attempts.into_iter().map(|attempt| match attempt {
        AttemptOutcome::Deducted {
            remaining,
            durability: Durability::Redis,
        } => remaining,
        other => panic!("{other:?}"),
    });
    assert_eq!(remaining.collect::<BTreeSet<_>>(), left);
    let sizes = entries(&fixture).await;
    assert_eq!(sizes.iter().sum::<usize>(), 900);
    assert!(sizes.iter().all(|size| *size <= 64), "{sizes:?}");
    assert!(sizes.len() < 100, "{sizes:?}");

    assert_exact(&fixture, "a", 900, 600).await;

    let movements = fixture.movements("a").await;
    assert_eq!(movements.len(), 901);
    let left: BTreeSet<_> = movements.iter().map(|m| m.available_after).collect();
    assert_eq!(left, (600..=1500).collect());
    let sales = movements.iter().filter(|movement| movement.delta < 0);
    let (times, hashes): (BTreeSet<_>, Vec<_>) = sales
        .map(|sale| (&*sale.created_at, sale.request_hash))
        .unzip();
    // The movements of one entry have one time, however they were recorded.
    assert!(times.len() <= sizes.len(), "{times:?}");
    let expected = orders[0].idempotency.as_ref().map(|key| key.hash);
    assert_eq!(hashes.iter().filter(|hash| **hash == expected).count(), 450);
    assert_eq!(hashes.iter().filter(|hash| hash.is_none()).count(), 450);
}

#[tokio::test]
async fn batch_that_fills_the_journal_is_accepted_in_part() {
    let fixture = fixture_with_journal_limit(3).await;
    fixture.put("a", 10).await;
    let attempts = try_all(&fixture, &of_one_sku([1; 7])).await;
    let full: Vec<_> = attempts.iter().map(is_full).collect();
    assert_eq!(full, [false, false, false, true, true, true, true]);
    let read = fixture.level("a").await;
    assert_eq!(read.on_hand, 7);
    // One entry, but three movements, which count for every way to deduct.
    assert_eq!(entries(&fixture).await, [3]);
    for next in [
        deduct(&fixture, "a", RedisMethod::Script).await,
        deduct(&fixture, "a", RedisMethod::Watch).await,
        fixture.write_back(&read, Condition::Version).await,
    ] {
        assert!(is_full(&next), "{next:?}");
    }
    fixture.settle().await;
    assert_eq!(refused_as_full(&fixture, 4).await, 1);
}

#[tokio::test]
async fn applied_and_unreadable_entries_free_the_journal() {
    let fixture = fixture_with_journal_limit(9).await;
    fixture.put("a", 100).await;
    all(&fixture, &of_one_sku([1; 5])).await;
    let journal = fixture.key("journal:*").await;
    let unreadable = ["XADD", &journal, "*", "movements", "{}"];
    run::<String>(&fixture, &unreadable).await;
    all(&fixture, &of_one_sku([1; 4])).await;
    assert_eq!(refused_as_full(&fixture, 1).await, 1);
    fixture.settle().await;
    assert_eq!(entries(&fixture).await, [0; 0]);
    // The unreadable entry is set aside.
    assert_eq!(refused_as_full(&fixture, 12).await, 3);
}

/// The counter of waiting movements is not trusted beyond the number of entries.
#[tokio::test]
async fn wrong_movement_counter_neither_stops_sales_nor_unbounds_them() {
    let fixture = fixture_with_journal_limit(3).await;
    fixture.put("a", 1000).await;
    sell(&fixture, "a", 1).await;
    let counter = fixture.key("tally:*").await;
    run::<u64>(&fixture, &["HSET", &counter, "waiting", "many"]).await;
    sell(&fixture, "a", 2).await;
    assert_eq!(refused_as_full(&fixture, 1).await, 1);
    // The counter is lost: three entries are at least three movements.
    run::<u64>(&fixture, &["DEL", &counter]).await;
    assert_eq!(refused_as_full(&fixture, 1).await, 1);
    fixture.settle().await;
    // The counter of a journal that was lost since.
    run::<u64>(&fixture, &["HSET", &counter, "waiting", "99"]).await;
    sell(&fixture, "a", 3).await;
    assert_eq!(refused_as_full(&fixture, 1).await, 1);
    fixture.settle().await;
    assert_eq!(fixture.audit("a").await.sold, 6);
}

#[tokio::test]
async fn cancelled_caller_does_not_cancel_others_of_its_batch() {
    let fixture = fixture(Sqlite).await;
    fixture.put("a", 11).await;
    // After it, the clock of Redis is known, and a deduction is queued when it is first polled.
    sell(&fixture, "a", 1).await;
    let orders = of_one_sku([1, 2, 3]);
    let deduct = |order| fixture.store.deduct_in_redis(order, RedisMethod::Script);
    for order in &orders[..2] {
        let cancelled = deduct(order).now_or_never();
        assert!(cancelled.is_none(), "{cancelled:?}");
    }
    // The cancelled deductions were queued before, and happen.
    assert_eq!(deduct(&orders[2]).await.unwrap(), sold(4));
    assert_eq!(fixture.audit("a").await.sold, 7);
}

#[tokio::test]
async fn error_of_a_script_call_is_returned_to_its_whole_batch() {
    let fixture = fixture(Sqlite).await;
    fixture.put("a", 10).await;
    fixture.level("a").await;
    let level = fixture.key("stock:*").await;
    run::<String>(&fixture, &["RENAME", &level, "aside"]).await;
    run::<u64>(&fixture, &["LPUSH", &level, "no level"]).await;
    for attempt in try_all(&fixture, &of_one_sku([1; 5])).await {
        assert_matches!(attempt, Err(StoreError::Bug(_)));
    }
    run::<String>(&fixture, &["RENAME", "aside", &level]).await;
    all(&fixture, &of_one_sku([1; 5])).await;
    assert_eq!(fixture.audit("a").await.sold, 5);
}

/// Two calls are in flight when the runtime of their deductions ends. A third deduction waits behind
/// them. It may have been sent, as far as its caller knows.
#[tokio::test]
async fn deduction_behind_aborted_calls_has_an_unknown_outcome() {
    let redis = fresh_redis().await;
    let (proxy, url) = Proxy::before(&redis.url).await;
    let fixture = Fixture::new(Sqlite).await.with(redis_options(&url));
    fixture.put("a", 10).await;
    deduct(&fixture, "a", RedisMethod::Script).await.unwrap();
    let _hold = proxy.hold_request(b"\tsingle-sql\t");
    let (sent, both_are_sent) = oneshot::channel();
    let (end, ended) = oneshot::channel::<()>();
    let store = Arc::clone(&fixture.store);
    let other = thread::spawn(move || {
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(async move {
            for _ in 0..2 {
                let store = Arc::clone(&store);
                let order = deduction("a", 1);
                spawn(async move { store.deduct_in_redis(&order, RedisMethod::Script).await });
                // The other tasks of this thread take turns until the call is sent.
                for _ in 0..100 {
                    yield_now().await;
                }
            }
            sent.send(()).unwrap();
            ended.await.unwrap();
        });
    });
    both_are_sent.await.unwrap();
    let order = deduction("a", 1);
    let mut third = pin!(fixture.store.deduct_in_redis(&order, RedisMethod::Script));
    assert!(third.as_mut().now_or_never().is_none());
    end.send(()).unwrap();
    other.join().unwrap();
    let outcome = third.await;
    assert_matches!(outcome, Err(StoreError::OutcomeUnknown(..)));
}

/// The others of the batch need no memory.
#[tokio::test]
async fn refused_sale_fails_no_other_of_its_batch() {
    let redis = Private::start(&[]).await;
    let fixture = &redis.fixture;
    let known = deduction_with_key("a", 1, "known");
    all(fixture, slice::from_ref(&known)).await;
    redis.run("CONFIG SET maxmemory 1").await;
    let orders = [
        deduction("a", 8),
        known,
        deduction("a", 10),
        deduction("a", 3),
    ];
    let attempts = try_all(fixture, &orders).await;
    redis.run("CONFIG SET maxmemory 0").await;
    let [sold, replay, short, other] = &attempts[..] else {
        panic!("{attempts:?}")
    };
    for refused in [sold, other] {
        assert_matches!(refused, Err(StoreError::Unavailable(..)));
    }
    assert_matches!(replay, Ok(AttemptOutcome::Duplicate));
    assert_matches!(short, Ok(AttemptOutcome::Unrecorded { available: 8 }));
    assert_exact(fixture, "a", 2, 8).await;
}
