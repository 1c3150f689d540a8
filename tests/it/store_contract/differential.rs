//! Random sequences of operations on a database and on the explorer's model database: the same
//! outcomes, the same levels, the same movements. What the explorer proves about the model therefore
//! says something about the databases.

use std::sync::Arc;

use rstest::rstest;
use stocklock::ports::{AttemptOutcome, Condition, DeductionStore};
use stocklock::stock::{
    self, Fence, Idempotency, MAX_UNITS, Movement, Precondition, Remark, RequestHash, Reversal,
    Revision, Scope, Setting, Sku, StockLevel, Warehouse,
};
use stocklock_core::model::{Decisions, MemoryStore};
use stocklock_testkit::run::rng;

use super::fixture::{
    Fixture, Operations as _, adjustment, all_of, deduction, fence, idempotency, level_change,
    name, place, setting, units,
};
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

const OPERATIONS: usize = 900;
/// Least movements of each SKU. Most operations are refused.
const MOVEMENTS: usize = 30;
const SKUS: [&str; 2] = ["a", "b"];

/// How a deduction is made.
#[derive(Debug, Clone)]
enum How {
    Guarded,
    RowLock,
    /// From a level that was read at some time before.
    Overwrite(StockLevel),
    IfVersion(StockLevel),
    IfFence(StockLevel, Fence),
}

#[derive(Debug, Clone)]
enum Operation {
    Deduct(How, stock::Operation),
    Change(stock::Operation),
    /// Of a deduction with this SKU, which may have been refused.
    Reverse(Sku, Reversal),
}

#[derive(Debug, PartialEq)]
enum Outcome {
    Attempt(AttemptOutcome),
    /// `None`: there is no such sale.
    Reversal(Option<AttemptOutcome>),
}

impl Operation {
    async fn run(&self, store: &(impl DeductionStore + ?Sized)) -> Outcome {
        let attempt = match self {
            Self::Change(change) => store.write(change).await,
            Self::Reverse(_, reversal) => {
                let mut sale = store.operation(reversal.sale).await.expect("no error");
                let Some(sale) = sale.pop() else {
                    return Outcome::Reversal(None);
                };
                let outcome = store.reverse(reversal, &sale).await.expect("no error");
                return Outcome::Reversal(Some(outcome));
            }
            Self::Deduct(How::Guarded, sale) => store.deduct(sale).await,
            Self::Deduct(How::RowLock, sale) => store.write(sale).await,
            Self::Deduct(How::Overwrite(read), sale) => {
                store.write_back(sale, read.into(), Condition::None).await
            }
            Self::Deduct(How::IfVersion(read), sale) => {
                store
                    .write_back(sale, read.into(), Condition::Version)
                    .await
            }
            Self::Deduct(How::IfFence(read, fence), sale) => {
                store
                    .write_back(sale, read.into(), Condition::Fence(fence))
                    .await
            }
        };
        Outcome::Attempt(attempt.expect("no error"))
    }

    /// What the ledger has of the operation.
    async fn recorded(&self, store: &(impl DeductionStore + ?Sized)) -> Option<Movement> {
        let (sku, operation, idempotency) = match self {
            Self::Deduct(_, one) | Self::Change(one) => {
                (one.level().0, one.id, one.idempotency.as_ref())
            }
            Self::Reverse(sku, reversal) => {
                (sku, reversal.new.id, reversal.new.idempotency.as_ref())
            }
        };
        let recorded = store.recorded(sku, operation, idempotency).await;
        recorded.expect("no error").map(timeless)
    }
}

/// The model has no time.
fn timeless(movement: Movement) -> Movement {
    Movement {
        created_at: String::new(),
        ..movement
    }
}

/// Makes operations of what it has seen. `pick` draws a number below another one.
struct Generator<P> {
    pick: P,
    /// The levels after each operation.
    seen: Vec<StockLevel>,
    revisions: Vec<Revision>,
    made: Vec<Operation>,
}

impl<P: FnMut(usize) -> usize> Generator<P> {
    fn one_of<T: Clone>(&mut self, options: &[T]) -> T {
        options[(self.pick)(options.len())].clone()
    }

    fn next_operation(&mut self) -> Operation {
        let sales = self.made.iter().filter_map(|made| match made {
            Operation::Deduct(_, sale) => Some(sale.clone()),
            _ => None,
        });
        let sales: Vec<_> = sales.collect();
        let operation = match (self.pick)(12) {
            0 if !self.made.is_empty() => self.one_of(&self.made.clone()),
            10.. if !sales.is_empty() => {
                let recent = sales.len().saturating_sub(12);
                let sale = self.one_of(&sales[recent..]);
                self.reversal(&sale)
            }
            0..6 => self.deduct(),
            6..8 => Operation::Change(self.adjustment()),
            _ => Operation::Change(self.level_change()),
        };
        self.made.push(operation.clone());
        operation
    }

    fn place(&mut self) -> (&'static str, Warehouse) {
        let warehouse = self.one_of(&["main", "东仓"]);
        (self.one_of(&SKUS), place(warehouse))
    }

    fn idempotency(&mut self, hash: RequestHash) -> Option<Idempotency> {
        let key = self.one_of(&["k1", "k2", "k3", "k4"]);
        ((self.pick)(3) == 0).then(|| idempotency(key, hash))
    }

