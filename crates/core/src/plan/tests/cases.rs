//! Levels and operations that are generated, and a database that does what plans say.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use fastrand::Rng;
use tokio::time::Instant;
use uuid::Uuid;

use super::super::{Plan, Recorded, Snapshot, rules};
use crate::ports::{AttemptOutcome, BatchAnswer};
use crate::stock::{
    Caller, Change, HoldEnd, Holding, Idempotency, IdempotencyKey, Line, MAX_UNITS, Movement,
    MovementKind, NEVER, Operation, OperationId, Precondition, Quantity, Remark, Remarks,
    RequestHash, Reversal, Scope, Setting, Sku, StockLevel, Warehouse,
};

/// Stock and ledger, as a database has them.
#[derive(Debug, Clone, Default)]
pub(super) struct Shop {
    pub(super) levels: Vec<StockLevel>,
    pub(super) ledger: Vec<Movement>,
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
                *returned.entry((sale, movement.line)).or_default() += units;
            }
        }
        let has = |movement: &&Movement| {
            let known = std::slice::from_ref(*movement);
            let recorded = Recorded::new(known);
            operations.iter().any(|one| recorded.find(one).is_some())
        };
        let is_end = |one: &&Movement| one.reverses.is_some() && one.returned.is_none();
        let ends = self.ledger.iter().filter(is_end);
        let ends: HashMap<_, _> = ends
            .filter_map(|one| Some(((one.reverses?, one.line), one.kind.clone())))
            .collect();
        let held = self.ledger.iter().filter(|one| one.held_delta > 0);
        let held = held.map(|one| ((one.operation, one.line), (one.held_delta, NEVER)));
        Snapshot {
            holds: held.filter(|(line, _)| !ends.contains_key(line)).collect(),
            ends,
            levels: self.levels.clone(),
            recorded: Some(self.ledger.iter().filter(has).cloned().collect()),
            returned,
            ..Snapshot::default()
        }
    }

    /// Commits the plan, and returns the answers.
    fn commit(&mut self, plan: Plan<'_>) -> Vec<BatchAnswer> {
        let mut available = Vec::new();
        for planned in &plan.levels {
            let (sku, warehouse) = (planned.sku, planned.warehouse);
            let mut level = rules::find(&self.levels, (sku, warehouse))
                .cloned()
                .unwrap_or_else(|| StockLevel::empty(sku.clone(), warehouse.clone()));
            level.on_hand += planned.delta;
            level.held += planned.held_delta;
            level.backorder_limit = planned.backorder_limit.unwrap_or(level.backorder_limit);
            level.version += planned.movements;
            assert!(level.available() >= 0, "oversold: {level:?}");
            available.push(Some(level.available()));
            rules::put(&mut self.levels, level);
        }
        for (planned, place) in plan.movements() {
            let (later, units) = plan.after(planned);
            let level = rules::find(&self.levels, (place.sku, place.warehouse));
            let level = level.expect("it was written");
            self.ledger.push(Movement {
                available_after: level.available() - units,
                level_version: level.version - later,
                ..planned.recorded(place)
            });
        }
        let answers = plan.committed(&available).into_iter();
        answers
            .map(|answer| answer.expect("no level was left out"))
            .collect()
    }

    pub(super) fn make(&mut self, operations: &[Operation]) -> Vec<AttemptOutcome> {
        let plan = Plan::new(&self.snapshot(operations), operations, Instant::now());
        let answers = self.commit(plan).into_iter();
        answers
            .map(|answer| answer.expect("no error"))
            .map(without_movement)
            .collect()
    }

    /// Asserts that no line number of an operation occurs twice in the ledger, and that the movements of
    /// each line add up to what it asked for.
    pub(super) fn assert_recorded_once(&self, operations: &[Operation], seed: u64) {
        let mut numbers = HashSet::new();
        for one in &self.ledger {
            let is_new = numbers.insert((one.operation, one.line));
            assert!(is_new, "seed {seed}: {} twice", one.operation);
        }
        for operation in operations {
            let of_operation = self
                .ledger
                .iter()
                .filter(|one| one.operation == operation.id);
            let mut movements: Vec<_> = of_operation.collect();
            if movements.is_empty() {
                continue;
            }
            // Lines without a given number have their movements in the order of the lines.
            movements.sort_by_key(|one| one.line);
            let given: HashSet<_> = operation
                .lines
                .iter()
                .filter_map(Line::given_number)
                .collect();
            let has_given = |one: &&Movement| given.contains(&one.line);
            let (with_given, others): (Vec<_>, Vec<_>) = movements.into_iter().partition(has_given);
            let mut others = others.into_iter().map(|one| one.held_delta - one.delta);
            for line in &operation.lines {
                let asked = match &line.change {
                    Change::Return(one) => {
                        let made = with_given.iter().find(|made| made.line == one.line);
                        let units = one.quantity.map(Quantity::units);
                        assert!(
                            units.is_none() || made.expect("a movement").returned == units,
                            "seed {seed}"
                        );
                        continue;
                    }
                    Change::End(_) => continue,
                    Change::Adjust(delta) => Some(-delta),
                    change => change.quantity().map(Quantity::units),
                };
                let mut units = others.next().expect("a movement");
                if let Some(asked) = asked {
                    while units < asked {
                        units += others.next().expect("the rest of the units");
                    }
                    assert_eq!(units, asked, "seed {seed}");
                }
            }
            assert_eq!(others.next(), None, "seed {seed}");
        }
    }
}

