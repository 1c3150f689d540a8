//! The procedures that write: one deduction on a condition, sales of one level, and any other plan.
//!
//! Levels and movements are written and committed, or rolled back, in one round trip.

use sqlx::{Executor, MySqlConnection};

use super::parameters;
use crate::sql::statement::trusted;
use crate::sql::statements::Texts;
use crate::sql::write::{MovementRow, Write, json};

/// A JSON array with an array for each sale of the only level, for `write_sales`. `None` if the plan has
/// several levels, or a movement that is not a plain sale of one line.
pub(super) fn sales(write: &Write<'_>) -> Option<String> {
    write.only_level()?;
    write
        .movements()
        .all(MovementRow::is_plain)
        .then(|| json(write.movements().map(MovementRow::sale)))
}

/// A JSON array with an array for each movement: [`MovementRow::usual`] with the number of movements of the
/// level that follow, and the units that those take; then [`MovementRow::rest`] as a text.
pub(super) fn movements(write: &Write<'_>) -> String {
    let is_only = write.only_level().is_some();
    json(write.movements().map(|movement| {
        let level = (!is_only).then(|| write.place(movement.level));
        let rest = movement.rest(level);
        let rest =
            rest.map(|rest| serde_json::to_string(&rest).expect("texts and numbers are JSON"));
        (
            movement.usual(movement.movements_after, movement.units_after),
            rest,
        )
    }))
}

/// Fails if the session cannot call the procedures. Names no level, so it changes nothing.
pub(super) async fn check(connection: &mut MySqlConnection, texts: &Texts) -> sqlx::Result<()> {
    let nothing = |call: &str| parameters::replace(call, |text, _| text.push_str("NULL"));
    let calls = [&texts.if_available, &texts.write_sales, &texts.write];
    let [one, sales, write] = calls.map(|call| nothing(call.as_str()));
    // The first argument of `write` is 1: it begins a transaction, finds nothing to write, and rolls it
    // back.
    for call in [one, sales, write.replacen("NULL", "1", 1)] {
        connection.execute(sqlx::raw_sql(trusted(call))).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::sql::MySqlServer;
    use crate::sql::conditional_write::tests::{sale, sample};
    use crate::sql::mysql::parameters::tests::with_literals;
    use crate::sql::pool::Server as _;

    /// `make bench` sends this with the database's own load tool.
    #[test]
    fn single_sql() {
        let (sale, call) = (sale(), MySqlServer::texts().if_available.as_str());
        insta::assert_snapshot!(with_literals(call, &sample(&sale).values()));
    }
}
