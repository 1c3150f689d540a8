//! Many movements in few statements.
//!
//! Most of what a movement costs the server is to parse the statement that inserts it. So blocks of
//! movements use a statement that is prepared once. Preparing it takes long, because the server
//! describes each parameter. The rest, of any number, is sent as text.

use sqlx::{MySql, MySqlConnection};

use super::parameters::{positional, with_literals};
use crate::sql::dialect::{Statement, query, trusted};
use crate::sql::ledger_row::LedgerRow;
use crate::sql::statements::{INSERT_COLUMNS, INSERT_PARAMETERS, NEXT_PARAMETERS};

/// Rows of the prepared statement. With the longest values they fit into one megabyte, the smallest
/// `max_allowed_packet` in use.
const PREPARED_ROWS: usize = 64;

/// Inserts movements. After an error the transaction can only be rolled back.
pub(super) async fn insert(
    connection: &mut MySqlConnection,
    rows: &[LedgerRow],
) -> sqlx::Result<()> {
    let [available, level_version, millis, number, ..] = &*NEXT_PARAMETERS;
    let row = format!(
        "({}, {available}, {level_version}, from_unixtime({millis} / 1000), {millis}, {number})",
        *INSERT_PARAMETERS
    );
    let blocks = rows.chunks_exact(PREPARED_ROWS);
    let rest = blocks.remainder();
    for block in blocks {
        let rows = block
            .iter()
            .map(|movement| positional(&row, &movement.values()));
        let (texts, values): (Vec<_>, Vec<_>) = rows.unzip();
        let statement = Statement::built(insert_text(&texts));
        let insert = query::<MySql>(statement, &values.concat())?;
        insert.execute(&mut *connection).await?;
    }
    if !rest.is_empty() {
        let rows = rest
            .iter()
            .map(|movement| with_literals(&row, &movement.values()));
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
