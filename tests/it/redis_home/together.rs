//! Deductions that wait for Redis at the same moment go there together; each is decided by itself.

use std::collections::BTreeSet;

use futures_util::FutureExt;
use futures_util::future::join_all;
use rstest::rstest;
use stocklock::stock::Deduction;
use stocklock::store::{Attempt, InRedis, StoreError};

use super::loading::sell;
use crate::store_contract::fixture::{Fixture, deduction, deduction_with_key};
use crate::support::services::Backend;
use crate::support::services::Backend::{Mysql, Postgres, Sqlite};

/// All at once: on a test's one thread every one of them waits before the first call is made.
async fn deduct_all(
    fixture: &Fixture,
    deductions: &[Deduction],
) -> Vec<Result<Attempt, StoreError>> {
    let deduct = |deduction| fixture.store.deduct_in_redis(deduction, InRedis::Script);
    join_all(deductions.iter().map(deduct)).await
}

fn of_one_sku(units: impl IntoIterator<Item = u32>) -> Vec<Deduction> {
    units
        .into_iter()
        .map(|units| deduction("a", units))
        .collect()
}

fn remaining(answer: Result<Attempt, StoreError>) -> i64 {
    match answer {
        Ok(Attempt::Journaled { remaining }) => remaining,
        other => panic!("{other:?}"),
    }
}

fn is_full(answer: &Result<Attempt, StoreError>) -> bool {
    matches!(answer, Err(StoreError::JournalFull))
}

/// The lines of each of the journal's entries.
async fn entries(fixture: &Fixture) -> Vec<usize> {
    let journal = fixture.key("journal:*").await;
    let mut range = redis::cmd("XRANGE");
    let range = range.arg(journal).arg("-").arg("+");
    let entries: Vec<(String, Vec<String>)> = fixture.redis(range).await;
    let lines = |fields: Vec<String>| {
        let name = fields.iter().position(|field| field == "movements");
        fields[name.expect("it has movements") + 1].lines().count()
    };
    entries
        .into_iter()
        .map(|(_, fields)| lines(fields))
        .collect()
}

#[tokio::test]
async fn each_gets_what_is_left_in_the_order_of_arrival() {
    let fixture = Fixture::in_redis(Sqlite, |options| options).await;
    fixture.put("a", 10).await;
    let answers = deduct_all(&fixture, &of_one_sku([4, 7, 3, 2, 2, 1, 1])).await;
    let answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
    let sold = |remaining| Attempt::Journaled { remaining };
    let short = |available| Attempt::Insufficient { available };
    let expected = [
        sold(6),
        short(6),
        sold(3),
        sold(1),
        short(1),
        sold(0),
        short(0),
    ];
    assert_eq!(answers, expected);
    assert_eq!(entries(&fixture).await, [4], "one entry for all of them");
    let level = fixture.level("a").await;
    let audit = fixture.audit("a").await;
    assert_eq!(
        (level.on_hand, audit.sold, audit.consistent()),
        (0, 10, true)
    );
    let movements = fixture.movements("a").await;
    let left: Vec<_> = movements.iter().map(|m| m.available_after).collect();
    assert_eq!(left, [0, 1, 3, 6, 10]);
}

#[tokio::test]
async fn a_key_that_comes_several_times_at_once_sells_once() {
    let fixture = Fixture::in_redis(Sqlite, |options| options).await;
    fixture.put("a", 10).await;
    let orders: Vec<_> = (0..8).map(|_| deduction_with_key("a", 1, "k")).collect();
    let answers = deduct_all(&fixture, &orders).await;
    let mut sold = answers.into_iter().map(Result::unwrap);
    assert_eq!(sold.next(), Some(Attempt::Journaled { remaining: 9 }));
    assert!(sold.all(|other| other == Attempt::Duplicate));
    // And in the next call, among others.
    let mut orders = of_one_sku([1, 1]);
    orders.insert(1, deduction_with_key("a", 1, "k"));
    let answers = deduct_all(&fixture, &orders).await;
    let answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
    let sold = |remaining| Attempt::Journaled { remaining };
    assert_eq!(answers, [sold(8), Attempt::Duplicate, sold(7)]);
}

