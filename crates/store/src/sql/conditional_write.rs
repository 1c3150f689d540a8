//! A write that takes units from a level on a condition, and records the sale.
//!
//! Level and movement commit together. The condition is part of the `UPDATE`, so the database
//! evaluates it when it holds the row's lock. That also holds for the expiry: a message that arrives
//! late, or waits too long for the lock, changes nothing.

use tokio::time::Instant;

use super::ledger_row::NewRow;
use super::pool::{PooledConnection, Server};
use super::statement::{Statement, Value, values};
use super::statements::Texts;
use crate::StoreError;
use stocklock_core::ports::{Condition, Expiry, ReadLevel};
use stocklock_core::stock::Operation;

/// A version that no level has.
const NO_VERSION: i64 = -1;

/// What is written, and on which condition.
#[derive(Debug)]
pub(crate) struct ConditionalWrite<'a> {
    /// The movement. The statement computes its `available_after` and `level_version`.
    pub(crate) row: NewRow<'a>,
    /// The statement. It returns the units that are available, or no row if the condition does not hold or the
    /// attempt has expired.
    pub(crate) statement: fn(&Texts) -> &Statement,
    /// The units that are available then if the level is set, its version before, the fencing token and its
    /// source. NULL if the write does not depend on it.
    level_values: [Value<'a>; 4],
    /// When the caller is answered at the latest.
    pub(crate) deadline: Instant,
    /// When the attempt that was sent last expires.
    expiry: Option<Expiry>,
}

impl<'a> ConditionalWrite<'a> {
    /// Takes the units if enough are available.
    pub(crate) fn if_available(operation: &'a Operation) -> Self {
        Self {
            row: NewRow::of_sale(operation, None),
            statement: |texts| &texts.if_available,
            level_values: values![None::<i64>, None::<i64>, None::<i64>, None::<&str>],
            deadline: operation.deadline,
            expiry: None,
        }
    }

    /// Writes the level that follows from `read`: sets it, if the write has no condition. Otherwise the
    /// level is still the one that was read.
    pub(crate) fn from_read(
        operation: &'a Operation,
        read: ReadLevel,
        condition: Condition<'a>,
    ) -> Self {
        let mut write = Self {
            row: NewRow::of_sale(operation, read.version),
            ..Self::if_available(operation)
        };
        // NULL would be no condition.
        let unchanged = read.version.unwrap_or(NO_VERSION);
        match condition {
            Condition::None => {
                write.statement = |texts| &texts.set;
                write.level_values[0] = (read.available - operation.units()).into();
            }
            Condition::Version => {
                write.statement = |texts| &texts.if_unchanged;
                write.level_values[1] = unchanged.into();
            }
            Condition::Fence(fence) => {
                write.statement = |texts| &texts.if_not_fenced;
                write.level_values = values![None::<i64>, unchanged, fence.token, &*fence.source];
            }
        }
        write
    }

    /// Sets the expiry of the attempt, which is sent on `connection` now.
    pub(crate) fn send_on<S: Server>(&mut self, connection: &PooledConnection<S>) {
        self.expiry = Some(connection.expiry(self.deadline));
    }

    /// If this error leaves the outcome unknown, the attempt can be made until its expiry.
    pub(crate) fn failed(&self, error: StoreError) -> StoreError {
        match self.expiry {
            Some(expiry) => error.expiring(expiry),
            None => error,
        }
    }

    /// The values of the statement: those of the row, the expiry, and those of the level. They are always
    /// of the same number and types.
    pub(crate) fn values(&self) -> Vec<Value<'a>> {
        let expiry = self.expiry.map(|expiry| expiry.at);
        [&self.row.known()[..], &values![expiry], &self.level_values].concat()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use uuid::uuid;

    use super::*;
    use stocklock_core::stock::{
        Caller, Change, Idempotency, IdempotencyKey, Line, OperationId, Quantity, Remarks,
        RequestHash, Sku, Warehouse,
    };

    /// A sale of one unit, with a key.
    pub(in crate::sql) fn sale() -> Operation {
        let sku = Sku::parse("sample").unwrap();
        let one = Change::Deduct(Quantity::ONE);
        Operation {
            id: OperationId(uuid!("01234567-89ab-7def-8123-456789abcdef")),
            caller: Caller::anonymous(),
            lines: vec![Line::new(sku, Warehouse::default(), one)],
            idempotency: Some(Idempotency {
                caller: Caller::anonymous(),
                key: IdempotencyKey::parse("sample-key").unwrap(),
                hash: RequestHash([0; 32]),
            }),
            remarks: Remarks::default(),
            strategy: Some("single-sql"),
            is_row: false,
            deadline: Instant::now() + Duration::from_mins(1),
        }
    }

    /// The write of the snapshots. `make bench` knows these values.
    pub(in crate::sql) fn sample(sale: &Operation) -> ConditionalWrite<'_> {
        let write = ConditionalWrite::if_available(sale);
        // In the year 2100.
        let at = 4_102_444_800_000;
        let expiry = Expiry {
            at,
            ..Expiry::passed()
        };
        ConditionalWrite {
            expiry: Some(expiry),
            ..write
        }
    }
}
