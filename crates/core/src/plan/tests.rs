//! Properties of plans, on generated levels and operations.

use super::*;
use crate::stock::{
    Caller, Change, Count, CountedFrom, Idempotency, IdempotencyKey, Line, MAX_UNITS, Precondition,
    Quantity, Refusal, RequestHash, Return, Revision, Scope, Setting, Warehouse,
};

mod cases;

use cases::{Shop, any_case, sku};

/// How many cases each property is checked with.
const CASES: u64 = 2_000;

#[test]
fn movements_add_up_to_the_levels() {
    for seed in 0..CASES {
        let (mut shop, operations) = any_case(seed);
        let before = shop.clone();
        shop.make(&operations);
        for level in &shop.levels {
            let is_here =
                |one: &&Movement| one.sku == level.sku && one.warehouse == level.warehouse;
            let old = before
                .levels
                .iter()
                .find(|old| old.sku == level.sku && old.warehouse == level.warehouse);
            let new: Vec<_> = shop.ledger[before.ledger.len()..]
                .iter()
                .filter(is_here)
                .collect();
            let sum = |units: fn(&Movement) -> i64| new.iter().map(|one| units(one)).sum::<i64>();
            let units = |units: fn(&StockLevel) -> i64| old.map_or(0, units);
            let on_hand = units(|old| old.on_hand) + sum(|one| one.delta);
            let held = units(|old| old.held) + sum(|one| one.held_delta);
            assert_eq!((level.on_hand, level.held), (on_hand, held), "seed {seed}");
            assert!(
                new.iter().all(|one| one.available_after >= 0),
                "seed {seed}"
            );
            let first = old.map_or(0, |old| old.version) + 1;
            let versions: Vec<_> = new.iter().map(|one| one.level_version).collect();
            let expected: Vec<_> = (first..).take(new.len()).collect();
            assert_eq!(versions, expected, "seed {seed}");
            assert_eq!(level.version, first + sum_of(new.len()) - 1, "seed {seed}");
        }
    }
}

fn sum_of(movements: usize) -> i64 {
    i64::try_from(movements).expect("a short list")
}

#[test]
fn batch_equals_its_operations_one_after_the_other() {
    let mut several = 0;
    for seed in 0..CASES {
        let (mut together, operations) = any_case(seed);
        let mut alone = together.clone();
        let batch = together.make(&operations);
        let mut single = Vec::new();
        for operation in &operations {
            single.extend(alone.make(std::slice::from_ref(operation)));
        }
        assert_eq!(batch, single, "seed {seed}");
        assert_eq!(together.levels, alone.levels, "seed {seed}");
        let amounts = |shop: &Shop| -> Vec<_> {
            let row = |one: &Movement| (one.operation, one.delta, one.available_after);
            shop.ledger.iter().map(row).collect()
        };
        assert_eq!(amounts(&together), amounts(&alone), "seed {seed}");
        several += usize::from(batch.len() > 1);
    }
    assert!(several > 0);
}

#[test]
fn operation_is_made_with_all_lines_or_none() {
    let mut refused = 0;
    for seed in 0..CASES {
        let (mut shop, operations) = any_case(seed);
        shop.make(&operations);
        for operation in &operations {
            let rows = shop
                .ledger
                .iter()
                .filter(|one| one.operation == operation.id)
                .count();
            // Of a sale, what is left comes back.
            let may_be_spent =
                |line: &Line| matches!(&line.change, Change::Return(one) if one.quantity.is_none());
            let at_least = operation.lines.len()
                - operation
                    .lines
                    .iter()
                    .filter(|one| may_be_spent(one))
                    .count();
            assert!(rows == 0 || rows >= at_least, "seed {seed}");
            refused += usize::from(rows == 0 && operation.lines.len() > 1);
        }
        shop.assert_recorded_once(&operations, seed);
    }
    assert!(refused > 0);
}

