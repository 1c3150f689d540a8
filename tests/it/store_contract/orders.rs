//! Operations of several lines: all of them, or nothing.

use rstest::rstest;
use stocklock::ports::{AttemptOutcome, Expiry, LateAttempt, SharedAnswer, StoreError};
use stocklock::stock::{Change, Operation};
use stocklock_testkit::{assert_matches, eventually};
use tokio::time::timeout;

use super::fixture::{
    Attempt, Fixture, MODEL, MYSQL, On, POSTGRES, Raw, SOON, SQLITE, adjustment, committed,
    deduction, deduction_with_key, name, place, units,
};
use crate::support::rival::Rival;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

/// Takes one unit of each SKU.
fn order(skus: &[&str]) -> Operation {
    let mut order = deduction_with_key(skus[0], 1, "ORDER");
    for sku in &skus[1..] {
        let mut line = order.lines[0].clone();
        line.sku = name(sku);
        order.lines.push(line);
    }
    order
}

/// What remains after each line of an order that was made.
#[track_caller]
fn remaining(sold: Attempt) -> Vec<(i64, i64)> {
    let AttemptOutcome::Lines(lines) = sold.expect("no error") else {
        panic!("an order is made")
    };
    let line = |one: &stocklock::stock::MadeLine| (one.line, one.remaining);
    lines.iter().map(line).collect()
}

/// The lines that refuse, and what is available for each.
fn short(lines: &[(usize, i64)]) -> AttemptOutcome {
    let line = |(place, available): &(usize, i64)| {
        let available = *available;
        (*place, AttemptOutcome::Insufficient { available })
    };
    AttemptOutcome::RefusedLines(lines.iter().map(line).collect())
}

async fn on_hand(fixture: &Fixture) -> (i64, i64) {
    (
        fixture.level("a").await.on_hand,
        fixture.level("b").await.on_hand,
    )
}

/// A level of two units, and one of `b` units.
async fn two_levels(on: On, b: i64) -> Fixture {
    let fixture = Fixture::with(on, "a", 2).await;
    fixture.put("b", b).await;
    fixture
}

#[rstest]
#[tokio::test]
async fn order_takes_every_line(#[values(SQLITE, MYSQL, POSTGRES, MODEL)] on: On) {
    let fixture = two_levels(on, 5).await;
    let order = order(&["b", "a"]);
    let sold = fixture.deductions().write(&order).await;
    assert_eq!(remaining(sold), [(0, 4), (1, 1)]);
    assert_eq!(on_hand(&fixture).await, (1, 4));
    for sku in ["a", "b"] {
        let movements = fixture.assert_in_order(sku).await;
        assert_eq!(movements[0].operation, order.id);
    }
    // The key is on one line, and the index refuses the same operation.
    let again = fixture.deductions().write(&order).await;
    assert_eq!(again.unwrap(), AttemptOutcome::Duplicate);
    assert_eq!(on_hand(&fixture).await, (1, 4));
}

#[rstest]
#[tokio::test]
async fn order_that_names_a_level_twice_needs_the_sum(
    #[values(SQLITE, MYSQL, POSTGRES, MODEL)] on: On,
) {
    let fixture = two_levels(on, 5).await;
    let mut twice = order(&["a", "a"]);
    twice.lines[1].change = Change::Deduct(units(2));
    let refused = fixture.deductions().write(&twice).await;
    assert_eq!(refused.unwrap(), short(&[(1, 1)]));
    twice.lines[1].change = Change::Deduct(units(1));
    let sold = fixture.deductions().write(&twice).await;
    assert_eq!(remaining(sold), [(0, 1), (1, 0)]);
    assert_eq!(on_hand(&fixture).await, (0, 5));
    assert_eq!(fixture.assert_in_order("a").await.len(), 3);
}

/// What a transaction of several levels made of each operation. `None`: it was left out.
async fn made(fixture: &Fixture, operations: &[Operation]) -> Vec<Option<AttemptOutcome>> {
    let answers = fixture.deductions().write_shared(operations, false).await;
    let made = |answer| match answer {
        SharedAnswer::Made(made) => Some(made.expect("no error")),
        SharedAnswer::Missed(_) | SharedAnswer::Apart => None,
    };
    answers.into_iter().map(made).collect()
}

