//! Batches of deductions: each is answered as if they came one after the other.

use std::time::Duration;

use rstest::rstest;
use stocklock::ports::{AttemptOutcome, StoreError};
use stocklock::stock::{Operation, Remark, Remarks, RequestHash};
use stocklock_testkit::assert_matches;
use tokio::time::{Instant, timeout};

use super::fixture::{
    Attempt, Fixture, MODEL, MYSQL, On, Operations as _, POSTGRES, Raw, SOON, SQLITE, adjustment,
    assert_records, committed, deduction, deduction_with_key, idempotency, limit_change,
};
use crate::support::rival::Rival;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

/// The outcomes, none of which may be an error.
fn outcomes(answers: Vec<Attempt>) -> Vec<AttemptOutcome> {
    let answers = answers.into_iter();
    answers.map(|answer| answer.expect("no error")).collect()
}

async fn all(fixture: &Fixture, batch: &[Operation]) -> Vec<AttemptOutcome> {
    all_of(fixture, batch, false).await
}

async fn all_of(fixture: &Fixture, batch: &[Operation], read_first: bool) -> Vec<AttemptOutcome> {
    outcomes(fixture.deductions().write_batch(batch, read_first).await)
}

/// The batch has asked the ledger.
fn short(available: i64) -> AttemptOutcome {
    AttemptOutcome::Unrecorded { available }
}

#[track_caller]
fn assert_recorded(outcome: &AttemptOutcome, first: &Operation) {
    let AttemptOutcome::Recorded(movement) = outcome else {
        panic!("not found in the ledger: {outcome:?}");
    };
    assert_eq!(movement.operation, first.id);
}

/// How deductions from several levels are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    Shared,
    Apart { read_first: bool },
}

#[rstest]
#[tokio::test]
async fn each_of_a_batch_is_recorded_with_all_its_fields(
    #[values(SQLITE, MYSQL, POSTGRES, MODEL)] on: On,
    #[values(Sent::Shared, Sent::Apart { read_first: false }, Sent::Apart { read_first: true })]
    sent: Sent,
) {
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
            Operation {
                remarks,
                ..deduction("a", 2)
            },
            deduction_with_key("a", 4, "k-3"),
        ],
        vec![deduction_with_key("b", 1, "k-4"), deduction("b", 1)],
    ];
    let mut sold = Vec::new();
    match sent {
        Sent::Shared => {
            let answers = fixture.deductions().deduct_levels(&batches).await;
            sold.extend(
                answers
                    .into_iter()
                    .map(|one| outcomes(one.expect("it is made"))),
            );
        }
        Sent::Apart { read_first } => {
            for batch in &batches {
                sold.push(all_of(&fixture, batch, read_first).await);
            }
        }
    }
    let left = [&[0][..], &[7, 5, 1], &[4, 3]];
    for ((batch, sold), left) in batches.iter().zip(sold).zip(left) {
        let expected = left.iter().copied().map(committed).collect::<Vec<_>>();
        assert_eq!(sold, expected);
        let movements = fixture.assert_in_order(batch[0].level().0.as_str()).await;
        let created = movements.last().expect("the creation");
        for ((sale, order), available) in movements.iter().rev().skip(1).zip(batch).zip(left) {
            assert_records(sale, order);
            assert_eq!(sale.available_after, *available);
            assert!(sale.created_at >= created.created_at, "{sale:?}");
        }
        // Everything is found again, by key or by operation, unless it is alone.
        if batch.len() > 1 {
            let found = all(&fixture, batch).await;
            (found.iter().zip(batch)).for_each(|(one, order)| assert_recorded(one, order));
        }
    }
    assert_eq!(fixture.level("a").await.on_hand, 1);
}

#[rstest]
#[tokio::test]
async fn short_deduction_leaves_the_units_to_the_next(
    #[values(SQLITE, MYSQL, POSTGRES, MODEL)] on: On,
) {
    let fixture = Fixture::on(on).await;
    fixture.set(limit_change("a", 4, 2)).await;
    let batch = [7, 3, 4, 2, 1, 1].map(|units| deduction("a", units));
    let expected = [
        short(6),
        committed(3),
        short(3),
        committed(1),
        committed(0),
        short(0),
    ];
    assert_eq!(all(&fixture, &batch).await, expected);
    assert_eq!(fixture.level("a").await.on_hand, -2);
    assert_eq!(fixture.assert_in_order("a").await.len(), 4);
    let sold_out = [1, 2].map(|units| deduction("a", units));
    assert_eq!(all(&fixture, &sold_out).await, [short(0), short(0)]);
}

#[rstest]
#[tokio::test]
async fn repeated_key_is_answered_from_the_first(#[values(SQLITE, MYSQL, POSTGRES, MODEL)] on: On) {
    let fixture = Fixture::with(on, "a", 5).await;
    let recorded = deduction_with_key("a", 1, "old");
    let sold = all(&fixture, std::slice::from_ref(&recorded)).await;
    assert_eq!(sold, [committed(4)]);
    let first = deduction_with_key("a", 1, "new");
    let other_lines = Operation {
        idempotency: Some(idempotency("new", RequestHash([7; 32]))),
        ..deduction("a", 1)
    };
    let batch = [
        deduction_with_key("a", 1, "old"),
        first.clone(),
        deduction_with_key("a", 1, "new"),
        other_lines,
        first.clone(),
        // The first request with this key is refused, so the second one is not its repeat.
        deduction_with_key("a", 9, "later"),
        deduction_with_key("a", 2, "later"),
    ];
    let outcomes = all(&fixture, &batch).await;
    assert_recorded(&outcomes[0], &recorded);
    assert_eq!(outcomes[1], committed(3));
    for repeat in &outcomes[2..5] {
        assert_eq!(*repeat, AttemptOutcome::Duplicate);
    }
    assert_eq!(outcomes[5..], [short(3), committed(1)]);
    assert_eq!(fixture.assert_in_order("a").await.len(), 4);
}

