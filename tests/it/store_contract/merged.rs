//! Batches of several levels in one transaction: each level by itself, as if there were no others.

use std::time::Duration;

use rstest::rstest;
use stocklock::ports::{AttemptOutcome, BatchAnswer, StoreError};
use stocklock::stock::{Deduction, LevelChange, Remark, Remarks, Warehouse};
use stocklock_testkit::{assert_matches, eventually};
use tokio::time::{sleep_until, timeout};

use super::fixture::{
    Fixture, MODEL, MYSQL, On, Operations as _, POSTGRES, Raw, SOON, SQLITE, assert_records,
    committed, deduction, deduction_with_key, level_change, name, open, open_patient, open_waiting,
};
use crate::support::proxy::Proxy;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

type Batches = Vec<Vec<Deduction>>;

async fn merged(fixture: &Fixture, batches: &Batches) -> Vec<Option<Vec<AttemptOutcome>>> {
    outcomes(fixture.deductions().deduct_levels(batches).await)
}

/// The outcomes, none of which may be an error.
fn outcomes(answers: Vec<Option<Vec<BatchAnswer>>>) -> Vec<Option<Vec<AttemptOutcome>>> {
    let outcome = |answer: BatchAnswer| answer.expect("no error");
    let batch = |answers: Vec<_>| answers.into_iter().map(outcome).collect();
    answers.into_iter().map(|one| one.map(batch)).collect()
}

/// The outcomes of a batch that was written.
#[expect(clippy::unnecessary_wraps, reason = "the others are `None`")]
fn sold(remaining: impl IntoIterator<Item = i64>) -> Option<Vec<AttemptOutcome>> {
    Some(remaining.into_iter().map(committed).collect())
}

/// Each ledger agrees with its level, and has every version from 1 on.
async fn assert_in_order(fixture: &Fixture, skus: &[&str]) {
    for sku in skus {
        fixture.assert_in_order(sku).await;
    }
}

#[rstest]
#[tokio::test]
async fn each_level_is_written_with_all_fields(#[values(SQLITE, MYSQL, POSTGRES, MODEL)] on: On) {
    let fixture = Fixture::on(on).await;
    for (sku, units) in [("a", 10), ("b", 5), ("C", 3)] {
        fixture.put(sku, units).await;
    }
    let remark = |text| Some(Remark::parse("remark", text).unwrap());
    let remarks = Remarks {
        reference: remark("订单 😀 \\ \" '"),
        reason: remark("é"),
    };
    let batches = vec![
        vec![deduction("C", 3)],
        vec![
            deduction_with_key("a", 3, "it's\"K\\1\""),
            Deduction {
                remarks,
                ..deduction("a", 2)
            },
            deduction_with_key("a", 4, "k-3"),
        ],
        vec![deduction_with_key("b", 1, "k-4"), deduction("b", 1)],
    ];
    let expected = [sold([0]), sold([7, 5, 1]), sold([4, 3])];
    assert_eq!(merged(&fixture, &batches).await, expected);
    assert_in_order(&fixture, &["a", "b", "C"]).await;
    for (batch, outcomes) in batches.iter().zip(expected) {
        let movements = fixture.movements(batch[0].sku.as_str()).await;
        let sales = movements.iter().rev().skip(1);
        for ((sale, order), outcome) in sales.zip(batch).zip(outcomes.unwrap()) {
            assert_records(sale, order);
            assert_eq!(committed(sale.available_after), outcome);
        }
    }
    assert!(merged(&fixture, &Batches::new()).await.is_empty());
}

/// A level with too few units, an unknown one, and the same SKU elsewhere.
#[rstest]
#[tokio::test]
async fn refused_level_holds_up_no_other(#[values(SQLITE, MYSQL, POSTGRES, MODEL)] on: On) {
    let fixture = Fixture::with(on, "a", 3).await;
    fixture.put("short", 2).await;
    fixture
        .set(LevelChange {
            backorder_limit: Some(4),
            ..level_change("later", 1)
        })
        .await;
    let east = Warehouse::parse("east").unwrap();
    fixture
        .set(LevelChange {
            warehouse: east.clone(),
            ..level_change("a", 9)
        })
        .await;
    let in_east = Deduction {
        warehouse: east,
        ..deduction("a", 1)
    };
    let batches = vec![
        vec![deduction("short", 1), deduction("short", 2)],
        vec![deduction("a", 2)],
        vec![deduction("unknown", 1)],
        vec![in_east],
        vec![deduction("later", 2), deduction("later", 3)],
    ];
    let expected = [None, sold([1]), None, sold([8]), sold([3, 0])];
    assert_eq!(merged(&fixture, &batches).await, expected);
    assert_eq!(fixture.level("short").await.on_hand, 2);
    assert_eq!(fixture.level("later").await.on_hand, -4);
    assert_in_order(&fixture, &["short", "later"]).await;
}