#[rstest]
#[tokio::test]
async fn orders_share_a_write_with_others(#[values(SQLITE, MYSQL, POSTGRES, MODEL)] on: On) {
    let fixture = two_levels(on, 5).await;
    fixture.put("c", 1).await;
    let others = [
        order(&["b", "a"]),
        deduction("c", 1),
        deduction("c", 1),
        adjustment("a", 2),
        deduction("x", 1),
    ];
    let answers = made(&fixture, &others).await;
    assert_matches!(&answers[0], Some(AttemptOutcome::Lines(lines)) if lines.len() == 2);
    assert_eq!(answers[1], Some(committed(0)));
    let short = AttemptOutcome::Unrecorded { available: 0 };
    assert_eq!(answers[2], Some(short));
    assert_matches!(&answers[3], Some(AttemptOutcome::Changed(_)));
    assert_eq!(answers[4], Some(AttemptOutcome::UnknownSku));
    assert_eq!(on_hand(&fixture).await, (3, 4));

    // The same again: the ledger has the order.
    let answers = made(&fixture, &[others[0].clone(), deduction("a", 1)]).await;
    assert_matches!(&answers[0], Some(AttemptOutcome::Recorded(_)));
    assert_eq!(answers[1], Some(committed(2)));
    assert_eq!(on_hand(&fixture).await, (2, 4));
    for sku in ["a", "b", "c"] {
        fixture.assert_in_order(sku).await;
    }
}

/// The operations that need no locked row are made.
#[rstest]
#[tokio::test]
async fn order_with_a_locked_row_is_left_out(#[values(Mysql, Postgres)] backend: Backend) {
    let fixture = two_levels(On::Sql(backend), 5).await;
    fixture.put("c", 1).await;
    let lock = "UPDATE stock SET held = held WHERE sku = 'b'";
    let rival = Rival::holding(backend, &fixture.url, lock).await;
    let operations = [order(&["a", "b"]), order(&["c", "a"])];
    let mut operations = operations.to_vec();
    operations[1].idempotency = None;
    let store = fixture.deductions();
    let answers = timeout(SOON, store.write_shared(&operations, false)).await;
    let answers = answers.expect("it waits for no row");
    assert_matches!(answers[0], SharedAnswer::Missed(1));
    assert_matches!(
        &answers[1],
        SharedAnswer::Made(Ok(AttemptOutcome::Lines(_)))
    );
    // It waits a little, and has given all rows back then.
    let answers = timeout(SOON, store.write_shared(&operations[..1], true)).await;
    assert_matches!(answers.expect("bounded")[..], [SharedAnswer::Missed(1)]);
    let line = &operations[0].lines[1];
    let waiting = store.wait_for_level(&line.sku, &line.warehouse);
    let (waited, ()) = tokio::join!(timeout(SOON, waiting), rival.let_go());
    waited.expect("the row is free").expect("no error");
    let answers = store.write_shared(&operations[..1], true).await;
    assert_matches!(&answers[..], [SharedAnswer::Made(Ok(_))]);
    assert_eq!(on_hand(&fixture).await, (0, 4));
}

/// So operations that name the same levels in another order never wait for each other.
#[rstest]
#[tokio::test]
async fn rows_are_locked_in_the_order_of_their_names(#[values(Mysql, Postgres)] backend: Backend) {
    let fixture = two_levels(On::Sql(backend), 5).await;
    let rival = Rival::holding_stock(backend, &fixture.url).await;
    let (store, order) = (fixture.deductions(), [order(&["b", "a"])]);
    let answers = timeout(SOON, store.write_shared(&order, true)).await;
    // It has waited for the row of `a`, which is its second line.
    assert_matches!(answers.expect("bounded")[..], [SharedAnswer::Missed(1)]);
    rival.let_go().await;
}

/// An order whose first warehouse does not have the SKU.
fn sourced_order() -> Operation {
    let mut order = order(&["a"]);
    order.lines[0].warehouse = place("berlin");
    order.lines[0].others = vec![place("north"), place("main")];
    order
}

#[rstest]
#[tokio::test]
async fn sourced_order_names_the_row_that_it_misses(#[values(Mysql, Postgres)] backend: Backend) {
    let fixture = two_levels(On::Sql(backend), 5).await;
    let lock = "UPDATE stock SET held = held WHERE sku = 'a'";
    let rival = Rival::holding(backend, &fixture.url, lock).await;
    let store = fixture.deductions();
    let order = [sourced_order()];
    let answers = timeout(SOON, store.write_shared(&order, false)).await;
    assert_matches!(
        answers.expect("it waits for no row")[..],
        [SharedAnswer::Missed(2)]
    );
    rival.let_go().await;
    let answers = store.write_shared(&order, false).await;
    assert_matches!(&answers[..], [SharedAnswer::Made(Ok(AttemptOutcome::Lines(lines)))]
        if lines[0].warehouse == place("main"));
    assert_eq!(on_hand(&fixture).await, (1, 5));
}

