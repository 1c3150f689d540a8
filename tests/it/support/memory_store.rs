//! A `StockStore` in memory that models a READ COMMITTED database, one statement at a time.
//!
//! Each statement and each COMMIT is one step, preceded by one yield, so that the explorer can
//! put any step of anybody else in between. Writes lock their row until the transaction ends;
//! whoever wants the row meanwhile waits in line, and then decides by what it has become. The
//! ledger takes an operation once and a caller's key once. Time does not exist: nothing here times
//! out, and two transactions that wait for each other are a deadlock, which the explorer reports.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stocklock::stock::{
    Audit, Deduction, Durability, Fence, Home, Idempotency, Movement, MovementKind, OperationId,
    Sku, StockLevel, Warehouse,
};
use stocklock::store::Attempt;

use super::explore::{Decisions, yield_once};
use transaction::Lock;

mod stock_store;
mod transaction;

/// What a write under a lock is conditional on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guard {
    /// Version and fence, as the databases have it.
    VersionAndFence,
    /// The fence only, which is what many a text on fencing tokens asks for.
    FenceAlone,
}

/// The model database; clones are the same one.
#[derive(Clone)]
pub(crate) struct MemoryStore {
    tables: Arc<Mutex<Tables>>,
    guard: Guard,
    decisions: Decisions,
}

/// What is committed, and who holds what.
#[derive(Debug, Default)]
struct Tables {
    levels: Vec<Row>,
    ledger: Vec<Entry>,
    locks: Vec<Lock>,
    transactions: u64,
    /// How many more connections may be lost in COMMIT.
    faults: u32,
}

/// A row of stock: the level, and the fence of the last write under a lock.
#[derive(Debug, Clone)]
struct Row {
    level: StockLevel,
    fence: Option<Fence>,
}

impl Row {
    /// Whether a later holder of the same lock has written it.
    fn is_after(&self, fence: &Fence) -> bool {
        let last = self.fence.as_ref();
        last.is_some_and(|last| fence.is_before(last.token, &last.source))
    }
}

impl Deref for Row {
    type Target = StockLevel;
    fn deref(&self) -> &StockLevel {
        &self.level
    }
}

impl DerefMut for Row {
    fn deref_mut(&mut self) -> &mut StockLevel {
        &mut self.level
    }
}

/// A row of the ledger: the movement, and the caller's key that it was recorded under.
#[derive(Debug, Clone)]
struct Entry {
    movement: Movement,
    key: Option<(String, String)>,
}

impl Tables {
    fn row(&self, sku: &Sku, warehouse: &Warehouse) -> Option<&Row> {
        self.levels
            .iter()
            .find(|row| row.sku == *sku && row.warehouse == *warehouse)
    }

    fn put(&mut self, row: Row) {
        self.levels
            .retain(|old| old.sku != row.sku || old.warehouse != row.warehouse);
        self.levels.push(row);
    }

    /// Whether one of the ledger's unique indexes refuses `entry`.
    fn conflicts(&self, entry: &Entry) -> bool {
        self.ledger.iter().any(|old| {
            old.movement.operation == entry.movement.operation
                || (entry.key.is_some() && old.key == entry.key)
        })
    }
}

impl MemoryStore {
    /// An empty database, with at most `faults` connections lost in COMMIT.
    pub(crate) fn new(decisions: &Decisions, faults: u32) -> Self {
        let tables = Tables {
            faults,
            ..Tables::default()
        };
        Self {
            tables: Arc::new(Mutex::new(tables)),
            guard: Guard::VersionAndFence,
            decisions: decisions.clone(),
        }
    }

    /// The same with writes under a lock on another condition.
    pub(crate) fn guarded_by(self, guard: Guard) -> Self {
        Self { guard, ..self }
    }

    /// Stocks a SKU before anything runs.
    pub(crate) fn stock(&self, sku: &Sku, on_hand: i64) {
        let level = StockLevel {
            sku: sku.clone(),
            warehouse: Warehouse::default(),
            on_hand,
            held: 0,
            backorder_limit: 0,
            version: 1,
            home: Home::Sql,
        };
        let operation = OperationId::mint();
        let received = movement(operation, MovementKind::Received, on_hand, &level);
        let mut tables = self.tables();
        tables.put(Row { level, fence: None });
        tables.ledger.push(Entry {
            movement: received,
            key: None,
        });
    }

