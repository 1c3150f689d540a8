//! The deductions on `PostgreSQL`: level and movement are written by one statement, which is a
//! transaction by itself; or, where the decision is ours, in a transaction of several.

use sqlx::postgres::PgArguments;
use sqlx::query::QueryScalar;
use sqlx::{Postgres, query_scalar};
use stocklock_core::stock::Durability;

use super::super::driver_error::{Verdict, classify, in_autocommit, waited_for_the_ledger};
use super::super::pool::failed;
use super::super::record::bind_record;
use super::super::sql::ledger_row::LedgerRow;
use super::super::sql::rows::LevelRow;
use super::super::{AttemptOutcome, StockStore, StoreError};
use super::{PostgresStore, sql};
use stocklock_core::stock::{Deduction, Fence, StockLevel};

pub(super) async fn if_available(
    store: &PostgresStore,
    deduction: &Deduction,
) -> Result<AttemptOutcome, StoreError> {
    let record = LedgerRow::from_deduction(deduction, None);
    let statement = bind_record!(query_scalar(sql::DEDUCT_IF_AVAILABLE), record)
        .bind(deduction.quantity.units());
    match write(store, deduction, statement).await? {
        Some(attempt) => Ok(attempt),
        None => refused(store, deduction).await,
    }
}

pub(super) async fn under_row_lock(
    store: &PostgresStore,
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
        .bind(deduction.sku.as_str())
        .bind(deduction.warehouse.as_str())
        .bind(deduction.quantity.units())
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
    store: &PostgresStore,
    deduction: &Deduction,
    read: &StockLevel,
) -> Result<AttemptOutcome, StoreError> {
    let record = LedgerRow::from_deduction(deduction, Some(read));
    let statement = bind_record!(query_scalar(sql::DEDUCT_IF_VERSION), record)
        .bind(read.on_hand - deduction.quantity.units())
        .bind(read.version);
    let written = write(store, deduction, statement).await?;
    Ok(written.unwrap_or(AttemptOutcome::Conflict))
}

pub(super) async fn if_fenced(
    store: &PostgresStore,
    deduction: &Deduction,
    read: &StockLevel,
    fence: &Fence,
) -> Result<AttemptOutcome, StoreError> {
    let record = LedgerRow::from_deduction(deduction, Some(read));
    let statement = bind_record!(query_scalar(sql::DEDUCT_IF_FENCED), record)
        .bind(read.on_hand - deduction.quantity.units())
        .bind(read.version)
        .bind(fence.token)
        .bind(&*fence.source);
    match write(store, deduction, statement).await? {
        Some(attempt) => Ok(attempt),
        None => overtaken(store, deduction, fence).await,
    }
}

pub(super) async fn overwrite(
    store: &PostgresStore,
    deduction: &Deduction,
    read: &StockLevel,
) -> Result<AttemptOutcome, StoreError> {
    let record = LedgerRow::from_deduction(deduction, Some(read));
    let statement = bind_record!(query_scalar(sql::OVERWRITE), record)
        .bind(read.on_hand - deduction.quantity.units());
    match write(store, deduction, statement).await? {
        Some(attempt) => Ok(attempt),
        None => refused(store, deduction).await,
    }
}

/// Runs a statement that writes level and movement, and commits as it ends; answers nothing where
/// its condition did not hold.
async fn write(
    store: &PostgresStore,
    deduction: &Deduction,
    statement: QueryScalar<'_, Postgres, i64, PgArguments>,
) -> Result<Option<AttemptOutcome>, StoreError> {
    let mut connection = store.connection().await?;
    // sqlx reads the answer to its end, where the server says that it has committed.
    match statement.fetch_optional(&mut *connection).await {
        Ok(remaining) => {
            connection.done(Ok(()))?;
            Ok(remaining.map(|remaining| AttemptOutcome::Deducted {
                remaining,
                durability: Durability::Committed,
            }))
        }
        Err(error) if classify(&error) == Verdict::Duplicate => Ok(Some(AttemptOutcome::Duplicate)),
        Err(error) if deduction.idempotency.is_some() && waited_for_the_ledger(&error) => {
            Err(StoreError::KeyInFlight(Box::new(error)))
        }
        Err(error) => Err(in_autocommit(error)),
    }
}

/// What to answer where the guarded statement changed nothing.
async fn refused(
    store: &PostgresStore,
    deduction: &Deduction,
) -> Result<AttemptOutcome, StoreError> {
    let level = store.level(&deduction.sku, &deduction.warehouse).await?;
    Ok(AttemptOutcome::refused(level, deduction.quantity.units()))
}

/// What to answer where the fenced statement changed nothing.
async fn overtaken(
    store: &PostgresStore,
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
