//! The procedures of the conditional writes: of one deduction, of a batch and of several levels.
//!
//! Level and movements are written and committed, or rolled back, in one round trip, and no lock is held
//! across one. Their texts are in `migrations/mysql/0001_initial.sql`. Replicas of several releases use one
//! database, so a release whose movements have more columns creates procedures of other names.

use std::sync::LazyLock;

use sqlx::{Executor, MySqlConnection};

use crate::sql::dialect::{Statement, trusted};
use crate::sql::ledger_row::LedgerRow;
use crate::sql::statements::NEXT_PARAMETERS;

const NAME: &str = "stocklock_deduct_1";

const NAME_OF_BATCH: &str = "stocklock_deduct_batch_1";

/// How many arguments `NAME_OF_BATCH` takes: the shared values of the batch, and its sales.
const ARGUMENTS_OF_BATCH: usize = 8;

const NAME_OF_MERGED: &str = "stocklock_deduct_merged_1";

/// How many arguments `NAME_OF_MERGED` takes: strategy, expiry, levels, sales.
const ARGUMENTS_OF_MERGED: usize = 4;

/// How many arguments `NAME` takes: the values of the movement, the expiry, and those of the level.
static ARGUMENTS: LazyLock<usize> = LazyLock::new(|| LedgerRow::KNOWN + NEXT_PARAMETERS.len());

/// A call with the values of a conditional write. Returns the units that are available then, or no row.
pub(super) fn call() -> Statement {
    call_of(NAME, *ARGUMENTS)
}

/// A call with the values of a batch. Returns the units that are available then, or no row.
pub(super) fn call_batch() -> Statement {
    call_of(NAME_OF_BATCH, ARGUMENTS_OF_BATCH)
}

/// A call with the values of several levels. Returns a JSON array with those that were written, or no row.
pub(super) fn call_merged() -> Statement {
    call_of(NAME_OF_MERGED, ARGUMENTS_OF_MERGED)
}

fn call_of(name: &str, arguments: usize) -> Statement {
    let parameters = (1..=arguments).map(|number| format!("${number}"));
    Statement::built(text(name, &parameters.collect::<Vec<_>>()))
}

/// Fails if the session cannot call the procedures. Names no level, so it changes nothing.
pub(super) async fn check(connection: &mut MySqlConnection) -> sqlx::Result<()> {
    for (name, arguments) in [
        (NAME, *ARGUMENTS),
        (NAME_OF_BATCH, ARGUMENTS_OF_BATCH),
        (NAME_OF_MERGED, ARGUMENTS_OF_MERGED),
    ] {
        let nothing = text(name, &vec!["NULL".to_owned(); arguments]);
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