    /// Counter against ledger as committed, without a step; zeros for an unknown SKU.
    pub(crate) fn audit_now(&self, sku: &Sku) -> Vec<Audit> {
        let tables = self.tables();
        let levels = tables.levels.iter().filter(|level| level.sku == *sku);
        levels
            .map(|level| {
                let deltas = |sold: bool| -> i64 {
                    let movements = tables.ledger.iter().map(|entry| &entry.movement);
                    movements
                        .filter(|one| one.sku == *sku && one.warehouse == level.warehouse)
                        .filter(|one| (one.kind == MovementKind::Deducted) == sold)
                        .map(|one| one.delta)
                        .sum()
                };
                Audit {
                    warehouse: level.warehouse.clone(),
                    received: deltas(false),
                    sold: -deltas(true),
                    on_hand: level.on_hand,
                    held: level.held,
                    backorder_limit: level.backorder_limit,
                    pending: 0,
                }
            })
            .collect()
    }

    /// The deductions in the ledger, without a step.
    pub(crate) fn deductions_now(&self) -> Vec<Movement> {
        let tables = self.tables();
        let movements = tables.ledger.iter().map(|entry| entry.movement.clone());
        movements
            .filter(|one| one.kind == MovementKind::Deducted)
            .collect()
    }

    /// The committed levels that are wanted, in order.
    fn levels_where(&self, wanted: impl Fn(&StockLevel) -> bool) -> Vec<StockLevel> {
        let tables = self.tables();
        let levels = tables.levels.iter().map(|row| row.level.clone());
        let mut found: Vec<_> = levels.filter(wanted).collect();
        found.sort_by(|a, b| (&a.sku, &a.warehouse).cmp(&(&b.sku, &b.warehouse)));
        found
    }

    /// What every statement begins with.
    async fn step(&self, statement: &'static str) {
        yield_once().await;
        self.decisions.note(statement);
    }

    /// Whether this COMMIT is one that is lost: both are explored.
    fn connection_is_lost(&self) -> bool {
        let mut tables = self.tables();
        let lost = tables.faults > 0 && self.decisions.choose(2) == 1;
        tables.faults -= u32::from(lost);
        lost
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tables().fmt(f)
    }
}

/// The movement that leads to `after`.
fn movement(
    operation: OperationId,
    kind: MovementKind,
    delta: i64,
    after: &StockLevel,
) -> Movement {
    Movement {
        operation,
        sku: after.sku.clone(),
        warehouse: after.warehouse.clone(),
        kind,
        delta,
        available_after: after.available(),
        read_version: None,
        strategy: None,
        durability: Durability::Committed,
        request_hash: None,
        reason: None,
        reference: None,
        // The model has no time; nothing that is explored reads it.
        created_at: "1970-01-01T00:00:00Z".to_owned(),
    }
}

fn key(idempotency: Option<&Idempotency>) -> Option<(String, String)> {
    let Idempotency { caller, key, .. } = idempotency?;
    Some((caller.as_str().to_owned(), key.as_str().to_owned()))
}

/// The sale that left `after`, computed from `read` where it was computed outside the statement.
fn sale(deduction: &Deduction, after: &StockLevel, read: Option<&StockLevel>) -> Entry {
    let delta = -deduction.quantity.units();
    Entry {
        movement: Movement {
            read_version: read.map(|level| level.version),
            strategy: Some(deduction.strategy.to_owned()),
            request_hash: deduction.idempotency.as_ref().map(|one| one.hash),
            ..movement(deduction.operation, MovementKind::Deducted, delta, after)
        },
        key: key(deduction.idempotency.as_ref()),
    }
}

/// What an attempt comes to where `level` was read after the units had been refused.
fn refusal(level: Option<&StockLevel>, deduction: &Deduction) -> Attempt {
    let Some(available) = level.map(StockLevel::available) else {
        return Attempt::UnknownSku;
    };
    if available >= deduction.quantity.units() {
        Attempt::Stale
    } else {
        Attempt::Insufficient { available }
    }
}
