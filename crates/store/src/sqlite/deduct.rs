//! The deductions on `SQLite`: each is one transaction that writes level and movement.

use sqlx::{Sqlite, Transaction};
use stocklock_core::stock::Durability;

use super::super::driver_error::{Verdict, classify};
use super::super::pool::failed;
use super::super::sql::ledger_row::LedgerRow;
use super::super::sql::rows::LevelRow;
use super::super::{AttemptOutcome, StockStore, StoreError};
use super::{SqliteStore, sql, transaction};
use stocklock_core::stock::{Deduction, Fence, StockLevel};

pub(super) async fn if_available(
    store: &SqliteStore,
    deduction: &Deduction,
) -> Result<AttemptOutcome, StoreError> {
    let mut tx = store.begin().await?;
    let remaining = sqlx::query_scalar(sql::DEDUCT_IF_AVAILABLE)
        .bind(deduction.sku.as_str())
        .bind(deduction.warehouse.as_str())
        .bind(deduction.quantity.units())
        .fetch_optional(&mut *tx)
        .await
        .map_err(failed)?;
    let Some(remaining) = remaining else {
        transaction::roll_back(tx).await;
        return refused(store, deduction).await;
    };
    record(store, tx, deduction, remaining, None).await
}

pub(super) async fn under_row_lock(
    store: &SqliteStore,
    deduction: &Deduction,
) -> Result<AttemptOutcome, StoreError> {
    // BEGIN IMMEDIATE has locked every row already.
    let mut tx = store.begin().await?;
    let row = sqlx::query_as(sql::LEVEL)
        .bind(deduction.sku.as_str())
        .bind(deduction.warehouse.as_str())
        .fetch_optional(&mut *tx)
        .await
        .map_err(failed)?;
    let level = row.map(|row: LevelRow| row.try_into()).transpose()?;
    let remaining = match AttemptOutcome::decide(level, deduction.quantity.units()) {
        Ok(remaining) => remaining,
        Err(refused) => {
            transaction::roll_back(tx).await;
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
    record(store, tx, deduction, remaining, None).await
}

pub(super) async fn if_version(
    store: &SqliteStore,
    deduction: &Deduction,
    read: &StockLevel,
) -> Result<AttemptOutcome, StoreError> {
    let mut tx = store.begin().await?;
    let written = sqlx::query(sql::DEDUCT_IF_VERSION)
        .bind(deduction.sku.as_str())
        .bind(deduction.warehouse.as_str())
        .bind(read.on_hand - deduction.quantity.units())
        .bind(read.version)
        .execute(&mut *tx)
        .await
        .map_err(failed)?;
    if written.rows_affected() == 0 {
        transaction::roll_back(tx).await;
        return Ok(AttemptOutcome::Conflict);
    }
    let remaining = read.available() - deduction.quantity.units();
    record(store, tx, deduction, remaining, Some(read)).await
}

pub(super) async fn if_fenced(
    store: &SqliteStore,
    deduction: &Deduction,
    read: &StockLevel,
    fence: &Fence,
) -> Result<AttemptOutcome, StoreError> {
    let mut tx = store.begin().await?;
    let written = sqlx::query(sql::DEDUCT_IF_FENCED)
        .bind(deduction.sku.as_str())
        .bind(deduction.warehouse.as_str())
        .bind(read.on_hand - deduction.quantity.units())
        .bind(read.version)
        .bind(fence.token)
        .bind(&*fence.source)
        .execute(&mut *tx)
        .await
        .map_err(failed)?;
    if written.rows_affected() == 0 {
        return overtaken(tx, deduction, fence).await;
    }
    let remaining = read.available() - deduction.quantity.units();
    record(store, tx, deduction, remaining, Some(read)).await
}

pub(super) async fn overwrite(
    store: &SqliteStore,
    deduction: &Deduction,
    read: &StockLevel,
) -> Result<AttemptOutcome, StoreError> {
    let mut tx = store.begin().await?;
    let written = sqlx::query(sql::OVERWRITE)
        .bind(deduction.sku.as_str())
        .bind(deduction.warehouse.as_str())
        .bind(read.on_hand - deduction.quantity.units())
        .execute(&mut *tx)
        .await;
    match written {
        Ok(written) if written.rows_affected() > 0 => {}
        Err(error) if classify(&error) != Verdict::CheckViolated => return Err(failed(error)),
        // It is none of SQL's, or somebody lowered the limit since it was read.
        _ => {
            transaction::roll_back(tx).await;
            return refused(store, deduction).await;
        }
    }
    let remaining = read.available() - deduction.quantity.units();
    record(store, tx, deduction, remaining, Some(read)).await
}

/// Records a deduction in the transaction that wrote the level, and commits both.
async fn record(
    store: &SqliteStore,
    mut tx: Transaction<'static, Sqlite>,
    deduction: &Deduction,
    remaining: i64,
    read: Option<&StockLevel>,
) -> Result<AttemptOutcome, StoreError> {
    let record = LedgerRow {
        available_after: remaining,
        ..LedgerRow::from_deduction(deduction, read)
    };
    if !store.insert(&mut tx, &record).await? {
        transaction::roll_back(tx).await;
        return Ok(AttemptOutcome::Duplicate);
    }
    transaction::commit(tx).await?;
    Ok(AttemptOutcome::Deducted {
        remaining,
        durability: Durability::Committed,
    })
}

/// What to answer where the guarded statement changed nothing.
async fn refused(store: &SqliteStore, deduction: &Deduction) -> Result<AttemptOutcome, StoreError> {
    let level = store.level(&deduction.sku, &deduction.warehouse).await?;
    Ok(AttemptOutcome::refused(level, deduction.quantity.units()))
}

/// What to answer where the fenced statement changed nothing.
async fn overtaken(
    mut tx: Transaction<'static, Sqlite>,
    deduction: &Deduction,
    fence: &Fence,
) -> Result<AttemptOutcome, StoreError> {
    let last = sqlx::query_as(sql::FENCE)
        .bind(deduction.sku.as_str())
        .bind(deduction.warehouse.as_str())
        .fetch_optional(&mut *tx)
        .await
        .map_err(failed)?;
    transaction::roll_back(tx).await;
    Ok(AttemptOutcome::write_refused(last, fence))
}