/// Goal: an attempt that took the units of the last warehouse, and whose outcome is unknown, is not taken for
/// dead while its transaction is open.
#[rstest]
#[tokio::test]
async fn late_attempt_waits_for_every_warehouse(#[values(Mysql, Postgres)] backend: Backend) {
    let fixture = two_levels(On::Sql(backend), 5).await;
    let order = sourced_order();
    let mut attempt = Raw::connect(backend, &fixture.url).await;
    attempt.begin().await;
    let lock = "UPDATE stock SET held = held WHERE sku = 'a'";
    attempt.run(lock).await.expect("the row is free");
    attempt.record(order.id.0).await;
    let store = fixture.deductions();
    let late = store.late_attempt(&order, Expiry::passed());
    let commit = async {
        fixture.until_waiting().await;
        attempt.run("COMMIT").await.expect("it is committed");
    };
    let (late, ()) = tokio::join!(timeout(SOON, late), commit);
    let late = late.expect("soon").expect("no error");
    assert_matches!(late, LateAttempt::Recorded(movement) if movement.operation == order.id);
}

/// Goal: a decision about an attempt creates no level, and waits for one that another transaction creates.
#[rstest]
#[tokio::test]
async fn late_attempt_leaves_no_level(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let fixture = two_levels(On::Sql(backend), 5).await;
    let order = deduction("raw", 1);
    let store = fixture.deductions();
    let decide = async || store.late_attempt(&order, Expiry::passed()).await;
    let level = async || {
        let (sku, warehouse) = order.levels().next().expect("a level");
        let level = store.level(sku, warehouse).await.expect("it answers");
        level.map(|level| (level.on_hand, level.version))
    };
    assert_matches!(decide().await, Ok(LateAttempt::Dead));
    assert_eq!(level().await, None);
    if backend != Sqlite {
        let mut creator = Raw::connect(backend, &fixture.url).await;
        creator.begin().await;
        let create =
            "INSERT INTO stock (sku, warehouse, on_hand, version) VALUES ('raw', 'main', 3, 1)";
        creator.run(create).await.expect("it is new");
        let commit = async {
            fixture.until_waiting().await;
            creator.run("COMMIT").await.expect("it is committed");
        };
        let (late, ()) = tokio::join!(decide(), commit);
        // PostgreSQL finds the level only when it inserts it.
        let late = match late {
            Err(StoreError::Aborted(_)) => decide().await,
            late => late,
        };
        assert_matches!(late, Ok(LateAttempt::Dead));
        assert_eq!(level().await, Some((3, 1)));
    }
}

/// Goal: what a write of two levels costs does not depend on the number of levels.
///
/// Method: the plans of the statements are kept, then the table grows. The planner knows nothing of that.
#[tokio::test]
async fn levels_are_found_by_their_keys() {
    let (fixture, mut raw) = Fixture::with_raw(Postgres).await;
    for sku in ["a", "b"] {
        fixture.put(sku, 1_000_000).await;
    }
    raw.run("ANALYZE stock").await.expect("statistics");
    let sell = async |times| {
        for _ in 0..times {
            let mut order = order(&["a", "b"]);
            order.idempotency = None;
            let two = [deduction("a", 1), deduction("b", 1)];
            for operations in [&[order][..], &two] {
                let made = made(&fixture, operations).await;
                assert!(made.iter().all(Option::is_some), "{made:?}");
            }
            for read_first in [false, true] {
                let answers = fixture.deductions().write_batch(&two, read_first).await;
                assert!(answers.iter().all(Result::is_ok), "{answers:?}");
            }
        }
    };
    sell(10).await;
    let more = "INSERT INTO stock (sku, warehouse, on_hand, version)
        SELECT 'other-' || n, 'main', 0, 1 FROM generate_series(1, 10000) AS n";
    raw.run(more).await.expect("more levels");
    // A session tells the statistics once a second what it has read.
    let rows = "SELECT ((seq_tup_read + idx_tup_read) / keys.idx_scan)::text
        FROM pg_stat_user_indexes AS keys JOIN pg_stat_user_tables USING (relid)
        WHERE indexrelname = 'stock_pkey' AND keys.idx_scan >= 200";
    let mut rows_a_scan = None;
    let are_known = async || {
        sell(1).await;
        rows_a_scan = raw.text(rows).await;
        rows_a_scan.is_some()
    };
    eventually("there are statistics", SOON, are_known).await;
    assert_matches!(rows_a_scan.as_deref(), Some("0" | "1"));
}
