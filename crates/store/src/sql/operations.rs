//! Looking up what operations did, and whether they can still be made.

use std::time::{SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use uuid::Uuid;

use super::dialect::{Dialect, Statement, Value, values};
use super::errors::before_commit;
use super::ledger_row::LedgerRow;
use super::reads::movements;
use super::rows::rows;
use super::statements::{OF_CALLER_REFERENCE, Words};
use super::{SqlStore, WRITE, repeated_if_stale};
use crate::{Result, StoreError};
use stocklock_core::stock::{Movement, OperationFilter, OperationStatus};

/// How far the clocks of the replicas and of the servers may be apart, in milliseconds.
const CLOCK_MARGIN: i64 = 10_000;

/// Looks up operations in the ledger.
#[async_trait]
pub trait OperationQueries: Send + Sync {
    /// The movements that the ledger has of the operations, and whether more may still be made.
    /// `deadline`: when their callers were answered at the latest, in milliseconds since 1970; `None` if
    /// that is not known.
    async fn operations(
        &self,
        of: &OperationFilter,
        deadline: Option<i64>,
    ) -> Result<(OperationStatus, Vec<Movement>)>;
}

#[async_trait]
impl<D: Dialect> OperationQueries for SqlStore<D> {
    async fn operations(
        &self,
        of: &OperationFilter,
        deadline: Option<i64>,
    ) -> Result<(OperationStatus, Vec<Movement>)> {
        let (statement, values) = select::<D>(of, "");
        let found = self
            .select_movements(&self.ledger_readers, statement, &values)
            .await?;
        if !found.is_empty() {
            return Ok((OperationStatus::Committed, found));
        }
        // Without a question to the server, if it would only confirm it.
        let found = match deadline.filter(|deadline| *deadline < now()) {
            Some(deadline) => repeated_if_stale(|| self.final_operations(of, deadline)).await?,
            None => None,
        };
        Ok(match found {
            None => (OperationStatus::Pending, Vec::new()),
            Some(found) if found.is_empty() => (OperationStatus::NotRecorded, found),
            Some(found) => (OperationStatus::Committed, found),
        })
    }
}

impl<D: Dialect> SqlStore<D> {
    /// The movements of the operations, if no transaction is open of a request whose caller was answered
    /// by `deadline`. Otherwise `None`.
    async fn final_operations(
        &self,
        of: &OperationFilter,
        deadline: i64,
    ) -> Result<Option<Vec<Movement>>> {
        let statement_limit = self.health.statement_limit().as_millis();
        let statement_limit = i64::try_from(statement_limit).unwrap_or(i64::MAX);
        // No server ends SQLite's transactions. This one begins when no other writes.
        let pool = if D::EMBEDDED {
            &self.writers
        } else {
            &self.ledger_readers
        };
        let found = self.read(WRITE, async {
            let mut tx = pool.begin(D::WORDS.begin).await?;
            let times = tx.fetch(times(&D::WORDS), &[]).await;
            let times: Vec<TimesRow> = times.map_err(before_commit)?;
            let found = if times
                .iter()
                .all(|times| times.are_past(deadline, statement_limit))
            {
                let (statement, values) = select::<D>(of, D::WORDS.wait_for_movements);
                let found = tx.fetch(statement, &values).await;
                let found: Vec<LedgerRow> = found.map_err(before_commit)?;
                let found: Result<Vec<_>> = found.into_iter().map(LedgerRow::movement).collect();
                Some(found?)
            } else {
                None
            };
            tx.roll_back().await;
            Ok(found)
        });
        match found.await {
            Err(StoreError::LockWait(_)) => Ok(None),
            found => found,
        }
    }
}

/// The clock of this process, in milliseconds since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "it only saves questions to the server, whose clock decides"
)]
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |time| {
        i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
    })
}

