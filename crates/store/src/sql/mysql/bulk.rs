//! Many movements in few statements.
//!
//! Most of what a movement costs the server is to parse the statement that inserts it. So blocks of
//! movements use a statement that is prepared once. Preparing it takes long, because the server
//! describes each parameter. The rest, of any number, is sent as text.

use std::sync::LazyLock;

use sqlx::{MySql, MySqlConnection};

use super::parameters::{positional, with_literals};
use crate::sql::dialect::{Statement, Value, query, trusted};
use crate::sql::ledger_row::LedgerRow;
use crate::sql::statements::{INSERT_COLUMNS, INSERT_PARAMETERS, NEXT_PARAMETERS};

/// Rows of the prepared statement. With the longest values they fit into one megabyte, the smallest
/// `max_allowed_packet` in use.
const PREPARED_ROWS: usize = 64;

/// The parameters of a row.
static ROW: LazyLock<String> = LazyLock::new(|| {
    let [available, level_version, millis, number, ..] = &*NEXT_PARAMETERS;
    format!(
        "({}, {available}, {level_version}, from_unixtime({millis} / 1000), {millis}, {number})",
        *INSERT_PARAMETERS
    )
});

/// The prepared statement. It is put together once, because that takes as long as to send it.
static PREPARED: LazyLock<String> = LazyLock::new(|| {
    let (row, _) = positional(&ROW, &[Value::Int(None); PARAMETERS]);
    insert_text(&vec![row; PREPARED_ROWS])
});

/// How many values [`LedgerRow::values`] has.
const PARAMETERS: usize = LedgerRow::KNOWN + 4;

/// Inserts movements. After an error the transaction can only be rolled back.
pub(super) async fn insert(
    connection: &mut MySqlConnection,
    rows: &[LedgerRow],
) -> sqlx::Result<()> {
    let blocks = rows.chunks_exact(PREPARED_ROWS);
    let rest = blocks.remainder();
    for block in blocks {
        let mut values = Vec::with_capacity(PREPARED_ROWS * (PARAMETERS + 1));
        for movement in block {
            let of_row = movement.values();
            let (before, entry) = of_row.split_at(PARAMETERS - 2);
            // The time of the entry is also that of the row.
            for part in [before, &entry[..1], entry] {
                values.extend_from_slice(part);
            }
        }
        let statement = Statement::from(PREPARED.as_str());
        let insert = query::<MySql>(statement, &values)?;
        insert.execute(&mut *connection).await?;
    }
    if !rest.is_empty() {
        let rows = rest
            .iter()
            .map(|movement| with_literals(&ROW, &movement.values()));
        let text = insert_text(&rows.collect::<Vec<_>>());
        sqlx::raw_sql(trusted(text)).execute(connection).await?;
    }
    Ok(())
}

fn insert_text(rows: &[String]) -> String {
    format!(
        "INSERT INTO movement ({}, created_at, journal_millis, journal_number) \
         VALUES {}",
        *INSERT_COLUMNS,
        rows.join(", ")
    )
}
