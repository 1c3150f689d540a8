//! A store in memory that models a READ COMMITTED database, one statement at a time.
//!
//! Each statement and each COMMIT is one step. It yields first, so that the explorer can run steps
//! of other tasks in between. A write locks its row until the transaction ends; other writers wait
//! and then see the committed row. The ledger accepts each operation id and each caller's key once.
//! Nothing times out, and the explorer reports transactions that wait for each other as a deadlock.
//! The database's clock stands still until a task waits for an attempt to expire, or a test moves it.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::explore::{Decisions, yield_once};
use super::mutex::ModelMutex;
use crate::plan::{HoldLine, Plan, Snapshot};
use crate::ports::StoreError;
use crate::stock::{
    Audit, Caller, Change, Count, CountedFrom, Fence, Idempotency, Line, Movement, MovementKind,
    OpenHold, Operation, Sku, StockLevel, Warehouse,
};

/// The condition of a write under a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteCondition {
    /// Version and fence, as in the databases.
    VersionAndFence,
    /// Only the fence, as many texts on fencing tokens recommend.
    FenceOnly,
}

/// How often each fault may happen in one schedule. Each may happen at any step at which it can.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Faults {
    /// Connections that are lost in COMMIT: the outcome is unknown.
    pub commits: u32,
    /// Messages that arrive late, of writes whose rows are not locked: the client has lost the
    /// connection, and the server executes the message at any later step.
    pub late_messages: u32,
    /// Statements before COMMIT that fail: nothing was changed.
    pub statements: u32,
}

/// The model database; clones share it.
#[derive(Debug, Clone)]
pub struct MemoryStore {
    pub(super) tables: Arc<Mutex<Tables>>,
    pub(super) condition: WriteCondition,
    /// Whether a write checks that its attempt has not expired.
    pub(super) checks_expiry: bool,
    /// Whether a lock may go to any of its waiters.
    any_order: bool,
    pub(super) decisions: Decisions,
}

/// The committed rows, and the locks.
#[derive(Debug, Default)]
pub(super) struct Tables {
    levels: Vec<Row>,
    pub(super) ledger: Vec<Entry>,
    pub(super) holds: BTreeMap<HoldLine, OpenHold>,
    locks: BTreeMap<String, ModelMutex>,
    /// The faults that may still happen.
    faults: Faults,
    /// The database's clock.
    pub(super) clock: i64,
}

/// The primary key of a row of stock.
pub(super) type Place<'a> = (&'a Sku, &'a Warehouse);

/// A row of stock: the level, and the fence of the last write under a lock.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) level: StockLevel,
    pub(super) fence: Option<Fence>,
}

impl Row {
    pub(super) fn is_at(&self, (sku, warehouse): Place<'_>) -> bool {
        self.level.sku == *sku && self.level.warehouse == *warehouse
    }

    /// Whether a later holder of the same lock has written this row.
    pub(super) fn is_after(&self, fence: &Fence) -> bool {
        let last = self.fence.as_ref();
        last.is_some_and(|last| fence.is_before(last.token, &last.source))
    }
}

/// A row of the ledger: the movement, and the values of its unique (caller, key).
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) movement: Movement,
    pub(super) key: Option<(String, String)>,
}

impl Entry {
    /// Whether a unique index refuses `other` beside this one.
    pub(super) fn excludes(&self, other: &Self) -> bool {
        let identity = |entry: &Self| (entry.movement.operation, entry.movement.line);
        identity(self) == identity(other) || (self.key.is_some() && self.key == other.key)
    }

    pub(super) fn of(movement: Movement) -> Self {
        let key = movement.idempotency_key.clone();
        Self {
            key: key.map(|key| (movement.caller.clone(), key)),
            movement,
        }
    }
}

/// The values of the ledger's unique index.
pub(super) fn key(idempotency: Option<&Idempotency>) -> Option<(String, String)> {
    let Idempotency { caller, key, .. } = idempotency?;
    Some((caller.as_str().to_owned(), key.as_str().to_owned()))
}

