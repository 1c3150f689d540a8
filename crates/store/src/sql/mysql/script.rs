//! A whole transaction in one message: level and movement are written and committed in one round
//! trip, and the row's lock is held across none.
//!
//! A prepared statement is one statement, so the values of a message of several are literals in its
//! text.

use super::parameters::with_literals;
use crate::sql::conditional_write::ConditionalWrite;
use crate::sql::statements::{INSERT_COLUMNS, INSERT_PARAMETERS};

/// How many answers come before that to the `INSERT`: `SET`, `BEGIN`, `UPDATE`.
pub(super) const UNTIL_INSERT: usize = 3;

/// How many answers come before that to the `COMMIT`.
pub(super) const UNTIL_COMMIT: usize = 4;

/// The text of a transaction of five statements. The answer to the third says whether the condition
/// held, and has what remains as the last inserted id.
///
/// `last_insert_id(…)` puts its argument, the units that remain, into the answer to the `UPDATE`,
/// because MariaDB has no `UPDATE … RETURNING`. Its assignment comes first: the server's `sql_mode`
/// decides whether columns further right are read before or after their assignment.
///
/// The `INSERT` reads from a variable whether the `UPDATE` changed a row. `row_count()` would say so
/// too, but it is part of the answer: if the client is gone, MariaDB goes on with the message, finds
/// no count, would record nothing, and commit.
pub(super) fn script(write: &ConditionalWrite<'_>, now: &str) -> String {
    let ConditionalWrite { on_hand, also, .. } = write;
    let text = format!(
        "SET @available = NULL; BEGIN; UPDATE stock \
        SET version = (@version := version + 1) \
        + 0 * last_insert_id(@available := {on_hand} - held + backorder_limit), \
        on_hand = {on_hand}{also} \
        WHERE {level} AND {in_time}; \
        INSERT INTO movement ({columns}) \
        SELECT {known}, @available, @version \
        FROM dual WHERE @available IS NOT NULL; COMMIT",
        level = write.level(),
        in_time = ConditionalWrite::in_time(now),
        columns = *INSERT_COLUMNS,
        known = *INSERT_PARAMETERS,
    );
    with_literals(&text, &write.values())
}

#[cfg(test)]
mod tests {
    use super::script;
    use crate::sql::conditional_write::tests::sample;
    use crate::sql::dialect::Dialect;
    use crate::sql::mysql::MySqlServer;

    /// `make bench` sends this with the database's own load tool.
    #[test]
    fn single_sql() {
        insta::assert_snapshot!(script(&sample(), MySqlServer::WORDS.now));
    }
}