/// An order gets its units from the warehouses that its lines name, and is refused only if they do not have
/// them.
#[test]
fn units_come_from_the_warehouses_of_the_line() {
    let (mut whole, mut split, mut short) = (0, 0, 0);
    for seed in 0..CASES {
        let (mut shop, operations) = any_case(seed);
        for operation in &operations {
            let [line] = &operation.lines[..] else {
                continue;
            };
            let Some(wanted) = line.change.quantity().map(Quantity::units) else {
                continue;
            };
            let has = |level| rules::find(&shop.levels, level).map_or(0, StockLevel::available);
            let has: Vec<_> = line.levels().map(has).collect();
            let outcome = shop.make(std::slice::from_ref(operation));
            match &outcome[..] {
                [AttemptOutcome::Lines(made)] => {
                    let units = |made: &MadeLine| made.held_delta - made.delta;
                    let made: Vec<_> = made
                        .iter()
                        .map(|one| (&one.warehouse, units(one)))
                        .collect();
                    assert_eq!(
                        made.iter().map(|one| one.1).sum::<i64>(),
                        wanted,
                        "seed {seed}"
                    );
                    let first = has.iter().position(|has| *has >= wanted);
                    if let Some(first) = first {
                        let first = line.levels().nth(first).expect("it exists").1;
                        assert_eq!(made, [(first, wanted)], "seed {seed}");
                        whole += 1;
                    } else {
                        assert!(line.split, "seed {seed}");
                        let before = line.levels().zip(&has).filter(|(_, has)| **has > 0);
                        let mut before = before.map(|((_, warehouse), has)| (warehouse, *has));
                        let (last, others) = made.split_last().expect("it has a movement");
                        assert!(
                            before
                                .by_ref()
                                .take(others.len())
                                .eq(others.iter().copied())
                        );
                        let next = before.next().expect("the last one has units");
                        assert!(next.0 == last.0 && next.1 >= last.1, "seed {seed}");
                        split += 1;
                    }
                }
                [AttemptOutcome::RefusedLines(refused)] => {
                    if let AttemptOutcome::Short { available } = &refused[0].1 {
                        assert_eq!(available, &has, "seed {seed}");
                        let most = if line.split {
                            has.iter().sum()
                        } else {
                            has.iter().copied().max().unwrap_or(0)
                        };
                        assert!(most < wanted, "seed {seed}");
                        short += 1;
                    }
                }
                _ => {}
            }
        }
    }
    assert!(
        whole > 0 && split > 0 && short > 0,
        "{whole} {split} {short}"
    );
}

#[test]
fn operations_of_unrelated_skus_commute() {
    for seed in 0..CASES {
        let (shop, mut operations) = any_case(seed);
        let of = |name: &str, operation: &Operation| {
            operation.lines.iter().all(|line| line.sku == sku(name))
        };
        // A key may be repeated, which is a relation.
        for one in &mut operations {
            one.idempotency = None;
        }
        let mut a: Vec<_> = operations
            .iter()
            .filter(|one| of("a", one))
            .cloned()
            .collect();
        let mut b: Vec<_> = operations
            .iter()
            .filter(|one| of("b", one))
            .cloned()
            .collect();
        let (mut first, mut second) = (shop.clone(), shop);
        first.make(&[&a[..], &b[..]].concat());
        b.append(&mut a);
        second.make(&b);
        assert_eq!(first.levels, second.levels, "seed {seed}");
    }
}

#[test]
fn retry_changes_nothing() {
    for seed in 0..CASES {
        let (mut shop, operations) = any_case(seed);
        let first = shop.make(&operations);
        let after = shop.clone();
        let again = shop.make(&operations);
        for (one, outcome) in operations.iter().zip(first.iter().zip(&again)) {
            let made = |outcome: &AttemptOutcome| {
                matches!(
                    outcome,
                    AttemptOutcome::Deducted { .. }
                        | AttemptOutcome::Changed(_)
                        | AttemptOutcome::Lines(_)
                )
            };
            let recorded = after.ledger.iter().any(|row| row.operation == one.id);
            if recorded && made(outcome.0) {
                assert_eq!(outcome.1, &AttemptOutcome::Duplicate, "seed {seed}");
            }
        }
        shop.assert_recorded_once(&operations, seed);
    }
}

#[test]
fn no_rule_depends_on_the_strategy() {
    for seed in 0..CASES {
        let (shop, mut operations) = any_case(seed);
        let outcomes = shop.clone().make(&operations);
        for one in &mut operations {
            one.strategy = Some("for-update");
        }
        assert_eq!(shop.clone().make(&operations), outcomes, "seed {seed}");
    }
}

/// A level with five units, of which the caller has read the revision.
fn five() -> Shop {
    Shop {
        levels: vec![StockLevel {
            sku: sku("a"),
            warehouse: Warehouse::default(),
            on_hand: 5,
            held: 1,
            backorder_limit: 0,
            version: 7,
        }],
        ledger: Vec::new(),
    }
}

fn outcome_of(change: Change) -> AttemptOutcome {
    let mut operation = Operation::sample("a");
    operation.lines[0].change = change;
    let outcome = five().make(&[operation]).pop();
    outcome.expect("one operation")
}

