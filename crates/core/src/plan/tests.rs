//! Properties of plans, on generated levels and operations.

use fastrand::Rng;
use uuid::Uuid;

use super::*;
use crate::ports::Refusal;
use crate::stock::{
    Adjustment, Caller, Deduction, Idempotency, IdempotencyKey, LevelChange, MAX_UNITS,
    Precondition, Quantity, Remark, Remarks, RequestHash, Return, Revision, Scope,
};

/// How many cases each property is checked with.
const CASES: u64 = 2_000;

/// Stock and ledger, as a database has them.
#[derive(Debug, Clone, Default)]
struct Shop {
    levels: Vec<StockLevel>,
    ledger: Vec<Movement>,
}

impl Shop {
    /// A few levels of two SKUs in two warehouses.
    fn generated(rng: &mut Rng) -> Self {
        let mut shop = Self::default();
        for name in ["a", "b"] {
            for warehouse in ["main", "north"] {
                if rng.u8(..4) > 0 {
                    let level = StockLevel {
                        sku: sku(name),
                        warehouse: self::warehouse(warehouse),
                        on_hand: rng.i64(0..12),
                        held: 0,
                        backorder_limit: rng.i64(0..3),
                        version: rng.i64(1..4),
                    };
                    rules::put(&mut shop.levels, level);
                }
            }
        }
        shop
    }

    fn snapshot(&self, operations: &[Operation]) -> Snapshot {
        let mut returned = HashMap::new();
        for movement in &self.ledger {
            if let (Some(sale), Some(units)) = (movement.reverses, movement.returned) {
                *returned.entry(sale).or_default() += units;
            }
        }
        let has = |movement: &&Movement| {
            let known = std::slice::from_ref(*movement);
            let recorded = Recorded::new(known);
            operations.iter().any(|one| recorded.find(one).is_some())
        };
        Snapshot {
            levels: self.levels.clone(),
            recorded: Some(self.ledger.iter().filter(has).cloned().collect()),
            returned,
        }
    }

    /// Commits the plan, and returns the answers.
    fn commit(&mut self, plan: Plan<'_>) -> Vec<BatchAnswer> {
        let mut available = Vec::new();
        for planned in &plan.levels {
            let line = planned.line;
            let mut level = rules::find(&self.levels, line)
                .cloned()
                .unwrap_or(StockLevel {
                    sku: line.sku.clone(),
                    warehouse: line.warehouse.clone(),
                    on_hand: 0,
                    held: 0,
                    backorder_limit: 0,
                    version: 0,
                });
            level.on_hand += planned.delta;
            level.backorder_limit = planned.backorder_limit.unwrap_or(level.backorder_limit);
            level.version += planned.movements;
            assert!(level.available() >= 0, "oversold: {level:?}");
            available.push(Some(level.available()));
            rules::put(&mut self.levels, level);
        }
        for planned in &plan.movements {
            let (later, units) = plan.after(planned);
            let line = &planned.operation.lines[planned.line];
            let level = rules::find(&self.levels, line).expect("it was written");
            let key = planned.operation.idempotency.as_ref();
            self.ledger.push(Movement {
                operation: planned.operation.id,
                sku: line.sku.clone(),
                warehouse: line.warehouse.clone(),
                kind: planned.kind.clone(),
                delta: planned.delta,
                available_after: level.available() - units,
                level_version: level.version - later,
                read_version: planned.read_version,
                strategy: planned.operation.strategy.map(str::to_owned),
                caller: planned.operation.caller().to_owned(),
                idempotency_key: key.map(|one| one.key.as_str().to_owned()),
                request_hash: key.map(|one| one.hash),
                remarks: planned.operation.remarks.clone(),
                reverses: planned.returned.map(|(sale, _)| sale),
                returned: planned.returned.map(|(_, units)| units),
                created_at: String::new(),
            });
        }
        let answers = plan.committed(&available).into_iter();
        answers
            .map(|answer| answer.expect("no level was left out"))
            .collect()
    }

    fn make(&mut self, operations: &[Operation]) -> Vec<AttemptOutcome> {
        let plan = Plan::new(&self.snapshot(operations), operations);
        let answers = self.commit(plan).into_iter();
        answers
            .map(|answer| answer.expect("no error"))
            .map(without_order)
            .collect()
    }
}

/// A batch and single operations differ in the words of the same answer only: of a repeated request, a batch
/// knows only that it is a duplicate.
fn without_order(outcome: AttemptOutcome) -> AttemptOutcome {
    match outcome {
        AttemptOutcome::Recorded(_) => AttemptOutcome::Duplicate,
        other => other,
    }
}

fn sku(name: &str) -> Sku {
    Sku::parse(name).expect("a valid name")
}

fn warehouse(name: &str) -> Warehouse {
    Warehouse::parse(name).expect("a valid name")
}

fn any_key(rng: &mut Rng) -> Option<Idempotency> {
    (rng.u8(..3) == 0).then(|| Idempotency {
        caller: Caller::anonymous(),
        key: IdempotencyKey::parse(&format!("K-{}", rng.u8(..3))).expect("a valid key"),
        hash: RequestHash([0; 32]),
    })
}