/// Selects the movements of the operations. `end` ends the statement.
pub(super) fn select<'a, D: Dialect>(
    of: &'a OperationFilter,
    end: &str,
) -> (Statement, Vec<Value<'a>>) {
    let (table, rest, values) = match of {
        OperationFilter::Id(operation) => (
            "movement".to_owned(),
            "operation_id = $1 ORDER BY line".to_owned(),
            values![operation.0].to_vec(),
        ),
        OperationFilter::Key(caller, key) => (
            "movement".to_owned(),
            // Only the first movement has the key.
            format!(
                "operation_id = (SELECT operation_id FROM movement
                    WHERE caller = $1 AND idempotency_key = $2{end}) ORDER BY line"
            ),
            values![caller.as_str(), key.as_str()].to_vec(),
        ),
        OperationFilter::Reference {
            caller,
            reference,
            before,
            limit,
        } => (
            D::WORDS.movements_by(OF_CALLER_REFERENCE),
            // Without `OR`, for which a database would read the pages before this one.
            // The lines too in the order of the index.
            "caller = $1 AND reference = $2 AND operation_id < $3
                ORDER BY operation_id DESC, line DESC LIMIT $4"
                .to_owned(),
            values![
                caller.as_str(),
                reference.as_str(),
                before.map_or(Uuid::max(), |operation| operation.0),
                i64::from(*limit),
            ]
            .to_vec(),
        ),
    };
    let statement = Statement {
        // PostgreSQL would keep a plan that reads the whole ledger, made when that was short.
        persistent: D::WORDS.plans_for_any_size,
        ..movements::<D>(&format!("{table} WHERE {rest}{end}"))
    };
    (statement, values)
}

rows! {
    /// The server's clock, how long it lets a transaction idle, and [`Words::oldest_write`].
    #[derive(Debug)]
    struct TimesRow {
        now: i64,
        idle_limit: i64,
        oldest_write: Option<i64>,
    }
}

impl TimesRow {
    /// Whether no request can have an effect now whose caller was answered by `deadline`. All times are
    /// in milliseconds.
    ///
    /// Its last message arrives by its deadline, or changes nothing. Its statement may run for the
    /// statement limit. COMMIT may then arrive until the server ends the transaction, and may take any
    /// time, for example until a standby answers.
    fn are_past(&self, deadline: i64, statement_limit: i64) -> bool {
        let last_statement = deadline
            .saturating_add(CLOCK_MARGIN)
            .saturating_add(statement_limit);
        self.now > last_statement.saturating_add(self.idle_limit)
            && self.oldest_write.is_none_or(|began| began > last_statement)
    }
}

fn times(words: &Words) -> Statement {
    let Words {
        now,
        idle_limit,
        oldest_write,
        integer,
        ..
    } = words;
    Statement::built(format!(
        "SELECT cast({now} AS {integer}) AS now, cast({idle_limit} AS {integer}) AS idle_limit,
            cast({oldest_write} AS {integer}) AS oldest_write"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::MySqlServer;

    #[test]
    fn request_has_no_effect_after_the_sum_of_its_limits() {
        let (deadline, statement_limit) = (5_000, 2_500);
        let last_statement = 5_000 + 10_000 + 2_500;
        let eight_hours = 28_800_000;
        for idle_limit in [0, 10_000, eight_hours] {
            let at = |now, oldest_write| {
                let times = TimesRow {
                    now,
                    idle_limit,
                    oldest_write,
                };
                times.are_past(deadline, statement_limit)
            };
            let end = last_statement + idle_limit;
            assert!(!at(end, None) && at(end + 1, None), "{idle_limit}");
            assert!(!at(end + 1, Some(last_statement)), "{idle_limit}");
            assert!(at(end + 1, Some(last_statement + 1)), "{idle_limit}");
        }
        let forever = TimesRow {
            now: i64::MAX,
            idle_limit: 0,
            oldest_write: None,
        };
        assert!(!forever.are_past(i64::MAX, statement_limit));
    }

    /// MySQL ends no idle transaction before it ends the idle connection.
    #[test]
    fn idle_limit_of_mysql_is_that_of_a_connection() {
        let Statement { text, .. } = times(&MySqlServer::WORDS);
        let text = text.as_str();
        assert!(text.contains("/*!50708 @@wait_timeout */ * 1000"), "{text}");
    }
}