#[rstest]
#[tokio::test]
async fn recorded_key_leaves_out_its_level(#[values(SQLITE, MYSQL, POSTGRES, MODEL)] on: On) {
    let fixture = Fixture::on(on).await;
    for sku in ["a", "b", "c"] {
        fixture.put(sku, 5).await;
    }
    let first = vec![vec![deduction_with_key("a", 1, "K")]];
    assert_eq!(merged(&fixture, &first).await, [sold([4])]);
    let second = deduction("c", 1);
    assert_eq!(
        merged(&fixture, &vec![vec![second.clone()]]).await,
        [sold([4])]
    );
    let batches = vec![
        vec![deduction_with_key("b", 1, "K"), deduction("b", 1)],
        vec![deduction("a", 1), deduction_with_key("a", 1, "L")],
        vec![second],
    ];
    assert_eq!(merged(&fixture, &batches).await, [None, sold([3, 2]), None]);
    // Two levels have the same new key.
    let batches = ["a", "b"].map(|sku| vec![deduction_with_key(sku, 1, "new")]);
    let expected = [sold([1]), Some(vec![AttemptOutcome::Duplicate])];
    assert_eq!(merged(&fixture, &batches.into()).await, expected);
    for (sku, left) in [("a", 1), ("b", 5), ("c", 4)] {
        assert_eq!(fixture.level(sku).await.on_hand, left);
    }
    assert_in_order(&fixture, &["a", "b", "c"]).await;
}

/// Another transaction has locked one level. The others do not wait for it.
#[rstest]
#[tokio::test]
async fn locked_level_is_left_out(#[values(Mysql, Postgres)] backend: Backend) {
    let fixture = Fixture::new(backend).await;
    for sku in ["a", "b", "c"] {
        fixture.put(sku, 5).await;
    }
    let mut rival = Raw::connect(backend, &fixture.url).await;
    rival.begin().await;
    rival
        .run("UPDATE stock SET on_hand = on_hand WHERE sku = 'b'")
        .await
        .unwrap();
    let batches: Batches = ["a", "b", "c"].map(|sku| vec![deduction(sku, 1)]).into();
    let answers = merged(&fixture, &batches).await;
    assert_eq!(answers, [sold([4]), None, sold([4])]);
    rival.run("ROLLBACK").await.unwrap();
    assert_eq!(merged(&fixture, &batches[1..2].to_vec()).await, [sold([4])]);
    assert_in_order(&fixture, &["a", "b", "c"]).await;
}

/// The other levels of the table are not locked, whatever order the database reads them in.
#[rstest]
#[tokio::test]
async fn levels_that_are_not_named_stay_free(#[values(Mysql, Postgres)] backend: Backend) {
    let fixture = Fixture::new(backend).await;
    for number in 0..30 {
        fixture.put(&format!("sku-{number}"), 5).await;
    }
    let mut rival = Raw::connect(backend, &fixture.url).await;
    rival.begin().await;
    rival
        .run("UPDATE stock SET on_hand = on_hand WHERE sku < 'sku-2'")
        .await
        .unwrap();
    let batches: Batches = (20..30)
        .map(|one| vec![deduction(&format!("sku-{one}"), 1)])
        .collect();
    assert_eq!(merged(&fixture, &batches).await, vec![sold([4]); 10]);
    rival.run("ROLLBACK").await.unwrap();
}

/// Replicas whose transactions name the same levels in other orders: no deadlock, no unit sold twice.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_with_the_same_levels_sell_every_unit_once(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    const SKUS: [&str; 4] = ["a", "b", "c", "d"];
    let fixture = Fixture::new(backend).await;
    for sku in SKUS {
        fixture.put(sku, 50).await;
    }
    let stores = [(); 3].map(|()| open(&fixture.url, 4));
    let buyers = stores.into_iter().enumerate().map(|(number, store)| {
        tokio::spawn(async move {
            let mut sold = 0;
            for round in 0..30 {
                let mut skus = SKUS;
                skus.rotate_left((number + round) % 4);
                let two = |sku| [(); 2].map(|()| deduction(sku, 1)).to_vec();
                let batches: Batches = skus.map(two).into();
                for answers in store.deduct_levels(&batches).await.into_iter().flatten() {
                    for answer in answers {
                        assert_matches!(answer, Ok(AttemptOutcome::Deducted { .. }));
                        sold += 1;
                    }
                }
            }
            sold
        })
    });
    let mut sold = 0;
    for buyer in buyers.collect::<Vec<_>>() {
        sold += timeout(SOON, buyer).await.expect("soon").unwrap();
    }
    let mut left = 0;
    for sku in SKUS {
        left += fixture.level(sku).await.on_hand;
    }
    assert_eq!(sold + left, 200);
    // Each transaction has at least the levels that no other one has then.
    assert!(sold >= 100, "{sold}");
    assert_in_order(&fixture, &SKUS).await;
}