/// Makes a batch comparable with single operations: a request that is repeated within one batch is
/// `Duplicate`; made alone, it is `Recorded`.
fn without_movement(outcome: AttemptOutcome) -> AttemptOutcome {
    match outcome {
        AttemptOutcome::Recorded(_) => AttemptOutcome::Duplicate,
        other => other,
    }
}

pub(super) fn sku(name: &str) -> Sku {
    Sku::parse(name).expect("a valid name")
}

fn warehouse(name: &str) -> Warehouse {
    Warehouse::parse(name).expect("a valid name")
}

fn any_key(rng: &mut Rng) -> Option<Idempotency> {
    (rng.u8(..3) == 0).then(|| key(rng.u8(..3)))
}

fn key(number: u8) -> Idempotency {
    Idempotency {
        caller: Caller::anonymous(),
        key: IdempotencyKey::parse(&format!("K-{number}")).expect("a valid key"),
        hash: RequestHash([0; 32]),
    }
}

/// A hold of the lines of an order. It replaces one of `holds`, if there are any.
fn hold_of(rng: &mut Rng, mut order: Operation, holds: &[Vec<Movement>]) -> Operation {
    for line in &mut order.lines {
        let quantity = Quantity::try_from(rng.u32(1..4)).expect("a valid quantity");
        line.change = Change::Hold(Holding {
            quantity,
            lasts: None,
        });
    }
    if holds.is_empty() {
        return order;
    }
    let old = holds[rng.usize(..holds.len())].clone();
    HoldEnd::replaced_by(&order, old[0].operation, old, &[]).expect("it was not ended")
}

