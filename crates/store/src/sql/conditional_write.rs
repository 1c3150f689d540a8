//! A write that takes units from a level on a condition, and records the sale.
//!
//! Level and movement commit together. The condition is part of the `UPDATE`, so the database
//! evaluates it when it holds the row's lock.

use super::dialect::{Value, values};
use super::ledger_row::LedgerRow;
use super::statements::NEXT_PARAMETERS;
use stocklock_core::ports::{AttemptOutcome, Condition};
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
    /// The movement. The statement computes its `available_after`.
    pub(crate) row: LedgerRow,
    /// What `on_hand` becomes.
    pub(crate) on_hand: String,
    /// Other assignments, each with a comma before it.
    pub(crate) also: String,
    pub(crate) condition: String,
    /// The values of [`NEXT_PARAMETERS`].
    level_values: Vec<Value<'a>>,
}

impl<'a> ConditionalWrite<'a> {
    /// Takes the units if enough are available.
    pub(crate) fn if_available(deduction: &Deduction) -> Self {
        let [units, ..] = &*NEXT_PARAMETERS;
        Self {
            row: LedgerRow::from_deduction(deduction, None),
            on_hand: format!("on_hand - {units}"),
            also: String::new(),
            condition: format!("on_hand - held >= {units} - backorder_limit"),
            level_values: values![deduction.quantity.units()].to_vec(),
        }
    }

    /// Writes the level that follows from `read`.
    pub(crate) fn from_read(
        deduction: &Deduction,
        read: &StockLevel,
        condition: Condition<'a>,
    ) -> Self {
        let mut level_values = vec![Value::from(read.on_hand - deduction.quantity.units())];
        let [on_hand, version, token, source] = &*NEXT_PARAMETERS;
        let (also, condition) = match condition {
            // The limit may be lower than it was when the level was read, and the CHECK would refuse
            // the row.
            Condition::None => (
                String::new(),
                format!("{on_hand} - held >= -backorder_limit"),
            ),
            Condition::Version => {
                level_values.extend(values![read.version]);
                (String::new(), format!("version = {version}"))
            }
            Condition::Fence(fence) => {
                level_values.extend(values![read.version, fence.token, &*fence.source]);
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
        }
    }

    /// Whether the movement has an idempotency key.
    pub(crate) fn has_key(&self) -> bool {
        self.row.idempotency_key.is_some()
    }

    /// The `UPDATE`. It returns the units that are available, or no row if the condition does not
    /// hold.
    pub(crate) fn update(&self) -> String {
        let Self {
            on_hand,
            also,
            condition,
            ..
        } = self;
        format!(
            "UPDATE stock SET version = version + 1, on_hand = {on_hand}{also} \
             WHERE sku = $2 AND warehouse = $3 AND home = 'sql' AND {condition} \
             RETURNING on_hand - held + backorder_limit AS available"
        )
    }

    /// The values of the statement: those of the row, then those of the level.
    pub(crate) fn values(&self) -> Vec<Value<'_>> {
        [&self.row.values()[..LedgerRow::KNOWN], &self.level_values].concat()
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
        ConditionalWrite::if_available(&Deduction {
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
        })
    }
}
