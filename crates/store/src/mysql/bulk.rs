//! Many movements by few statements.
//!
//! Most of what a movement costs the server is to understand the statement that inserts it. So many
//! at a time go by a statement that is prepared once; to prepare it takes long, for the server
//! describes each of its parameters, and so the rest, of any number, goes as text.

use std::fmt::{self, Display, Formatter, Write};
use std::sync::LazyLock;

use super::Transaction;
use super::literal::{Bytes, Nullable, Text, statement};
use crate::StoreError;
use crate::pool;
use crate::sql::ledger_row::LedgerRow;
use stocklock_core::stock::Durability;

/// How many rows the prepared statement has: with the longest values that there may be they fit
/// into the smallest `max_allowed_packet` in use, one megabyte.
const PREPARED_ROWS: usize = 64;

/// Followed by rows.
const RECORD: &str = "INSERT INTO movement
    (operation_id, line, sku, warehouse, kind, delta, available_after, read_version, strategy,
     durability, caller, idempotency_key, request_hash, reason, reference, created_at,
     journal_millis, journal_number) VALUES ";

/// As [`record_prepared`] binds it.
const ROW: &str = "(?, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, from_unixtime(? / 1000), ?, ?)";

static RECORD_PREPARED: LazyLock<String> =
    LazyLock::new(|| format!("{RECORD}{}", [ROW; PREPARED_ROWS].join(", ")));

/// Records movements that are new to the ledger; answers whether all are. Where they are not, the
/// transaction is of no use any more.
pub(super) async fn record_all(
    tx: &mut Transaction,
    movements: &[&LedgerRow],
) -> Result<bool, StoreError> {
    let chunks = movements.chunks_exact(PREPARED_ROWS);
    let rest = chunks.remainder();
    for chunk in chunks {
        if !pool::recorded(record_prepared(tx, chunk).await, false)? {
            return Ok(false);
        }
    }
    if rest.is_empty() {
        return Ok(true);
    }
    pool::recorded(record_as_text(tx, rest).await, false)
}

async fn record_prepared(
    tx: &mut Transaction,
    movements: &[&LedgerRow],
) -> Result<(), sqlx::Error> {
    let mut query = sqlx::query(RECORD_PREPARED.as_str());
    for note in movements {
        query = query
            .bind(note.operation_id)
            .bind(note.sku.as_str())
            .bind(note.warehouse.as_str())
            .bind(&*note.kind)
            .bind(note.delta)
            .bind(note.available_after)
            .bind(note.read_version)
            .bind(note.strategy.as_deref())
            .bind(Durability::Redis.as_str())
            .bind(&*note.caller)
            .bind(note.idempotency_key.as_deref())
            .bind(note.request_hash.as_deref())
            .bind(note.reason.as_deref())
            .bind(note.reference.as_deref())
            .bind(note.entry.millis)
            .bind(note.entry.millis)
            .bind(note.entry.number);
    }
    query.execute(&mut **tx).await.map(drop)
}

async fn record_as_text(tx: &mut Transaction, movements: &[&LedgerRow]) -> Result<(), sqlx::Error> {
    let mut text = RECORD.to_owned();
    for (i, movement) in movements.iter().enumerate() {
        let separator = if i == 0 { "" } else { ", " };
        // Writing to a String cannot fail.
        let _ = write!(text, "{separator}{}", Row(movement));
    }
    let inserted = sqlx::raw_sql(statement(text)).execute(&mut **tx).await;
    inserted.map(drop)
}

/// A movement as a row.
struct Row<'a>(&'a LedgerRow);

impl Display for Row<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let note = self.0;
        write!(
            f,
            "({operation}, 0, {sku}, {warehouse}, {kind}, {delta}, {available}, {read_version}, \
            {strategy}, {durability}, {caller}, {key}, {hash}, {reason}, {reference}, \
            from_unixtime({millis} / 1000), {millis}, {number})",
            operation = Bytes(note.operation_id.as_bytes()),
            sku = Text(note.sku.as_str()),
            warehouse = Text(note.warehouse.as_str()),
            available = note.available_after,
            kind = Text(&note.kind),
            delta = note.delta,
            read_version = Nullable(note.read_version),
            strategy = Nullable(note.strategy.as_deref().map(Text)),
            durability = Text(Durability::Redis.as_str()),
            caller = Text(&note.caller),
            key = Nullable(note.idempotency_key.as_deref().map(Text)),
            hash = Nullable(note.request_hash.as_deref().map(Bytes)),
            reason = Nullable(note.reason.as_deref().map(Text)),
            reference = Nullable(note.reference.as_deref().map(Text)),
            millis = note.entry.millis,
            number = note.entry.number,
        )
    }
}