/// An operation of one or more lines.
fn any_operation(rng: &mut Rng, sales: &[Movement]) -> Operation {
    let operation = OperationId(Uuid::from_u128(rng.u128(..)));
    let level = (
        sku(["a", "b"][rng.usize(..2)]),
        warehouse(["main", "north"][rng.usize(..2)]),
    );
    let deadline = Instant::now() + Duration::from_mins(1);
    let reason = Remark::parse("reason", "because").expect("a valid remark");
    let (sku, warehouse) = level.clone();
    match rng.u8(..8) {
        0 => Adjustment {
            operation,
            sku,
            warehouse,
            delta: [-3, -1, 2, MAX_UNITS][rng.usize(..4)],
            reason,
            reference: None,
            idempotency: any_key(rng),
            deadline,
        }
        .into(),
        1 => LevelChange {
            operation,
            sku,
            warehouse,
            on_hand: [None, Some(0), Some(5)][rng.usize(..3)],
            backorder_limit: [None, Some(2)][rng.usize(..2)],
            reason: None,
            precondition: [None, Some(Precondition::Exists), Some(Precondition::Absent)]
                [rng.usize(..3)]
            .clone(),
            scope: [Scope::Sku, Scope::Level][rng.usize(..2)],
            deadline,
        }
        .into(),
        2 if !sales.is_empty() => {
            let sale = &sales[rng.usize(..sales.len())];
            crate::stock::Reversal {
                operation,
                sale: sale.operation,
                quantity: [None, Some(Quantity::ONE)][rng.usize(..2)],
                restock: rng.bool(),
                reason,
                idempotency: any_key(rng),
                deadline,
            }
            .of_sale((sale.sku.clone(), sale.warehouse.clone()), -sale.delta)
        }
        _ => {
            let mut order = Operation::from(Deduction {
                operation,
                sku,
                warehouse,
                quantity: Quantity::try_from(rng.u32(1..4)).expect("a valid quantity"),
                idempotency: any_key(rng),
                remarks: Remarks::default(),
                strategy: "group-commit",
                deadline,
            });
            for _ in 0..rng.usize(..3) {
                let mut line = order.lines[0].clone();
                line.sku = self::sku(["a", "b"][rng.usize(..2)]);
                order.lines.push(line);
            }
            order
        }
    }
}

/// A shop that has sold something, and operations for it.
fn any_case(seed: u64) -> (Shop, Vec<Operation>) {
    let rng = &mut Rng::with_seed(seed);
    let mut shop = Shop::generated(rng);
    let first: Vec<_> = (0..4).map(|_| any_operation(rng, &[])).collect();
    shop.make(&first);
    // What comes back of a sale of several lines is not told apart by line yet.
    let lines = |sale: &Movement| {
        let rows = shop
            .ledger
            .iter()
            .filter(|one| one.operation == sale.operation);
        rows.count()
    };
    let is_sale = |one: &&Movement| one.kind == MovementKind::Deducted && lines(one) == 1;
    let sales: Vec<_> = shop.ledger.iter().filter(is_sale).cloned().collect();
    let operations = (0..rng.usize(1..7))
        .map(|_| any_operation(rng, &sales))
        .collect();
    (shop, operations)
}

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
            let sum: i64 = new.iter().map(|one| one.delta).sum();
            assert_eq!(
                level.on_hand,
                old.map_or(0, |old| old.on_hand) + sum,
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
            assert!(rows == 0 || rows == operation.lines.len(), "seed {seed}");
            refused += usize::from(rows == 0 && operation.lines.len() > 1);
        }
    }
    assert!(refused > 0);
}

#[test]
fn operations_of_unrelated_skus_commute() {
    for seed in 0..CASES {
        let (shop, mut operations) = any_case(seed);
        let of = |name: &str, operation: &Operation| {
            operation.lines.iter().all(|line| line.sku == sku(name))
        };
        // A key may be repeated, which is a relation.
        operations.iter_mut().for_each(|one| one.idempotency = None);
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
                    AttemptOutcome::Deducted { .. } | AttemptOutcome::Changed(_)
                )
            };
            let recorded = after.ledger.iter().any(|row| row.operation == one.id);
            if recorded && made(outcome.0) {
                assert_eq!(outcome.1, &AttemptOutcome::Duplicate, "seed {seed}");
            }
        }
        let rows = |operation: &Operation| {
            let rows = shop
                .ledger
                .iter()
                .filter(|row| row.operation == operation.id);
            rows.count()
        };
        assert!(
            operations.iter().all(|one| rows(one) <= one.lines.len()),
            "seed {seed}"
        );
    }
}

#[test]
fn no_rule_depends_on_the_strategy() {
    for seed in 0..CASES {
        let (shop, mut operations) = any_case(seed);
        let outcomes = shop.clone().make(&operations);
        operations
            .iter_mut()
            .for_each(|one| one.strategy = Some("for-update"));
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
    let mut operation = Operation::from(Deduction::sample("a"));
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
            sold,
            quantity,
            restock: true,
        })
    };
    let AttemptOutcome::Changed(changed) = outcome_of(one(None, 2)) else {
        panic!("two units come back")
    };
    assert_eq!((changed.returned, changed.level.on_hand), (Some(2), 7));
    let exceeds = |left| AttemptOutcome::Refused(Refusal::ExceedsSale { left });
    assert_eq!(outcome_of(one(None, 0)), exceeds(0));
    assert_eq!(outcome_of(one(Some(Quantity::MAX), 3)), exceeds(3));
}

#[test]
fn level_is_set_as_its_precondition_allows() {
    let set = |on_hand, precondition| {
        Change::Set(crate::stock::Setting {
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