    fn deduct(&mut self) -> Operation {
        let (sku, warehouse) = self.place();
        let quantity = self.one_of(&[1, 2, 5]);
        let mut sale = deduction(sku, quantity);
        let line = &mut sale.lines[0];
        line.warehouse = warehouse;
        let how = match self.seen.len() {
            0 => 0,
            _ => (self.pick)(5),
        };
        let how = if how < 2 {
            [How::Guarded, How::RowLock][how].clone()
        } else {
            let recent = self.seen.len().min(6);
            let read = self.seen[self.seen.len() - 1 - (self.pick)(recent)].clone();
            (line.sku, line.warehouse) = (read.sku.clone(), read.warehouse.clone());
            match how {
                // Strategies write only what they have found to be enough.
                _ if read.available() < i64::from(quantity) => How::Guarded,
                2 => How::Overwrite(read),
                3 => How::IfVersion(read),
                _ => {
                    let source = self.one_of(&["here", "there"]);
                    let token = self.one_of(&[1, 2, 3]);
                    How::IfFence(read, fence(token, source))
                }
            }
        };
        sale.remarks.reference = self.reference();
        let [_, reference] = sale.remarks.texts();
        let (sku, warehouse) = sale.level();
        let hash = RequestHash::of_deduction(sku, warehouse, units(quantity), reference);
        sale.idempotency = self.idempotency(hash);
        Operation::Deduct(how, sale)
    }

    fn reference(&mut self) -> Option<Remark> {
        self.one_of(&[None, Remark::parse("reference", "R-1").ok()])
    }

    fn reversal(&mut self, sale: &stock::Operation) -> Operation {
        let quantity = self.one_of(&[None, Some(1), Some(2), Some(9)]).map(units);
        let restock = self.one_of(&[true, false]);
        let hash = RequestHash::of_reversal(sale.id, (quantity, &[]), restock, "count");
        let reversal = Reversal {
            new: stock::Operation {
                idempotency: self.idempotency(hash),
                ..adjustment("a", 0)
            },
            sale: sale.id,
            quantity,
            lines: Vec::new(),
            restock,
        };
        Operation::Reverse(sale.level().0.clone(), reversal)
    }

    fn adjustment(&mut self) -> stock::Operation {
        let (sku, warehouse) = self.place();
        let delta = self.one_of(&[-5, -1, 1, 4, MAX_UNITS]);
        let hash = RequestHash::of_deduction(&name(sku), &warehouse, units(9), None);
        let mut adjustment = adjustment(sku, delta);
        adjustment.lines[0].warehouse = warehouse;
        adjustment.remarks.reference = self.reference();
        adjustment.idempotency = self.idempotency(hash);
        adjustment
    }

    fn level_change(&mut self) -> stock::Operation {
        let (sku, warehouse) = self.place();
        let recent = self.revisions.len().saturating_sub(4);
        let precondition = match (self.pick)(4) {
            0 => None,
            1 => Some(Precondition::Exists),
            2 => Some(Precondition::Absent),
            _ => Some(Precondition::OneOf(self.revisions[recent..].to_vec())),
        };
        let mut change = level_change(sku, 0);
        change.lines[0].warehouse = warehouse;
        change.remarks.reason = self.one_of(&[None, Remark::parse("reason", "count").ok()]);
        *setting(&mut change) = Setting {
            on_hand: self.one_of(&[None, Some(0), Some(3), Some(20), Some(MAX_UNITS + 1)]),
            backorder_limit: self.one_of(&[None, None, Some(0), Some(2), Some(MAX_UNITS + 1)]),
            precondition,
            scope: self.one_of(&[Scope::Sku, Scope::Level]),
        };
        change
    }
}

#[rstest]
#[tokio::test]
async fn model_and_database_agree(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let fixture = Fixture::new(backend).await;
    let store = Arc::clone(&fixture.store);
    let model = MemoryStore::new(&Decisions::default());
    let mut random = rng().fork();
    let mut generator = Generator {
        pick: move |options: usize| random.usize(..options),
        seen: Vec::new(),
        revisions: Vec::new(),
        made: Vec::new(),
    };
    for number in 0..OPERATIONS {
        let operation = match SKUS.get(number) {
            Some(sku) => Operation::Change(level_change(sku, 20)),
            None => generator.next_operation(),
        };
        let outcome = operation.run(&*store).await;
        assert_eq!(
            outcome,
            operation.run(&model).await,
            "{number}: {operation:?}"
        );
        let recorded = operation.recorded(&*store).await;
        assert_eq!(
            recorded,
            operation.recorded(&model).await,
            "{number}: {operation:?}"
        );
        for sku in SKUS {
            let levels = store.levels_of(&name(sku)).await.expect("no error");
            assert_eq!(
                levels,
                model.levels_now(&name(sku)),
                "{number}: {operation:?}"
            );
            generator.revisions.push(Revision::of(&levels));
            generator.seen.extend(levels);
        }
    }
    for sku in SKUS {
        let mut expected = model.movements_now();
        expected.retain(|movement| movement.sku == name(sku));
        let found = store
            .movements(&all_of(sku))
            .await
            .expect("no error")
            .movements;
        let [found, expected] = [found, expected].map(|mut ledger| {
            ledger.sort_by_key(|movement| movement.operation);
            ledger.into_iter().map(timeless).collect::<Vec<_>>()
        });
        assert!(found.len() > MOVEMENTS, "{}", found.len());
        assert_eq!(found, expected);
    }
}
