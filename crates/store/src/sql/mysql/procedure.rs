//! The procedure of the conditional writes: level and movement are written and committed, or rolled
//! back, in one round trip, and no lock is held across one.
//!
//! Its text is in `migrations/mysql/0012_deduct.sql`. Replicas of several releases use one database, so a
//! release whose movements have more columns creates a procedure of another name.

use std::sync::LazyLock;

use sqlx::{Executor, MySqlConnection};

use crate::sql::dialect::{Statement, trusted};
use crate::sql::ledger_row::LedgerRow;
use crate::sql::statements::NEXT_PARAMETERS;

const NAME: &str = "stocklock_deduct_1";

/// How many arguments it takes: the values of the movement, the expiry, and those of the level.
static ARGUMENTS: LazyLock<usize> = LazyLock::new(|| LedgerRow::KNOWN + NEXT_PARAMETERS.len());

/// A call with the values of a conditional write. Returns the units that are available then, or no row.
pub(super) fn call() -> Statement {
    let parameters = (1..=*ARGUMENTS).map(|number| format!("${number}"));
    Statement::built(text(&parameters.collect::<Vec<_>>()))
}

/// Fails if the session cannot call the procedure. Names no level, so it changes nothing.
pub(super) async fn check(connection: &mut MySqlConnection) -> sqlx::Result<()> {
    let nothing = text(&vec!["NULL".to_owned(); *ARGUMENTS]);
    let called = connection.execute(sqlx::raw_sql(trusted(nothing))).await;
    called.map(drop)
}

fn text(arguments: &[String]) -> String {
    format!("CALL {NAME}({})", arguments.join(", "))
}

#[cfg(test)]
mod tests {
    use super::call;
    use crate::sql::conditional_write::tests::sample;
    use crate::sql::mysql::parameters::with_literals;

    /// `make bench` sends this with the database's own load tool.
    #[test]
    fn single_sql() {
        let write = sample();
        insta::assert_snapshot!(with_literals(call().text.as_str(), &write.values()));
    }
}