/// After Redis has lost everything, only SQL can tell: it is asked for some, and nobody else waits.
#[tokio::test]
async fn a_key_that_only_sql_has_is_found_among_others() {
    let fixture = Fixture::in_redis(Sqlite, |options| options).await;
    fixture.put("a", 10).await;
    let known = deduction_with_key("a", 1, "known");
    deduct_all(&fixture, std::slice::from_ref(&known)).await;
    fixture.settle().await;
    fixture.redis::<()>(&redis::cmd("FLUSHDB")).await;
    fixture.level("a").await;

    let orders = [
        deduction("a", 1),
        deduction_with_key("a", 1, "known"),
        deduction_with_key("a", 1, "new"),
        deduction("a", 1),
    ];
    let answers = deduct_all(&fixture, &orders).await;

    let answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
    let sold = |remaining| Attempt::Journaled { remaining };
    // Whose keys are asked for come after those that have none.
    assert_eq!(answers, [sold(8), Attempt::Duplicate, sold(6), sold(7)]);
    assert_eq!(entries(&fixture).await, [2, 1]);
    assert_eq!(fixture.audit("a").await.sold, 4);
}

/// More than one call, one entry, one transaction, one prepared statement take.
#[rstest]
#[tokio::test]
async fn many_at_once_are_all_in_the_ledger(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let fixture = Fixture::in_redis(backend, |options| options).await;
    fixture.put("a", 1500).await;
    let order = |number: u32| {
        if number.is_multiple_of(2) {
            deduction_with_key("a", 1, &format!("k{number}"))
        } else {
            deduction("a", 1)
        }
    };
    let orders: Vec<_> = (0..900).map(order).collect();
    let answers = deduct_all(&fixture, &orders).await;
    // Each unit once; which of two calls comes first is open.
    let remaining: BTreeSet<_> = answers.into_iter().map(remaining).collect();
    assert_eq!(remaining, (600..1500).collect());
    let lines = entries(&fixture).await;
    assert_eq!(lines.iter().sum::<usize>(), 900);
    assert!(lines.iter().all(|lines| *lines <= 64), "{lines:?}");
    assert!(lines.len() < 100, "{lines:?}");

    let audit = fixture.audit("a").await;

    assert_eq!((audit.sold, audit.on_hand, audit.pending), (900, 600, 0));
    assert!(audit.consistent(), "{audit:?}");
    let movements = fixture.movements("a").await;
    assert_eq!(movements.len(), 901);
    let left: BTreeSet<_> = movements.iter().map(|m| m.available_after).collect();
    assert_eq!(left, (600..=1500).collect());
    let sales = movements.iter().filter(|movement| movement.delta < 0);
    let (times, hashes): (BTreeSet<_>, Vec<_>) = sales
        .map(|sale| (&*sale.created_at, sale.request_hash))
        .unzip();
    // Those of one entry have one time, to the millisecond, however they were recorded.
    assert!(times.len() <= lines.len(), "{times:?}");
    let expected = orders[0].idempotency.as_ref().map(|key| key.hash);
    assert_eq!(hashes.iter().filter(|hash| **hash == expected).count(), 450);
    assert_eq!(hashes.iter().filter(|hash| hash.is_none()).count(), 450);
}

#[tokio::test]
async fn a_journal_that_is_full_amid_a_call_takes_those_who_came_first() {
    let fixture = Fixture::in_redis(Sqlite, |mut options| {
        options.journal_limit = 3;
        options
    })
    .await;
    fixture.put("a", 10).await;
    let answers = deduct_all(&fixture, &of_one_sku([1; 7])).await;
    let full: Vec<_> = answers.iter().map(is_full).collect();
    assert_eq!(full, [false, false, false, true, true, true, true]);
    assert_eq!(fixture.level("a").await.on_hand, 7);
    // One entry, but three movements: so it is for whoever comes next, in whatever way.
    assert_eq!(entries(&fixture).await, [3]);
    let read = fixture.level("a").await;
    for how in [InRedis::Script, InRedis::Watch] {
        let next = fixture.store.deduct_in_redis(&deduction("a", 1), how).await;
        assert!(is_full(&next), "{next:?}");
    }
    let next = fixture
        .store
        .deduct_if_version(&deduction("a", 1), &read)
        .await;
    assert!(is_full(&next), "{next:?}");
    fixture.settle().await;
    let answers = deduct_all(&fixture, &of_one_sku([1; 4])).await;
    assert_eq!(answers.iter().filter(|answer| is_full(answer)).count(), 1);
}