impl Tables {
    pub(super) fn row(&self, place: Place<'_>) -> Option<&Row> {
        self.levels.iter().find(|row| row.is_at(place))
    }

    pub(super) fn put(&mut self, row: Row) {
        let place = (&row.level.sku, &row.level.warehouse);
        self.levels.retain(|old| !old.is_at(place));
        self.levels.push(row);
    }

    /// Whether a unique index of the ledger refuses `entry`.
    pub(super) fn is_duplicate(&self, entry: &Entry) -> bool {
        self.ledger.iter().any(|old| old.excludes(entry))
    }
}

impl MemoryStore {
    /// An empty database without faults, whose locks go to their waiters in order of arrival.
    #[must_use]
    pub fn new(decisions: &Decisions) -> Self {
        Self {
            tables: Arc::default(),
            condition: WriteCondition::VersionAndFence,
            checks_expiry: true,
            any_order: false,
            decisions: decisions.clone(),
        }
    }

    /// Lets these faults happen.
    #[must_use]
    pub fn with_faults(self, faults: Faults) -> Self {
        self.tables.lock().faults = faults;
        self
    }

    /// Makes it a decision which of its waiters gets a lock.
    #[must_use]
    pub fn with_any_order(self, any_order: bool) -> Self {
        Self { any_order, ..self }
    }

    /// Makes expired attempts take effect.
    #[must_use]
    pub fn without_expiry_check(self) -> Self {
        Self {
            checks_expiry: false,
            ..self
        }
    }

    /// Changes the condition of writes under a lock.
    #[must_use]
    pub fn with_condition(self, condition: WriteCondition) -> Self {
        Self { condition, ..self }
    }

    /// Creates a SKU with `on_hand` units in its default warehouse, without a step.
    pub fn stock(&self, sku: &Sku, on_hand: i64) {
        self.stock_in(sku, &Warehouse::default(), on_hand);
    }

    /// The same in another warehouse.
    pub fn stock_in(&self, sku: &Sku, warehouse: &Warehouse, on_hand: i64) {
        let level = StockLevel {
            sku: sku.clone(),
            warehouse: warehouse.clone(),
            on_hand,
            held: 0,
            backorder_limit: 0,
            version: 1,
        };
        let from = CountedFrom::Absent;
        let count = Change::Count(Count { on_hand, from });
        let line = Line::new(sku.clone(), warehouse.clone(), count);
        let created = Operation::of_line(Caller::anonymous(), line, None, Instant::now());
        let plan = Plan::new(&Snapshot::default(), [&created], Instant::now());
        let received = Movement {
            kind: MovementKind::Received,
            available_after: on_hand,
            level_version: 1,
            ..plan.movements[0].recorded(&plan.levels[0])
        };
        let mut tables = self.tables.lock();
        tables.put(Row { level, fence: None });
        tables.ledger.push(Entry::of(received));
    }

    /// The audit of the SKU's committed level and movements in its default warehouse, without a
    /// step.
    ///
    /// # Panics
    /// If there is no such SKU.
    #[must_use]
    pub fn audit_now(&self, sku: &Sku) -> Audit {
        let tables = self.tables.lock();
        let warehouse = Warehouse::default();
        let row = tables.row((sku, &warehouse)).expect("the SKU exists");
        let sum = |sold: bool| -> i64 {
            let movements = tables.ledger.iter().map(|entry| &entry.movement);
            movements
                .filter(|one| one.sku == *sku && one.warehouse == warehouse)
                .filter(|one| (one.kind == MovementKind::Deducted) == sold)
                .map(|one| one.delta)
                .sum()
        };
        let held_sum = || -> i64 {
            let movements = tables.ledger.iter().map(|entry| &entry.movement);
            let of_level = movements.filter(|one| one.sku == *sku && one.warehouse == warehouse);
            of_level.map(|one| one.held_delta).sum()
        };
        Audit {
            received: sum(false),
            sold: -sum(true),
            on_hand: row.level.on_hand,
            held: row.level.held,
            held_sum: held_sum(),
            backorder_limit: row.level.backorder_limit,
            warehouse: row.level.warehouse.clone(),
        }
    }

