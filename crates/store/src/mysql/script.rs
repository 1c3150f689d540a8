//! Whole transactions in one message: level and movement are written, and committed, in one round
//! trip, and the row's lock is held across none.
//!
//! A prepared statement is one statement, so a message of several has its values in its text, as
//! [`literal`](super::literal)s.

use std::fmt::{self, Display, Formatter};

use super::literal::{Bytes, Nullable, Text};
use crate::sql::ledger_row::LedgerRow;
use stocklock_core::stock::{Deduction, Fence, StockLevel};

/// A transaction that takes units from a level and records it. The answer to its third statement
/// says what came of it: whether the condition held, and as the last inserted id what remains.
#[derive(Debug)]
pub(super) struct Script {
    record: LedgerRow,
    /// What the level becomes.
    on_hand: String,
    /// What else is set, each with a comma before it.
    also: String,
    /// On what condition.
    condition: String,
}

impl Script {
    /// Where there is enough, so much less.
    pub(super) fn if_available(deduction: &Deduction) -> Self {
        let units = deduction.quantity.units();
        Self {
            record: LedgerRow::from_deduction(deduction, None),
            on_hand: format!("on_hand - {units}"),
            also: String::new(),
            condition: format!("on_hand - held >= {units} - backorder_limit"),
        }
    }

    /// If the level is still the one that was read.
    pub(super) fn if_version(deduction: &Deduction, read: &StockLevel) -> Self {
        Self {
            condition: format!("version = {}", read.version),
            ..Self::overwrite(deduction, read)
        }
    }

    /// If it is, and no later holder of the lock has written.
    pub(super) fn if_fenced(deduction: &Deduction, read: &StockLevel, fence: &Fence) -> Self {
        let (token, source, version) = (fence.token, Text(&fence.source), read.version);
        Self {
            also: format!(", fence = {token}, fence_source = {source}"),
            condition: format!(
                "version = {version} AND (fence_source <> {source} OR fence <= {token})"
            ),
            ..Self::overwrite(deduction, read)
        }
    }

    /// Whatever it is by now; but the limit may have been lowered, which the CHECK would refuse.
    pub(super) fn overwrite(deduction: &Deduction, read: &StockLevel) -> Self {
        let on_hand = read.on_hand - deduction.quantity.units();
        Self {
            record: LedgerRow::from_deduction(deduction, Some(read)),
            on_hand: on_hand.to_string(),
            also: String::new(),
            condition: format!("{on_hand} - held >= -backorder_limit"),
        }
    }
}

/// `last_insert_id(…)` puts its argument, the units that remain, into the answer to the `UPDATE`;
/// there is no `RETURNING`. It comes first, for the columns further to the right would be read as
/// already assigned, or not, depending on the server's `sql_mode`.
///
/// Whether a row was changed the `INSERT` learns from a variable that the `UPDATE` itself sets.
/// `row_count()` would say it too, but it is about the answer: once the client is gone, MariaDB
/// goes on with the message, finds no count, would record nothing, and commit.
impl Display for Script {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let record = &self.record;
        let (sku, warehouse) = (Text(record.sku.as_str()), Text(record.warehouse.as_str()));
        write!(
            f,
            "SET @available = NULL; BEGIN; UPDATE stock \
            SET version = version + 1 \
            + 0 * last_insert_id(@available := {on_hand} - held + backorder_limit), \
            on_hand = {on_hand}{also} \
            WHERE sku = {sku} AND warehouse = {warehouse} AND home = 'sql' AND {condition}; ",
            on_hand = self.on_hand,
            also = self.also,
            condition = self.condition,
        )?;
        write!(
            f,
            "INSERT INTO movement \
            (operation_id, line, sku, warehouse, kind, delta, read_version, strategy, durability, \
            caller, idempotency_key, request_hash, reason, reference, available_after) \
            SELECT {operation}, 0, {sku}, {warehouse}, {kind}, {delta}, {read_version}, \
            {strategy}, {durability}, {caller}, {key}, {hash}, {reason}, {reference}, \
            @available FROM dual WHERE @available IS NOT NULL; COMMIT",
            operation = Bytes(record.operation_id.as_bytes()),
            kind = Text(&record.kind),
            delta = record.delta,
            read_version = Nullable(record.read_version),
            strategy = Nullable(record.strategy.as_deref().map(Text)),
            durability = Text(&record.durability),
            caller = Text(&record.caller),
            key = Nullable(record.idempotency_key.as_deref().map(Text)),
            hash = Nullable(record.request_hash.as_deref().map(Bytes)),
            reason = Nullable(record.reason.as_deref().map(Text)),
            reference = Nullable(record.reference.as_deref().map(Text)),
        )
    }
}

#[cfg(test)]
mod tests {
    use uuid::uuid;

    use super::*;
    use stocklock_core::stock::{
        Caller, Idempotency, IdempotencyKey, OperationId, Quantity, RequestHash, Sku, Warehouse,
    };

    /// What `make bench` has the database's own load tool send; it knows these samples.
    #[test]
    fn single_sql() {
        let deduction = Deduction {
            operation: OperationId(uuid!("01234567-89ab-7def-8123-456789abcdef")),
            sku: Sku::parse("sample").unwrap(),
            warehouse: Warehouse::default(),
            quantity: Quantity::ONE,
            idempotency: Some(Idempotency {
                caller: Caller::anonymous(),
                key: IdempotencyKey::parse("sample-key").unwrap(),
                hash: RequestHash([0; 32]),
            }),
            strategy: "single-sql",
        };
        insta::assert_snapshot!(Script::if_available(&deduction));
    }
}