/// What the ledger has leaves room; what it cannot take does not.
#[tokio::test]
async fn movements_make_room_as_they_depart() {
    let fixture = Fixture::in_redis(Sqlite, |mut options| {
        options.journal_limit = 9;
        options
    })
    .await;
    fixture.put("a", 100).await;
    deduct_all(&fixture, &of_one_sku([1; 5])).await;
    let journal = fixture.key("journal:*").await;
    let mut add = redis::cmd("XADD");
    let strange = add.arg(&journal).arg("*").arg("movements").arg("{}");
    fixture.redis::<String>(strange).await;
    deduct_all(&fixture, &of_one_sku([1; 4])).await;
    assert!(is_full(&deduct_all(&fixture, &of_one_sku([1])).await[0]));
    fixture.settle().await;
    assert_eq!(entries(&fixture).await, [1]);
    // The strange one counts as one.
    let answers = deduct_all(&fixture, &of_one_sku([1; 12])).await;
    assert_eq!(answers.iter().filter(|answer| is_full(answer)).count(), 4);
}

/// The tally counts what the entries do not say; but it is bounded by what is there.
#[tokio::test]
async fn a_wrong_tally_neither_stops_sales_nor_lets_them_go_on_for_ever() {
    let fixture = Fixture::in_redis(Sqlite, |mut options| {
        options.journal_limit = 3;
        options
    })
    .await;
    fixture.put("a", 1000).await;
    sell(&fixture, "a", 1).await;
    let tally = fixture.key("tally:*").await;
    let mut set = redis::cmd("HSET");
    fixture
        .redis::<u64>(set.arg(&tally).arg("waiting").arg("many"))
        .await;
    sell(&fixture, "a", 2).await;
    assert!(is_full(&deduct_all(&fixture, &of_one_sku([1])).await[0]));
    // Lost: three entries are three movements at least.
    fixture.redis::<u64>(redis::cmd("DEL").arg(&tally)).await;
    assert!(is_full(&deduct_all(&fixture, &of_one_sku([1])).await[0]));
    fixture.settle().await;
    // Of a journal that was lost since.
    let mut set = redis::cmd("HSET");
    fixture
        .redis::<u64>(set.arg(&tally).arg("waiting").arg(99))
        .await;
    sell(&fixture, "a", 3).await;
    assert!(is_full(&deduct_all(&fixture, &of_one_sku([1])).await[0]));
    fixture.settle().await;
    assert_eq!(fixture.audit("a").await.sold, 6);
}

#[tokio::test]
async fn a_caller_that_leaves_takes_nobody_along() {
    let fixture = Fixture::in_redis(Sqlite, |options| options).await;
    fixture.put("a", 10).await;
    let orders = of_one_sku([1, 2, 3]);
    for order in &orders[..2] {
        let left = fixture
            .store
            .deduct_in_redis(order, InRedis::Script)
            .now_or_never();
        assert!(left.is_none(), "{left:?}");
    }
    let sold = fixture
        .store
        .deduct_in_redis(&orders[2], InRedis::Script)
        .await;
    // Those who have left had asked before.
    assert_eq!(sold.unwrap(), Attempt::Journaled { remaining: 4 });
    assert_eq!(fixture.audit("a").await.sold, 6);
}

/// What keeps one call from being answered is said to all whom it carried, and the next one is
/// another try.
#[tokio::test]
async fn what_redis_refuses_is_refused_to_all() {
    let fixture = Fixture::in_redis(Sqlite, |options| options).await;
    fixture.put("a", 10).await;
    fixture.level("a").await;
    let level = fixture.key("stock:*").await;
    let mut rename = redis::cmd("RENAME");
    fixture
        .redis::<String>(rename.arg(&level).arg("aside"))
        .await;
    fixture
        .redis::<u64>(redis::cmd("LPUSH").arg(&level).arg("no level"))
        .await;
    for answer in deduct_all(&fixture, &of_one_sku([1; 5])).await {
        assert!(matches!(answer, Err(StoreError::Bug(_))), "{answer:?}");
    }
    let mut rename = redis::cmd("RENAME");
    fixture
        .redis::<String>(rename.arg("aside").arg(&level))
        .await;
    let answers = deduct_all(&fixture, &of_one_sku([1; 5])).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(fixture.audit("a").await.sold, 5);
}
