//! A whole transaction in one message: level and movement are written and committed in one round
//! trip, and the row's lock is held across none.
//!
//! A prepared statement is one statement, so the values of a message of several are
//! [`literal`](super::literal)s in its text.

use std::fmt::{self, Display, Formatter};

use super::literal::{Bytes, Nullable, Text};
use crate::sql::conditional_write::{Change, ConditionalWrite};
use crate::sql::ledger_row::LedgerRow;
use crate::sql::statements::insert_columns;

/// A transaction that takes units from a level and records the sale. The answer to its third
/// statement says whether the condition held, and has what remains as the last inserted id.
#[derive(Debug)]
pub(super) struct Script<'a> {
    row: &'a LedgerRow,
    /// What the level becomes.
    on_hand: String,
    /// Other assignments, each with a comma before it.
    also: String,
    condition: String,
}

impl<'a> Script<'a> {
    pub(super) fn new(write: &'a ConditionalWrite<'_>) -> Self {
        let (on_hand, also, condition) = match write.change {
            Change::Take { units } => (
                format!("on_hand - {units}"),
                String::new(),
                format!("on_hand - held >= {units} - backorder_limit"),
            ),
            Change::Overwrite { on_hand } => (
                on_hand.to_string(),
                String::new(),
                format!("{on_hand} - held >= -backorder_limit"),
            ),
            Change::IfVersion { on_hand, version } => (
                on_hand.to_string(),
                String::new(),
                format!("version = {version}"),
            ),
            Change::IfFenced {
                on_hand,
                version,
                fence,
            } => {
                let (token, source) = (fence.token, Text(&fence.source));
                (
                    on_hand.to_string(),
                    format!(", fence = {token}, fence_source = {source}"),
                    format!(
                        "version = {version} AND (fence_source <> {source} OR fence <= {token})"
                    ),
                )
            }
        };
        Self {
            row: &write.row,
            on_hand,
            also,
            condition,
        }
    }
}

/// `last_insert_id(…)` puts its argument, the units that remain, into the answer to the `UPDATE`,
/// because MariaDB has no `UPDATE … RETURNING`. Its assignment comes first: the server's `sql_mode`
/// decides whether columns further right are read before or after their assignment.
///
/// The `INSERT` reads from a variable whether the `UPDATE` changed a row. `row_count()` would say so
/// too, but it is part of the answer: if the client is gone, MariaDB goes on with the message, finds
/// no count, would record nothing, and commit.
impl Display for Script<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let row = self.row;
        let (sku, warehouse) = (Text(row.sku.as_str()), Text(row.warehouse.as_str()));
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
            "INSERT INTO movement ({columns}) \
            SELECT {operation}, 0, {sku}, {warehouse}, {kind}, {delta}, {read_version}, \
            {strategy}, {durability}, {caller}, {key}, {hash}, {reason}, {reference}, \
            @available FROM dual WHERE @available IS NOT NULL; COMMIT",
            columns = insert_columns!(),
            operation = Bytes(row.operation_id.as_bytes()),
            kind = Text(&row.kind),
            delta = row.delta,
            read_version = Nullable(row.read_version),
            strategy = Nullable(row.strategy.as_deref().map(Text)),
            durability = Text(&row.durability),
            caller = Text(&row.caller),
            key = Nullable(row.idempotency_key.as_deref().map(Text)),
            hash = Nullable(row.request_hash.as_deref().map(Bytes)),
            reason = Nullable(row.reason.as_deref().map(Text)),
            reference = Nullable(row.reference.as_deref().map(Text)),
        )
    }
}

#[cfg(test)]
mod tests {
    use uuid::uuid;

    use super::*;
    use stocklock_core::stock::{
        Caller, Deduction, Idempotency, IdempotencyKey, OperationId, Quantity, RequestHash, Sku,
        Warehouse,
    };

    /// `make bench` sends this with the database's own load tool. It knows these values.
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
        insta::assert_snapshot!(Script::new(&ConditionalWrite::if_available(&deduction)));
    }
}
