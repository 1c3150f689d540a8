//! Many movements in few statements.
//!
//! Most of what a movement costs the server is to parse the statement that inserts it. So blocks of
//! movements use a statement that is prepared once. Preparing it takes long, because the server
//! describes each parameter. The rest, of any number, is sent as text.

use std::fmt::{self, Display, Formatter};
use std::sync::LazyLock;

use sqlx::MySqlConnection;

use super::literal::{Bytes, Nullable, Text};
use crate::sql::dialect::trusted;
use crate::sql::ledger_row::LedgerRow;
use crate::sql::statements::insert_columns;

/// Rows of the prepared statement. With the longest values they fit into one megabyte, the smallest
/// `max_allowed_packet` in use.
const PREPARED_ROWS: usize = 64;

/// Followed by rows.
const INSERT: &str = concat!(
    "INSERT INTO movement (",
    insert_columns!(),
    ", created_at, journal_millis, journal_number) VALUES "
);

const ROW: &str = "(?, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, from_unixtime(? / 1000), ?, ?)";

static INSERT_PREPARED: LazyLock<String> =
    LazyLock::new(|| format!("{INSERT}{}", [ROW; PREPARED_ROWS].join(", ")));

/// Inserts movements. After an error the transaction can only be rolled back.
pub(super) async fn insert(
    connection: &mut MySqlConnection,
    rows: &[&LedgerRow],
) -> sqlx::Result<()> {
    let blocks = rows.chunks_exact(PREPARED_ROWS);
    let rest = blocks.remainder();
    for block in blocks {
        insert_prepared(connection, block).await?;
    }
    if rest.is_empty() {
        return Ok(());
    }
    let texts: Vec<String> = rest.iter().map(|row| AsText(row).to_string()).collect();
    let text = format!("{INSERT}{}", texts.join(", "));
    let inserted = sqlx::raw_sql(trusted(text)).execute(connection).await;
    inserted.map(drop)
}

async fn insert_prepared(
    connection: &mut MySqlConnection,
    rows: &[&LedgerRow],
) -> sqlx::Result<()> {
    let mut query = sqlx::query(INSERT_PREPARED.as_str());
    for row in rows {
        query = query
            .bind(row.operation_id)
            .bind(row.sku.as_str())
            .bind(row.warehouse.as_str())
            .bind(&*row.kind)
            .bind(row.delta)
            .bind(row.read_version)
            .bind(row.strategy.as_deref())
            .bind(&*row.durability)
            .bind(&*row.caller)
            .bind(row.idempotency_key.as_deref())
            .bind(row.request_hash.as_deref())
            .bind(row.reason.as_deref())
            .bind(row.reference.as_deref())
            .bind(row.available_after)
            .bind(row.entry.millis)
            .bind(row.entry.millis)
            .bind(row.entry.number);
    }
    query.execute(connection).await.map(drop)
}

/// A movement as a row of `VALUES`.
struct AsText<'a>(&'a LedgerRow);

impl Display for AsText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let row = self.0;
        write!(
            f,
            "({operation}, 0, {sku}, {warehouse}, {kind}, {delta}, {read_version}, {strategy}, \
            {durability}, {caller}, {key}, {hash}, {reason}, {reference}, {available}, \
            from_unixtime({millis} / 1000), {millis}, {number})",
            operation = Bytes(row.operation_id.as_bytes()),
            sku = Text(row.sku.as_str()),
            warehouse = Text(row.warehouse.as_str()),
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
            available = row.available_after,
            millis = row.entry.millis,
            number = row.entry.number,
        )
    }
}
