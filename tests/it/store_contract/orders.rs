//! Operations of several lines: all of them, or nothing.

use rstest::rstest;
use stocklock::ports::AttemptOutcome;
use stocklock::stock::{Change, Operation};

use super::fixture::{
    Attempt, Fixture, MODEL, MYSQL, On, POSTGRES, SQLITE, deduction, deduction_with_key, name,
    units,
};

/// Takes one unit of each SKU.
fn order(skus: &[&str]) -> Operation {
    let mut order = Operation::from(deduction_with_key(skus[0], 1, "ORDER"));
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
async fn order_with_a_short_line_takes_nothing(#[values(SQLITE, MYSQL, POSTGRES, MODEL)] on: On) {
    let fixture = two_levels(on, 0).await;
    let refused = fixture.deductions().write(&order(&["a", "b"])).await;
    assert_eq!(refused.unwrap(), short(&[(1, 0)]));
    assert_eq!(on_hand(&fixture).await, (2, 0));
    // In a write that reads nothing, the database refuses.
    let answers = fixture
        .deductions()
        .write_levels(&[&order(&["a", "b"])])
        .await;
    assert!(matches!(answers[..], [None]), "{answers:?}");
    assert_eq!(on_hand(&fixture).await, (2, 0));
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

/// A write that reads nothing and has an order is made with all levels, or not at all.
#[rstest]
#[tokio::test]
async fn orders_share_a_write_with_others(#[values(SQLITE, MYSQL, POSTGRES, MODEL)] on: On) {
    let fixture = two_levels(on, 5).await;
    fixture.put("c", 1).await;
    let other = Operation::from(deduction("c", 1));
    let answers = fixture
        .deductions()
        .write_levels(&[&order(&["b", "a"]), &other])
        .await;
    let committed = |answer: &Option<Result<AttemptOutcome, _>>| {
        matches!(
            answer,
            Some(Ok(
                AttemptOutcome::Deducted { .. } | AttemptOutcome::Lines(_)
            ))
        )
    };
    assert!(answers.iter().all(committed), "{answers:?}");
    assert_eq!(on_hand(&fixture).await, (1, 4));

    let short = Operation::from(deduction("c", 1));
    let mut again = order(&["b", "a"]);
    again.idempotency = None;
    let answers = fixture.deductions().write_levels(&[&again, &short]).await;
    assert!(answers.iter().all(Option::is_none), "{answers:?}");
    assert_eq!(on_hand(&fixture).await, (1, 4));
}
