//! Batches of several levels in one transaction: each level by itself, as if there were no others.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rstest::rstest;
use stocklock::ports::{AttemptOutcome, BatchAnswer};
use stocklock::stock::Operation;
use stocklock_testkit::{assert_matches, eventually};
use tokio::time::timeout;

use super::fixture::{
    Fixture, MODEL, MYSQL, On, Operations as _, POSTGRES, Raw, SOON, SQLITE, committed, deduction,
    deduction_with_key, level_change_in, limit_change, open, open_patient, place,
};
use crate::support::rival::Rival;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

type Batches = Vec<Vec<Operation>>;

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

/// A level with too few units, an unknown one, and the same SKU elsewhere.
#[rstest]
#[tokio::test]
async fn refused_level_holds_up_no_other(#[values(SQLITE, MYSQL, POSTGRES, MODEL)] on: On) {
    let fixture = Fixture::with(on, "a", 3).await;
    fixture.put("short", 2).await;
    fixture.set(limit_change("later", 1, 4)).await;
    fixture.set(level_change_in("east", "a", 9)).await;
    let mut in_east = deduction("a", 1);
    in_east.lines[0].warehouse = place("east");
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
    assert!(merged(&fixture, &Batches::new()).await.is_empty());
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
    let sold_again = merged(&fixture, &vec![vec![second.clone()]]).await;
    assert_eq!(sold_again, [sold([4])]);
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
    let lock = "UPDATE stock SET held = held WHERE sku = 'b'";
    let rival = Rival::holding(backend, &fixture.url, lock).await;
    let batches: Batches = ["a", "b", "c"].map(|sku| vec![deduction(sku, 1)]).into();
    let answers = merged(&fixture, &batches).await;
    assert_eq!(answers, [sold([4]), None, sold([4])]);
    rival.let_go().await;
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
    let lock = "UPDATE stock SET held = held WHERE sku < 'sku-2'";
    let _rival = Rival::holding(backend, &fixture.url, lock).await;
    let batches: Batches = (20..30)
        .map(|one| vec![deduction(&format!("sku-{one}"), 1)])
        .collect();
    assert_eq!(merged(&fixture, &batches).await, vec![sold([4]); 10]);
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
    let sold = Arc::new(AtomicU32::new(0));
    let stores = [(); 3].map(|()| open(&fixture.url, 4));
    let buyers = stores.into_iter().enumerate().map(|(number, store)| {
        let sold = Arc::clone(&sold);
        tokio::spawn(async move {
            for round in 0.. {
                if sold.load(Relaxed) == 200 {
                    return;
                }
                let mut skus = SKUS;
                skus.rotate_left((number + round) % 4);
                let two = |sku| [(); 2].map(|()| deduction(sku, 1)).to_vec();
                let batches: Batches = skus.map(two).into();
                for answers in store.deduct_levels(&batches).await.into_iter().flatten() {
                    for answer in answers {
                        assert_matches!(answer, Ok(AttemptOutcome::Deducted { .. }));
                        sold.fetch_add(1, Relaxed);
                    }
                }
            }
        })
    });
    for buyer in buyers.collect::<Vec<_>>() {
        timeout(SOON, buyer).await.expect("soon").unwrap();
    }
    for sku in SKUS {
        assert_eq!(fixture.level(sku).await.on_hand, 0, "{sku}");
    }
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
    // The key is free a moment later.
    let last = batches[1..].to_vec();
    let is_sold = async || merged(&fixture, &last).await == [sold([4])];
    eventually("the key is free", SOON, is_sold).await;
    assert_in_order(&fixture, &["a", "b"]).await;
}

/// Half of the connections for writes wait for no lock. MariaDB 10.11 could not commit on one after it had
/// skipped a row.
#[tokio::test]
async fn locked_level_is_left_out_on_a_connection_that_does_not_wait() {
    let fixture = Fixture::with(Mysql, "a", 5).await;
    fixture.put("b", 5).await;
    let lock = "SELECT on_hand FROM stock WHERE sku = 'a' FOR UPDATE";
    let holder = Rival::holding(Mysql, &fixture.url, lock).await;
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
    holder.let_go().await;
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