    /// The fence of the last write under a lock in the SKU's default warehouse, without a step.
    #[must_use]
    pub fn fence_now(&self, sku: &Sku) -> Option<Fence> {
        let tables = self.tables.lock();
        let row = tables.row((sku, &Warehouse::default()));
        row.and_then(|row| row.fence.clone())
    }

    /// Sets the held units of the SKU in its default warehouse, without a step.
    pub fn hold(&self, sku: &Sku, units: i64) {
        let mut tables = self.tables.lock();
        let row = tables.row((sku, &Warehouse::default())).cloned();
        if let Some(mut row) = row {
            row.level.held = units;
            tables.put(row);
        }
    }

    /// The open lines of holds, without a step.
    #[must_use]
    pub fn holds_now(&self) -> Vec<OpenHold> {
        let tables = self.tables.lock();
        let open = tables.holds.values().cloned();
        let open = open.map(|one| OpenHold {
            now: tables.clock,
            ..one
        });
        open.collect()
    }

    /// The ledger, oldest movement first, without a step.
    #[must_use]
    pub fn movements_now(&self) -> Vec<Movement> {
        let tables = self.tables.lock();
        let movements = tables.ledger.iter().map(|entry| entry.movement.clone());
        movements.collect()
    }

    /// The deductions in the ledger, without a step.
    #[must_use]
    pub fn deductions_now(&self) -> Vec<Movement> {
        let mut movements = self.movements_now();
        movements.retain(|one| one.kind == MovementKind::Deducted);
        movements
    }

    /// The committed levels of a SKU, in warehouse order, without a step.
    #[must_use]
    pub fn levels_now(&self, sku: &Sku) -> Vec<StockLevel> {
        let tables = self.tables.lock();
        let levels = tables.levels.iter().map(|row| row.level.clone());
        let mut found: Vec<_> = levels.filter(|level| level.sku == *sku).collect();
        found.sort_by(|a, b| a.warehouse.cmp(&b.warehouse));
        found
    }

    /// The lock with this name.
    pub(super) fn lock(&self, name: String) -> ModelMutex {
        let decisions = self.any_order.then_some(&self.decisions);
        let new = || ModelMutex::new(decisions);
        self.tables
            .lock()
            .locks
            .entry(name)
            .or_insert_with(new)
            .clone()
    }

    /// Moves the clock at some later step, so that the attempts expire that were sent before.
    pub async fn pass_time(&self) {
        self.pause("time passes").await;
        self.tables.lock().clock += 1;
    }

    /// A step that cannot fail.
    pub(super) async fn pause(&self, step: &'static str) {
        yield_once().await;
        self.decisions.note(step);
    }

    /// Starts a statement, or decides that it fails and how.
    pub(super) async fn step(&self, statement: &'static str) -> Result<(), StoreError> {
        self.pause(statement).await;
        let fault = match self.fault(|faults| &mut faults.statements, 5) {
            0 => return Ok(()),
            1 => StoreError::Aborted("a deadlock".into()),
            2 => StoreError::LockWait("a lock wait".into()),
            3 => StoreError::ConnectionLost("a lost connection".into()),
            _ => StoreError::Unavailable("a server that is away".into()),
        };
        self.decisions.note("the statement fails");
        Err(fault)
    }

    /// Decides whether this COMMIT loses its connection.
    pub(super) fn connection_is_lost(&self) -> bool {
        self.fault(|faults| &mut faults.commits, 2) == 1
    }

    /// Decides whether this message arrives late.
    pub(super) fn message_is_late(&self) -> bool {
        self.fault(|faults| &mut faults.late_messages, 2) == 1
    }

    /// Decides between no fault, which is 0, and the other options, while `left` is not zero.
    fn fault(&self, left: impl Fn(&mut Faults) -> &mut u32, options: usize) -> usize {
        let mut tables = self.tables.lock();
        let left = left(&mut tables.faults);
        if *left == 0 {
            return 0;
        }
        let fault = self.decisions.choose_fault(options);
        *left -= u32::from(fault > 0);
        fault
    }
}