/// An operation of one or more lines. `sales`, `holds`: the movements of each.
fn any_operation(rng: &mut Rng, (sales, holds): (&[Vec<Movement>], &[Vec<Movement>])) -> Operation {
    let operation = OperationId(Uuid::from_u128(rng.u128(..)));
    let level = (
        sku(["a", "b"][rng.usize(..2)]),
        warehouse(["main", "north"][rng.usize(..2)]),
    );
    let deadline = Instant::now() + Duration::from_mins(1);
    let reason = Remark::parse("reason", "because").expect("a valid remark");
    let (sku, warehouse) = level.clone();
    let one_line = |change, reason| {
        let line = Line::new(level.0.clone(), level.1.clone(), change);
        let made = Operation::of_line(Caller::anonymous(), line, reason, deadline);
        Operation {
            id: operation,
            ..made
        }
    };
    let kind = rng.u8(..9);
    match kind {
        0 => {
            let change = Change::Adjust([-3, -1, 2, MAX_UNITS][rng.usize(..4)]);
            Operation {
                idempotency: any_key(rng),
                ..one_line(change, Some(reason))
            }
        }
        1 => {
            let change = Change::Set(Setting {
                on_hand: [None, Some(0), Some(5)][rng.usize(..3)],
                backorder_limit: [None, Some(2)][rng.usize(..2)],
                precondition: [None, Some(Precondition::Exists), Some(Precondition::Absent)]
                    [rng.usize(..3)]
                .clone(),
                scope: [Scope::Sku, Scope::Level][rng.usize(..2)],
            });
            one_line(change, None)
        }
        2 if !sales.is_empty() => {
            let sale = &sales[rng.usize(..sales.len())];
            let mut lines: Vec<_> = sale
                .iter()
                .map(|one| (one.line, [None, Some(Quantity::ONE)][rng.usize(..2)]))
                .collect();
            rng.shuffle(&mut lines);
            lines.truncate(rng.usize(0..=lines.len()));
            let restock = rng.bool();
            let mut new = one_line(Change::Adjust(0), Some(reason));
            new.idempotency = any_key(rng);
            if sale.len() > 1 {
                new.idempotency = Some(key(rng.u8(..3)));
            }
            let reversal = Reversal {
                new,
                sale: sale[0].operation,
                quantity: None,
                lines,
                restock,
            };
            reversal.of_sale(sale.clone()).expect("lines of the sale")
        }
        _ => {
            let units = Quantity::try_from(rng.u32(1..4)).expect("a valid quantity");
            let mut order = Operation {
                id: operation,
                caller: Caller::anonymous(),
                lines: vec![Line::new(sku, warehouse, Change::Deduct(units))],
                idempotency: any_key(rng),
                remarks: Remarks::default(),
                strategy: Some("group-commit"),
                is_row: false,
                deadline,
            };
            for _ in 0..rng.usize(..3) {
                let mut line = order.lines[0].clone();
                line.sku = self::sku(["a", "b"][rng.usize(..2)]);
                order.lines.push(line);
            }
            for line in &mut order.lines {
                if rng.u8(..3) == 0 {
                    let all = ["main", "north", "west"].map(self::warehouse);
                    line.others = all
                        .into_iter()
                        .filter(|one| *one != line.warehouse)
                        .collect();
                    line.split = rng.bool();
                }
            }
            match kind {
                3 => hold_of(rng, order, &[]),
                4 => hold_of(rng, order, holds),
                _ => order,
            }
        }
    }
}

/// A shop that has sold something, and operations for it.
pub(super) fn any_case(seed: u64) -> (Shop, Vec<Operation>) {
    let rng = &mut Rng::with_seed(seed);
    let mut shop = Shop::generated(rng);
    let first: Vec<_> = (0..4).map(|_| any_operation(rng, (&[], &[]))).collect();
    shop.make(&first);
    let of_kind = |kind| {
        let movements = shop.ledger.iter().filter(|one| one.kind == kind).cloned();
        let mut movements: Vec<_> = movements.collect();
        movements.sort_by_key(|one| (one.operation, one.line));
        let of_one = |one: &Movement, next: &Movement| one.operation == next.operation;
        let operations = movements.chunk_by(of_one).map(<[_]>::to_vec);
        operations.collect::<Vec<_>>()
    };
    let (sales, holds) = (of_kind(MovementKind::Deducted), of_kind(MovementKind::Held));
    let operations = (0..rng.usize(1..7))
        .map(|_| any_operation(rng, (&sales, &holds)))
        .collect();
    (shop, operations)
}
