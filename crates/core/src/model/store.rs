//! A store in memory that models a READ COMMITTED database, one statement at a time.
//!
//! Each statement and each COMMIT is one step. It yields first, so that the explorer can run steps
//! of other tasks in between. A write locks its row until the transaction ends; other writers wait
//! in order and then see the committed row. The ledger accepts each operation id and each caller's
//! key once. There is no time: nothing times out, and the explorer reports transactions that wait
//! for each other as a deadlock.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::stock::{
    Audit, Deduction, Durability, Fence, Home, Idempotency, Movement, MovementKind, OperationId,
    Sku, StockLevel, Warehouse,
};

use super::explore::{Decisions, yield_once};
use super::transaction::LockedName;

/// The condition of a write under a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteCondition {
    /// Version and fence, as in the databases.
    VersionAndFence,
    /// Only the fence, as many texts on fencing tokens recommend.
    FenceOnly,
}

/// The model database; clones share it.
#[derive(Clone)]
pub struct MemoryStore {
    tables: Arc<Mutex<Tables>>,
    pub(super) condition: WriteCondition,
    pub(super) decisions: Decisions,
}

/// The committed rows, and the locks.
#[derive(Debug, Default)]
pub(super) struct Tables {
    levels: Vec<Row>,
    pub(super) ledger: Vec<Entry>,
    pub(super) locks: Vec<LockedName>,
    pub(super) transactions: u64,
    /// Number of connections that may still be lost in COMMIT.
    faults: u32,
}

/// A row of stock: the level, and the fence of the last write under a lock.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) level: StockLevel,
    pub(super) fence: Option<Fence>,
}

impl Row {
    /// Whether a later holder of the same lock has written this row.
    pub(super) fn is_after(&self, fence: &Fence) -> bool {
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

/// A row of the ledger: the movement, and the caller with its idempotency key.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) movement: Movement,
    pub(super) key: Option<(String, String)>,
}

impl Tables {
    pub(super) fn row(&self, sku: &Sku, warehouse: &Warehouse) -> Option<&Row> {
        self.levels
            .iter()
            .find(|row| row.sku == *sku && row.warehouse == *warehouse)
    }

    pub(super) fn put(&mut self, row: Row) {
        self.levels
            .retain(|old| old.sku != row.sku || old.warehouse != row.warehouse);
        self.levels.push(row);
    }

    /// Whether a unique index of the ledger refuses `entry`.
    pub(super) fn is_duplicate(&self, entry: &Entry) -> bool {
        self.ledger.iter().any(|old| {
            old.movement.operation == entry.movement.operation
                || (entry.key.is_some() && old.key == entry.key)
        })
    }
}

impl MemoryStore {
    /// An empty database, with at most `faults` connections lost in COMMIT.
    #[must_use]
    pub fn new(decisions: &Decisions, faults: u32) -> Self {
        let tables = Tables {
            faults,
            ..Tables::default()
        };
        Self {
            tables: Arc::new(Mutex::new(tables)),
            condition: WriteCondition::VersionAndFence,
            decisions: decisions.clone(),
        }
    }

    /// Changes the condition of writes under a lock.
    #[must_use]
    pub fn with_condition(self, condition: WriteCondition) -> Self {
        Self { condition, ..self }
    }

    /// Creates a SKU with `on_hand` units in its default warehouse, without a step.
    pub fn stock(&self, sku: &Sku, on_hand: i64) {
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

    /// The audit of the SKU's committed levels and movements, without a step.
    #[must_use]
    pub fn audit_now(&self, sku: &Sku) -> Vec<Audit> {
        let tables = self.tables();
        let levels = tables.levels.iter().filter(|level| level.sku == *sku);
        let audit = |level: &Row| {
            let sum = |sold: bool| -> i64 {
                let movements = tables.ledger.iter().map(|entry| &entry.movement);
                movements
                    .filter(|one| one.sku == *sku && one.warehouse == level.warehouse)
                    .filter(|one| (one.kind == MovementKind::Deducted) == sold)
                    .map(|one| one.delta)
                    .sum()
            };
            Audit {
                warehouse: level.warehouse.clone(),
                received: sum(false),
                sold: -sum(true),
                on_hand: level.on_hand,
                held: level.held,
                backorder_limit: level.backorder_limit,
                pending: 0,
            }
        };
        levels.map(audit).collect()
    }

    /// The deductions in the ledger, without a step.
    #[must_use]
    pub fn deductions_now(&self) -> Vec<Movement> {
        let tables = self.tables();
        let movements = tables.ledger.iter().map(|entry| entry.movement.clone());
        movements
            .filter(|one| one.kind == MovementKind::Deducted)
            .collect()
    }

    /// The committed levels that match, sorted.
    pub(super) fn levels_where(&self, wanted: impl Fn(&StockLevel) -> bool) -> Vec<StockLevel> {
        let tables = self.tables();
        let levels = tables.levels.iter().map(|row| row.level.clone());
        let mut found: Vec<_> = levels.filter(wanted).collect();
        found.sort_by(|a, b| (&a.sku, &a.warehouse).cmp(&(&b.sku, &b.warehouse)));
        found
    }

    /// Starts a statement.
    pub(super) async fn step(&self, statement: &'static str) {
        yield_once().await;
        self.decisions.note(statement);
    }

    /// Decides whether this COMMIT loses its connection.
    pub(super) fn connection_is_lost(&self) -> bool {
        let mut tables = self.tables();
        let lost = tables.faults > 0 && self.decisions.choose(2) == 1;
        tables.faults -= u32::from(lost);
        lost
    }

    pub(super) fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tables().fmt(f)
    }
}

/// A movement whose result is the level `after`.
pub(super) fn movement(
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
        // The model has no time, and no explored code reads it.
        created_at: "1970-01-01T00:00:00Z".to_owned(),
    }
}

pub(super) fn key(idempotency: Option<&Idempotency>) -> Option<(String, String)> {
    let Idempotency { caller, key, .. } = idempotency?;
    Some((caller.as_str().to_owned(), key.as_str().to_owned()))
}

/// The sale whose result is `after`. Read-check-write strategies computed it from `read`.
pub(super) fn sale(deduction: &Deduction, after: &StockLevel, read: Option<&StockLevel>) -> Entry {
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
