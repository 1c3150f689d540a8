//! The deductions on MariaDB and `MySQL`: level and movement are written by one [`Script`]; or,
//! where the decision is ours, in a transaction of several round trips.

use futures_util::TryStreamExt;
use sqlx::Either;
use sqlx::mysql::MySqlQueryResult;
use stocklock_core::stock::Durability;

use super::super::driver_error::{Verdict, classify, in_autocommit, in_commit};
use super::super::pool::{Transaction, failed};
use super::super::sql::ledger_row::LedgerRow;
use super::super::sql::rows::LevelRow;
use super::super::{AttemptOutcome, StockStore, StoreError};
use super::literal::statement;
use super::script::Script;
use super::{MySqlStore, sql};
use stocklock_core::stock::{Deduction, Fence, StockLevel};

pub(super) async fn if_available(
    store: &MySqlStore,
    deduction: &Deduction,
) -> Result<AttemptOutcome, StoreError> {
    match write(store, deduction, &Script::if_available(deduction)).await? {
        Some(attempt) => Ok(attempt),
        None => refused(store, deduction).await,
    }
}

pub(super) async fn under_row_lock(
    store: &MySqlStore,
    deduction: &Deduction,
) -> Result<AttemptOutcome, StoreError> {
    let mut tx = store.begin().await?;
    let row = sqlx::query_as(sql::LEVEL_LOCKED)
        .bind(deduction.sku.as_str())
        .bind(deduction.warehouse.as_str())
        .fetch_optional(&mut *tx)
        .await
        .map_err(failed)?;
    let level = row.map(|row: LevelRow| row.try_into()).transpose()?;
    let remaining = match AttemptOutcome::decide(level, deduction.quantity.units()) {
        Ok(remaining) => remaining,
        Err(refused) => {
            tx.roll_back().await;
            return Ok(refused);
        }
    };
    sqlx::query(sql::DEDUCT)
        .bind(deduction.quantity.units())
        .bind(deduction.sku.as_str())
        .bind(deduction.warehouse.as_str())
        .execute(&mut *tx)
        .await
        .map_err(failed)?;
    let record = LedgerRow {
        available_after: remaining,
        ..LedgerRow::from_deduction(deduction, None)
    };
    if !store.insert(&mut tx, &record).await? {
        tx.roll_back().await;
        return Ok(AttemptOutcome::Duplicate);
    }
    tx.commit().await?;
    Ok(AttemptOutcome::Deducted {
        remaining,
        durability: Durability::Committed,
    })
}

pub(super) async fn if_version(
    store: &MySqlStore,
    deduction: &Deduction,
    read: &StockLevel,
) -> Result<AttemptOutcome, StoreError> {
    let written = write(store, deduction, &Script::if_version(deduction, read)).await?;
    Ok(written.unwrap_or(AttemptOutcome::Conflict))
}

pub(super) async fn if_fenced(
    store: &MySqlStore,
    deduction: &Deduction,
    read: &StockLevel,
    fence: &Fence,
) -> Result<AttemptOutcome, StoreError> {
    match write(store, deduction, &Script::if_fenced(deduction, read, fence)).await? {
        Some(attempt) => Ok(attempt),
        None => overtaken(store, deduction, fence).await,
    }
}

pub(super) async fn overwrite(
    store: &MySqlStore,
    deduction: &Deduction,
    read: &StockLevel,
) -> Result<AttemptOutcome, StoreError> {
    match write(store, deduction, &Script::overwrite(deduction, read)).await? {
        Some(attempt) => Ok(attempt),
        None => refused(store, deduction).await,
    }
}

/// Runs a script; answers nothing where its condition did not hold.
async fn write(
    store: &MySqlStore,
    deduction: &Deduction,
    script: &Script,
) -> Result<Option<AttemptOutcome>, StoreError> {
    let mut connection = store.connection().await?;
    let (answers, end) = answers(&mut connection, script).await;
    let Err(error) = end else {
        // With another number of answers nobody knows what is open on it: it is rolled back.
        let remaining = remaining(&answers)?;
        connection.done(Ok(()))?;
        return Ok(remaining);
    };
    if error.as_database_error().is_some() {
        // The server has gone no further, and is still in the transaction.
        Transaction::begun(connection).roll_back().await;
    }
    match (Step::after(answers.len()), classify(&error)) {
        (Step::Insert, Verdict::Duplicate) => Ok(Some(AttemptOutcome::Duplicate)),
        (Step::Insert, Verdict::RollBackThenRetry) if deduction.idempotency.is_some() => {
            Err(StoreError::KeyInFlight(Box::new(error)))
        }
        (Step::Commit, _) => Err(in_commit(error)),
        _ => Err(in_autocommit(error)),
    }
}

/// The answers to a script's statements, and whether there was one to each.
async fn answers(
    connection: &mut sqlx::MySqlConnection,
    script: &Script,
) -> (Vec<MySqlQueryResult>, sqlx::Result<()>) {
    let mut answers = Vec::with_capacity(5);
    let text = statement(script.to_string());
    let mut results = sqlx::raw_sql(text).fetch_many(connection);
    let end = loop {
        match results.try_next().await {
            Ok(Some(Either::Left(answer))) => answers.push(answer),
            Ok(Some(Either::Right(_))) => {} // None of them answers with rows.
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    drop(results);
    (answers, end)
}

/// What a script that came to its end says.
fn remaining(answers: &[MySqlQueryResult]) -> Result<Option<AttemptOutcome>, StoreError> {
    let [_, _, update, _, _] = answers else {
        let problem = format!("{} answers to five statements", answers.len());
        return Err(StoreError::OutcomeUnknown(problem.into()));
    };
    Ok(
        (update.rows_affected() > 0).then(|| AttemptOutcome::Deducted {
            remaining: update.last_insert_id().cast_signed(),
            durability: Durability::Committed,
        }),
    )
}

/// The statement of a script that failed.
enum Step {
    /// `SET`, `BEGIN` or `UPDATE`.
    Update,
    Insert,
    Commit,
}

impl Step {
    fn after(answers: usize) -> Self {
        match answers {
            0..=2 => Self::Update,
            3 => Self::Insert,
            _ => Self::Commit,
        }
    }
}

/// What to answer where the guarded statement changed nothing.
async fn refused(store: &MySqlStore, deduction: &Deduction) -> Result<AttemptOutcome, StoreError> {
    let level = store.level(&deduction.sku, &deduction.warehouse).await?;
    Ok(AttemptOutcome::refused(level, deduction.quantity.units()))
}

/// What to answer where the fenced statement changed nothing.
async fn overtaken(
    store: &MySqlStore,
    deduction: &Deduction,
    fence: &Fence,
) -> Result<AttemptOutcome, StoreError> {
    let mut connection = store.connection().await?;
    let last = sqlx::query_as(sql::FENCE)
        .bind(deduction.sku.as_str())
        .bind(deduction.warehouse.as_str())
        .fetch_optional(&mut *connection)
        .await;
    Ok(AttemptOutcome::write_refused(connection.done(last)?, fence))
}
