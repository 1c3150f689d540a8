//! A write that takes units from a level on a condition, and records the sale.
//!
//! Level and movement commit together. The condition is part of the `UPDATE`, so the database
//! evaluates it when it holds the row's lock. That also holds for the expiry: a message that arrives
//! late, or waits too long for the lock, changes nothing.

use std::sync::OnceLock;

use tokio::time::Instant;

use super::dialect::{Value, values};
use super::ledger_row::LedgerRow;
use super::pool::{PooledConnection, Server};
use super::statements::{DELTA, NEXT_PARAMETERS};
use crate::StoreError;
use stocklock_core::ports::{AttemptOutcome, Condition, Expiry};
use stocklock_core::stock::{Deduction, Durability, StockLevel};

/// The outcome of a sale that is committed; `available` units remain.
pub(crate) fn deducted(available: i64) -> AttemptOutcome {
    AttemptOutcome::Deducted {
        remaining: available,
        durability: Durability::Committed,
    }
}

/// What is written, and on which condition.
#[derive(Debug)]
pub(crate) struct ConditionalWrite<'a> {
    /// The movement. The statement computes its `available_after` and `level_version`.
    pub(crate) row: LedgerRow,
    /// What `on_hand` becomes.
    pub(crate) on_hand: String,
    /// Other assignments, each with a comma before it.
    pub(crate) also: String,
    condition: String,
    /// What `on_hand` becomes, the version, the fencing token and its source. NULL if the write does not
    /// depend on it.
    level_values: [Value<'a>; 4],
    /// When the caller is answered at the latest.
    pub(crate) deadline: Instant,
    /// When the attempt expires. Set when it is sent.
    expiry: OnceLock<Expiry>,
}

impl<'a> ConditionalWrite<'a> {
    /// Takes the units if enough are available.
    pub(crate) fn if_available(deduction: &Deduction) -> Self {
        Self {
            row: LedgerRow::from_deduction(deduction, None),
            on_hand: format!("on_hand + {DELTA}"),
            also: String::new(),
            condition: format!("on_hand + {DELTA} - held >= -backorder_limit"),
            level_values: values![None::<i64>, None::<i64>, None::<i64>, None::<&str>],
            deadline: deduction.deadline,
            expiry: OnceLock::new(),
        }
    }

    /// Writes the level that follows from `read`.
    pub(crate) fn from_read(
        deduction: &Deduction,
        read: &StockLevel,
        condition: Condition<'a>,
    ) -> Self {
        let [_, on_hand, version, token, source] = &*NEXT_PARAMETERS;
        let after = read.on_hand - deduction.quantity.units();
        let mut level_values = values![after, None::<i64>, None::<i64>, None::<&str>];
        let (also, condition) = match condition {
            // The limit may be lower than it was when the level was read, and the CHECK would refuse
            // the row.
            Condition::None => (
                String::new(),
                format!("{on_hand} - held >= -backorder_limit"),
            ),
            Condition::Version => {
                level_values[1] = read.version.into();
                (String::new(), format!("version = {version}"))
            }
            Condition::Fence(fence) => {
                level_values = values![after, read.version, fence.token, &*fence.source];
                (
                    format!(", fence = {token}, fence_source = {source}"),
                    format!(
                        "version = {version} AND (fence_source <> {source} OR fence <= {token})"
                    ),
                )
            }
        };
        Self {
            row: LedgerRow::from_deduction(deduction, Some(read)),
            on_hand: on_hand.clone(),
            also,
            condition,
            level_values,
            deadline: deduction.deadline,
            expiry: OnceLock::new(),
        }
    }

    /// Sets the expiry of the attempt, which is sent on `connection` now.
    pub(crate) fn send_on<S: Server>(&self, connection: &PooledConnection<S>) {
        let expiry = connection.expiry(self.deadline);
        self.expiry.get_or_init(|| expiry);
    }

    /// If this error leaves the outcome unknown, the attempt can be made until its expiry.
    pub(crate) fn failed(&self, error: StoreError) -> StoreError {
        match self.expiry.get() {
            Some(expiry) => error.expiring(*expiry),
            None => error,
        }
    }

    /// Whether the movement has an idempotency key.
    pub(crate) fn has_key(&self) -> bool {
        self.row.idempotency_key.is_some()
    }

    /// Whether the attempt has not expired. `now` is the clock of [`Words`](super::statements::Words).
    pub(crate) fn in_time(now: &str) -> String {
        let [expiry, ..] = &*NEXT_PARAMETERS;
        format!("{now} < {expiry}")
    }

    /// The `UPDATE`. It returns the units that are available and the new version, or no row if the
    /// condition does not hold or the attempt has expired.
    pub(crate) fn update(&self, now: &str) -> String {
        let Self {
            on_hand,
            also,
            condition,
            ..
        } = self;
        format!(
            "UPDATE stock SET version = version + 1, on_hand = {on_hand}{also} \
             WHERE sku = $2 AND warehouse = $3 AND home = 'sql' AND {condition} AND {in_time} \
             RETURNING on_hand - held + backorder_limit AS available, version",
            in_time = Self::in_time(now),
        )
    }

    /// The values of the statement: those of the row, the expiry, and those of the level. They are always
    /// of the same number and types.
    pub(crate) fn values(&self) -> Vec<Value<'_>> {
        let expiry = self.expiry.get().map(|expiry| expiry.at);
        let known = &self.row.values()[..LedgerRow::KNOWN];
        [known, &values![expiry], &self.level_values].concat()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use uuid::uuid;

    use super::*;
    use stocklock_core::stock::{
        Caller, Idempotency, IdempotencyKey, OperationId, Quantity, Remarks, RequestHash, Sku,
        Warehouse,
    };

    /// The write of the snapshots. `make bench` knows these values.
    pub(in crate::sql) fn sample() -> ConditionalWrite<'static> {
        let write = ConditionalWrite::if_available(&Deduction {
            operation: OperationId(uuid!("01234567-89ab-7def-8123-456789abcdef")),
            sku: Sku::parse("sample").unwrap(),
            warehouse: Warehouse::default(),
            quantity: Quantity::ONE,
            idempotency: Some(Idempotency {
                caller: Caller::anonymous(),
                key: IdempotencyKey::parse("sample-key").unwrap(),
                hash: RequestHash([0; 32]),
            }),
            remarks: Remarks::default(),
            strategy: "single-sql",
            deadline: Instant::now(),
        });
        // In the year 2100.
        let at = 4_102_444_800_000;
        let expiry = Expiry {
            at,
            ..Expiry::passed()
        };
        ConditionalWrite {
            expiry: expiry.into(),
            ..write
        }
    }
}