#[rstest]
#[tokio::test]
async fn many_rows_of_any_length_fit_into_a_batch(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let fixture = Fixture::with(backend, "a", 255).await;
    let long = "😀".repeat(Remark::MAX_CHARS);
    let orders = (0..256).map(|number| {
        let key = format!("{number:0>255}");
        let reference = Some(Remark::parse("reference", &*long).unwrap());
        Operation {
            remarks: Remarks {
                reference,
                ..Remarks::default()
            },
            ..deduction_with_key("a", 1, &key)
        }
    });
    let orders: Vec<_> = orders.collect();
    let outcomes = all(&fixture, &orders).await;
    let expected: Vec<_> = (0..255).rev().map(committed).collect();
    assert_eq!(outcomes[..255], expected);
    assert_eq!(outcomes[255], short(0));
    fixture.assert_in_order("a").await;
}

/// Another transaction has recorded the key of one member and is still open. The others are sold.
#[rstest]
#[tokio::test]
async fn key_in_flight_holds_up_no_other_of_its_batch(#[values(Mysql, Postgres)] backend: Backend) {
    let fixture = Fixture::with(backend, "a", 5).await;
    let mut first = Raw::recording_key(backend, &fixture.url).await;
    let batch = [
        deduction_with_key("a", 1, "J"),
        deduction_with_key("a", 1, "K"),
        deduction("a", 1),
    ];
    let answers = timeout(SOON, fixture.store.write_batch(&batch, false)).await;
    let answers = answers.expect("bounded");
    assert_eq!(*answers[0].as_ref().unwrap(), committed(4));
    assert_matches!(answers[1], Err(StoreError::KeyInFlight(_)));
    assert_eq!(*answers[2].as_ref().unwrap(), committed(3));
    first.run("ROLLBACK").await.unwrap();
    fixture.assert_in_order("a").await;
}

/// The open transaction commits while the batch waits for it.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_recorded_during_the_batch_fails_no_other(#[values(Mysql, Postgres)] backend: Backend) {
    let fixture = Fixture::with(backend, "a", 5).await;
    fixture.put("raw", 5).await;
    let mut first = Raw::recording_key(backend, &fixture.url).await;
    let batch = [deduction_with_key("a", 1, "K"), deduction("a", 1)];
    let store = fixture.store.clone();
    let batch = tokio::spawn(async move { store.write_batch(&batch, false).await });
    fixture.until_waiting().await;
    first.run("COMMIT").await.unwrap();
    let outcomes = outcomes(timeout(SOON, batch).await.expect("soon").unwrap());
    let repeated = matches!(
        outcomes[0],
        AttemptOutcome::Recorded(_) | AttemptOutcome::Duplicate
    );
    assert!(repeated, "{outcomes:?}");
    assert_eq!(outcomes[1], committed(4));
    fixture.assert_in_order("a").await;
}

/// One caller is answered at once. The others are not held up, and do not expire with it.
#[rstest]
#[tokio::test]
async fn deduction_without_time_left_fails_no_other(
    #[values(SQLITE, MYSQL, POSTGRES, MODEL)] on: On,
) {
    let fixture = Fixture::with(on, "a", 5).await;
    let late = Operation {
        deadline: Instant::now(),
        ..deduction("a", 1)
    };
    let batch = [deduction("a", 1), late, deduction("a", 1)];
    let expected = [committed(4), AttemptOutcome::Conflict, committed(3)];
    assert_eq!(all(&fixture, &batch).await, expected);
    fixture.assert_in_order("a").await;
}

/// The holder rolls back, so the level is as it was when the batch was sent.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch_that_waits_past_its_expiry_takes_nothing(
    #[values(Mysql, Postgres)] backend: Backend,
) {
    let fixture = Fixture::with(backend, "a", 5).await;
    let rival = Rival::holding_stock(backend, &fixture.url).await;
    let deadline = Instant::now() + Duration::from_millis(400);
    let batch = [deduction("a", 1), deduction("a", 1)].map(|order| Operation { deadline, ..order });
    let store = fixture.store.clone();
    let waiting = tokio::spawn(async move { store.write_batch(&batch, false).await });
    tokio::time::sleep_until(deadline).await;
    rival.let_go().await;
    let answers = outcomes(timeout(SOON, waiting).await.expect("soon").unwrap());
    let conflict = AttemptOutcome::Conflict;
    assert_eq!(answers, [conflict.clone(), conflict]);
    assert_eq!(fixture.level("a").await.on_hand, 5);
    fixture.assert_in_order("a").await;
}

/// The rules of an adjustment need the level.
#[rstest]
#[tokio::test]
async fn deductions_and_others_share_a_batch(
    #[values(SQLITE, MYSQL, POSTGRES, MODEL)] on: On,
    #[values(false, true)] read_first: bool,
) {
    let fixture = Fixture::with(on, "a", 1).await;
    let batch = [
        deduction("a", 1),
        adjustment("a", 2),
        deduction("a", 2),
        adjustment("a", -1),
    ];
    let answers = fixture.deductions().write_batch(&batch, read_first);
    let answers = timeout(SOON, answers).await.expect("bounded");
    let answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
    let [first, added, second, short] = &answers[..] else {
        panic!("{answers:?}")
    };
    assert_eq!((first, second), (&committed(0), &committed(0)));
    assert_matches!(added, AttemptOutcome::Changed(_));
    assert_eq!(*short, AttemptOutcome::Unrecorded { available: 0 });
    assert_eq!(fixture.assert_in_order("a").await.len(), 4);
}
