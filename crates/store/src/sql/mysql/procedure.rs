//! The procedures that write: one deduction on a condition, sales of one level, and any other plan.
//!
//! Levels and movements are written and committed, or rolled back, in one round trip. Their texts are in
//! `migrations/mysql`. Replicas of several releases use one database, so a release whose movements have more
//! columns creates procedures of other names.

use std::sync::LazyLock;

use sqlx::{Executor, MySqlConnection};

use crate::sql::ledger_row::LedgerRow;
use crate::sql::statement::{Statement, trusted};
use crate::sql::statements::NEXT_PARAMETERS;
use crate::sql::write::{MovementRow, Write, json};

const NAME: &str = "stocklock_deduct_1";

/// Sales of one level. `NAME_OF_WRITE` can write them too, but takes longer: it reads more values of each.
const NAME_OF_SALES: &str = "stocklock_deduct_batch_1";

/// How many arguments `NAME_OF_SALES` takes: SKU, warehouse, strategy, version, expiry, units, movements, and
/// the list of these.
const ARGUMENTS_OF_SALES: usize = 8;

const NAME_OF_WRITE: &str = "stocklock_write_1";

/// How many arguments `NAME_OF_WRITE` takes: how it writes (three), strategy, expiry, levels, movements.
const ARGUMENTS_OF_WRITE: usize = 7;

/// How many arguments `NAME` takes: the values of the movement, the expiry, and those of the level.
static ARGUMENTS: LazyLock<usize> = LazyLock::new(|| LedgerRow::KNOWN + NEXT_PARAMETERS.len());

/// A call with the values of a conditional write. Returns the units that are available then, or no row.
pub(super) fn call() -> Statement {
    call_of(NAME, *ARGUMENTS)
}

/// A call that writes sales of one level. Returns the units that are available then, or no row.
pub(super) fn call_sales() -> Statement {
    call_of(NAME_OF_SALES, ARGUMENTS_OF_SALES)
}

/// A JSON array with an array for each sale of the only level, for [`call_sales`]. `None` if a movement is
/// something else, or its operation has several lines.
pub(super) fn sales(write: &Write<'_>) -> Option<String> {
    write.only_level()?;
    let is_sale = |movement: MovementRow<'_>| movement.others().is_none();
    write
        .movements()
        .all(is_sale)
        .then(|| json(write.movements().map(MovementRow::sale)))
}

/// A call that writes a plan. Returns a JSON array with the levels that were written, or no row.
pub(super) fn call_write() -> Statement {
    call_of(NAME_OF_WRITE, ARGUMENTS_OF_WRITE)
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

fn call_of(name: &str, arguments: usize) -> Statement {
    let parameters = (1..=arguments).map(|number| format!("${number}"));
    Statement::built(text(name, &parameters.collect::<Vec<_>>()))
}

/// Fails if the session cannot call the procedures. Names no level, so it changes nothing.
pub(super) async fn check(connection: &mut MySqlConnection) -> sqlx::Result<()> {
    for (name, arguments) in [
        (NAME, *ARGUMENTS),
        (NAME_OF_SALES, ARGUMENTS_OF_SALES),
        (NAME_OF_WRITE, ARGUMENTS_OF_WRITE),
    ] {
        // The first argument of `NAME_OF_WRITE`: it begins a transaction, and rolls it back.
        let mut nothing = vec!["NULL".to_owned(); arguments];
        if name == NAME_OF_WRITE {
            "1".clone_into(&mut nothing[0]);
        }
        let nothing = text(name, &nothing);
        let call = sqlx::raw_sql(trusted(nothing));
        connection.execute(call).await?;
    }
    Ok(())
}

fn text(name: &str, arguments: &[String]) -> String {
    format!("CALL {name}({})", arguments.join(", "))
}

#[cfg(test)]
mod tests {
    use super::call;
    use crate::sql::conditional_write::tests::sample;
    use crate::sql::mysql::parameters::tests::with_literals;

    /// `make bench` sends this with the database's own load tool.
    #[test]
    fn single_sql() {
        let write = sample();
        insta::assert_snapshot!(with_literals(call().text.as_str(), &write.values()));
    }
}