/// Another transaction is recording a key of one level, and is still open. Nothing is written, and no row
/// stays locked until that transaction ends.
#[rstest]
#[tokio::test]
async fn key_in_flight_keeps_no_level_locked(#[values(Mysql, Postgres)] backend: Backend) {
    let fixture = Fixture::with(backend, "a", 5).await;
    fixture.put("b", 5).await;
    let mut first = Raw::recording_key(backend, &fixture.url).await;
    let batches = [
        vec![deduction("a", 1)],
        vec![deduction_with_key("b", 1, "K")],
    ];
    let patient = open_patient(&fixture.url);
    // With another operation, and alone in its transaction.
    for some in [&batches[..], &batches[1..]] {
        let answers = timeout(SOON, patient.deduct_levels(some)).await;
        let answers = outcomes(answers.expect("it does not wait for the key"));
        assert_eq!(answers, vec![None; some.len()]);
    }
    // PostgreSQL sends the error before it gives back the rows.
    let free = batches[..1].to_vec();
    let is_sold = async || merged(&fixture, &free).await == [sold([4])];
    eventually("the other level is free", SOON, is_sold).await;
    first.run("ROLLBACK").await.unwrap();
    assert_eq!(merged(&fixture, &batches[1..].to_vec()).await, [sold([4])]);
    assert_in_order(&fixture, &["a", "b"]).await;
}

/// Half of the connections for writes wait for no lock. MariaDB 10.11 could not commit on one after it had
/// skipped a row.
#[tokio::test]
async fn locked_level_is_left_out_on_a_connection_that_does_not_wait() {
    let fixture = Fixture::with(Mysql, "a", 5).await;
    fixture.put("b", 5).await;
    let mut holder = Raw::connect(Mysql, &fixture.url).await;
    for statement in [
        "BEGIN",
        "SELECT on_hand FROM stock WHERE sku = 'a' FOR UPDATE",
    ] {
        holder.run(statement).await.unwrap();
    }
    let mut raw = Raw::connect(Mysql, &fixture.url).await;
    let levels = r#"[[0, "a", "main", -1, 1], [1, "b", "main", -1, 1]]"#;
    let movement = |level: u8, sku: &str| {
        let place = format!(r#"json_quote('[{level}, "{sku}", "main"]')"#);
        format!(r#"concat('[[0, 0, "{level:032}", -1, ""], ', {place}, ']')"#)
    };
    let (a, b) = (movement(0, "a"), movement(1, "b"));
    let movements = format!("concat('[', {a}, ', ', {b}, ']')");
    let write = format!("CALL stocklock_write_1(1, 0, 0, 's', 9e15, '{levels}', {movements})");
    for statement in ["SET SESSION innodb_lock_wait_timeout = 0", write.leak()] {
        raw.run(statement).await.unwrap();
    }
    assert_eq!(fixture.level("b").await.on_hand, 4);
    holder.run("ROLLBACK").await.unwrap();
    assert_eq!(fixture.level("a").await.on_hand, 5);
    assert_in_order(&fixture, &["a", "b"]).await;
}

/// The database would take the units of one of them only.
#[rstest]
#[tokio::test]
async fn level_that_is_named_twice_is_written_with_the_sum(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let fixture = Fixture::with(backend, "a", 9).await;
    let batches = vec![vec![deduction("a", 1)], vec![deduction("a", 3)]];
    assert_eq!(merged(&fixture, &batches).await, [sold([8]), sold([5])]);
    assert_in_order(&fixture, &["a"]).await;
}

/// A parameter of the message.
const STRATEGY: &str = "late-merged";

/// A message that arrives after its expiry sells nothing.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_message_sells_before_its_expiry_only(
    #[values(Mysql, Postgres)] backend: Backend,
    #[values(false, true)] in_time: bool,
) {
    let fixture = Fixture::with(backend, "a", 5).await;
    fixture.put("b", 5).await;
    let (proxy, url) = Proxy::before(&fixture.url).await;
    let wait_limit = Duration::from_secs(if in_time { 10 } else { 1 });
    let far = open_waiting(&url, 1, wait_limit);
    far.level(&name("a"), &Warehouse::default()).await.unwrap();
    let order = |sku| Deduction {
        strategy: STRATEGY,
        ..deduction(sku, 1)
    };
    let batches: Batches = ["a", "b"].map(|sku| vec![order(sku)]).into();
    let hold = proxy.hold_and_cut(STRATEGY.as_bytes());
    let mut expired_at = None;
    for answers in far.deduct_levels(&batches).await {
        match &answers.expect("it was sent")[..] {
            [Err(StoreError::OutcomeUnknown(_, expiry))] => expired_at = Some(expiry.here),
            known => panic!("{known:?}"),
        }
    }
    if !in_time {
        sleep_until(expired_at.expect("two answers") + Duration::from_millis(100)).await;
    }
    hold.deliver().await;
    let left = if in_time { 4 } else { 5 };
    for sku in ["a", "b"] {
        assert_eq!(fixture.level(sku).await.on_hand, left);
    }
    let again = far.deduct_levels(&batches).await;
    assert_eq!(
        outcomes(again),
        if in_time {
            [None, None]
        } else {
            [sold([4]), sold([4])]
        }
    );
    assert_in_order(&fixture, &["a", "b"]).await;
}