#[test]
fn refusals_name_what_is_available() {
    let units = |units: u32| Change::Deduct(Quantity::try_from(units).expect("a valid quantity"));
    assert_eq!(
        outcome_of(units(4)),
        AttemptOutcome::Deducted { remaining: 0 }
    );
    assert_eq!(
        outcome_of(units(5)),
        AttemptOutcome::Unrecorded { available: 4 }
    );
    assert_eq!(
        outcome_of(Change::Adjust(-5)),
        AttemptOutcome::Unrecorded { available: 4 }
    );
    let too_large = AttemptOutcome::Refused(Refusal::TooLarge);
    assert_eq!(outcome_of(Change::Adjust(MAX_UNITS)), too_large);
}

#[test]
fn return_gives_back_what_is_left_of_its_sale() {
    let one = |quantity, sold| {
        Change::Return(Return {
            sale: OperationId::mint(),
            line: 0,
            sold,
            quantity,
            restock: true,
        })
    };
    let AttemptOutcome::Changed(changed) = outcome_of(one(None, 2)) else {
        panic!("two units come back")
    };
    assert_eq!((changed.made.returned, changed.level.on_hand), (Some(2), 7));
    let exceeds =
        |requested, left| AttemptOutcome::Refused(Refusal::ExceedsSale { requested, left });
    assert_eq!(outcome_of(one(None, 0)), exceeds(1, 0));
    assert_eq!(
        outcome_of(one(Some(Quantity::MAX), 3)),
        exceeds(Quantity::MAX.units(), 3)
    );
}

#[test]
fn level_is_set_as_its_precondition_allows() {
    let set = |on_hand, precondition| {
        Change::Set(Setting {
            on_hand,
            backorder_limit: None,
            precondition,
            scope: Scope::Level,
        })
    };
    let revision = Revision::of(&five().levels);
    for (change, refusal) in [
        (set(Some(9), None), Some(Refusal::PreconditionRequired)),
        (
            set(Some(9), Some(Precondition::Absent)),
            Some(Refusal::PreconditionFailed),
        ),
        (
            set(
                Some(9),
                Some(Precondition::OneOf(vec![Revision::from_text("0")])),
            ),
            Some(Refusal::PreconditionFailed),
        ),
        (
            set(Some(0), Some(Precondition::Exists)),
            Some(Refusal::BelowLimit),
        ),
        (
            set(Some(MAX_UNITS + 1), Some(Precondition::Exists)),
            Some(Refusal::TooLarge),
        ),
        (
            set(Some(9), Some(Precondition::OneOf(vec![revision]))),
            None,
        ),
        (set(None, None), None),
    ] {
        match (outcome_of(change.clone()), refusal) {
            (AttemptOutcome::Changed(_), None) => {}
            (AttemptOutcome::Refused(seen), Some(expected)) => assert_eq!(seen, expected),
            (outcome, _) => panic!("{change:?}: {outcome:?}"),
        }
    }
}

#[test]
fn counted_units_are_set_if_they_are_as_expected() {
    let count = |on_hand, from| outcome_of(Change::Count(Count { on_hand, from }));
    for from in [CountedFrom::Units(5), CountedFrom::Any] {
        for (on_hand, delta) in [(9, 4), (5, 0)] {
            let AttemptOutcome::Changed(changed) = count(on_hand, from) else {
                panic!("{from:?} to {on_hand}")
            };
            let seen = (changed.level.on_hand, changed.made.delta, changed.created);
            assert_eq!(seen, (on_hand, delta, false));
            assert_eq!(changed.level.version, five().levels[0].version + 1);
        }
    }
    for (on_hand, from, refusal) in [
        (9, CountedFrom::Units(4), Refusal::Differs { on_hand: 5 }),
        (9, CountedFrom::Absent, Refusal::Differs { on_hand: 5 }),
        (-1, CountedFrom::Any, Refusal::BelowLimit),
        (MAX_UNITS + 1, CountedFrom::Any, Refusal::TooLarge),
    ] {
        assert_eq!(count(on_hand, from), AttemptOutcome::Refused(refusal));
    }
}

/// An answer `None` means that the operation's own level was left out. It may then be refused.
#[test]
fn level_that_is_written_is_answered_whatever_was_left_out() {
    let key = |name: &str| {
        let mut operation = Operation::sample(name);
        operation.idempotency = Some(Idempotency {
            caller: Caller::anonymous(),
            key: IdempotencyKey::parse("K").expect("a valid key"),
            hash: RequestHash([0; 32]),
        });
        operation
    };
    let operations = [key("a"), key("a"), Operation::sample("b")];
    let answers = Plan::unread(&operations, Instant::now(), 0).committed(&[Some(4), None]);
    let [Some(Ok(sold)), Some(Ok(repeated)), None] = &answers[..] else {
        panic!("{answers:?}")
    };
    assert_eq!(*sold, AttemptOutcome::Deducted { remaining: 4 });
    assert_eq!(*repeated, AttemptOutcome::Conflict);
}
