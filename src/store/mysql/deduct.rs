//! The deductions on MariaDB and `MySQL`: each is one transaction that writes level and movement.

use sqlx::{MySql, Transaction};

use super::super::driver_error::{Verdict, classify};
use super::super::pool::{self, failed};
use super::super::record::Record;
use super::super::{Attempt, StoreError, rows};
use super::{MySqlStore, sql};
use crate::stock::{Deduction, Fence, StockLevel};

pub(super) async fn if_available(
    store: &MySqlStore,
    deduction: &Deduction,
) -> Result<Attempt, StoreError> {
    let mut tx = store.begin().await?;
    let units = deduction.quantity.units();
    let written = sqlx::query(sql::DEDUCT_IF_AVAILABLE)
        .bind(units)
        .bind(units)
        .bind(deduction.sku.as_str())
        .bind(deduction.warehouse.as_str())
        .bind(units)
        .execute(&mut *tx)
        .await
        .map_err(failed)?;
    if written.rows_affected() == 0 {
        return refused(tx, deduction).await;
    }
    let remaining = written.last_insert_id().cast_signed();
    record(store, tx, deduction, remaining, None).await
}

pub(super) async fn under_row_lock(
    store: &MySqlStore,
    deduction: &Deduction,
) -> Result<Attempt, StoreError> {
    let mut tx = store.begin().await?;
    let row = sqlx::query_as(sql::LEVEL_LOCKED)
        .bind(deduction.sku.as_str())
        .bind(deduction.warehouse.as_str())
        .fetch_optional(&mut *tx)
        .await
        .map_err(failed)?;
    let level = row.map(rows::level).transpose()?;
    let remaining = match Attempt::decide(level, deduction.quantity.units()) {
        Ok(remaining) => remaining,
        Err(refused) => {
            pool::roll_back(tx).await;
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
    record(store, tx, deduction, remaining, None).await
}

pub(super) async fn if_version(
    store: &MySqlStore,
    deduction: &Deduction,
    read: &StockLevel,
) -> Result<Attempt, StoreError> {
    let mut tx = store.begin().await?;
    let written = sqlx::query(sql::DEDUCT_IF_VERSION)
        .bind(read.on_hand - deduction.quantity.units())
        .bind(deduction.sku.as_str())
        .bind(deduction.warehouse.as_str())
        .bind(read.version)
        .execute(&mut *tx)
        .await
        .map_err(failed)?;
    if written.rows_affected() == 0 {
        pool::roll_back(tx).await;
        return Ok(Attempt::Stale);
    }
    let remaining = read.available() - deduction.quantity.units();
    record(store, tx, deduction, remaining, Some(read)).await
}

pub(super) async fn if_fenced(
    store: &MySqlStore,
    deduction: &Deduction,
    read: &StockLevel,
    fence: &Fence,
) -> Result<Attempt, StoreError> {
    let mut tx = store.begin().await?;
    let written = sqlx::query(sql::DEDUCT_IF_FENCED)
        .bind(read.on_hand - deduction.quantity.units())
        .bind(fence.token)
        .bind(&*fence.source)
        .bind(deduction.sku.as_str())
        .bind(deduction.warehouse.as_str())
        .bind(read.version)
        .bind(&*fence.source)
        .bind(fence.token)
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
    store: &MySqlStore,
    deduction: &Deduction,
    read: &StockLevel,
) -> Result<Attempt, StoreError> {
    let mut tx = store.begin().await?;
    let written = sqlx::query(sql::OVERWRITE)
        .bind(read.on_hand - deduction.quantity.units())
        .bind(deduction.sku.as_str())
        .bind(deduction.warehouse.as_str())
        .execute(&mut *tx)
        .await;
    match written {
        Ok(written) if written.rows_affected() > 0 => {}
        Err(error) if classify(&error) != Verdict::CheckViolated => return Err(failed(error)),
        // It is none of SQL's, or somebody lowered the limit since it was read.
        _ => {
            return refused(tx, deduction).await;
        }
    }
    let remaining = read.available() - deduction.quantity.units();
    record(store, tx, deduction, remaining, Some(read)).await
}

/// Records a deduction in the transaction that wrote the level, and commits both.
async fn record(
    store: &MySqlStore,
    mut tx: Transaction<'static, MySql>,
    deduction: &Deduction,
    remaining: i64,
    read: Option<&StockLevel>,
) -> Result<Attempt, StoreError> {
    if !store
        .insert(&mut tx, &Record::of_deduction(deduction, remaining, read))
        .await?
    {
        pool::roll_back(tx).await;
        return Ok(Attempt::Duplicate);
    }
    pool::commit(tx).await?;
    Ok(Attempt::Deducted { remaining })
}

/// What to answer where the guarded statement changed nothing.
async fn refused(
    mut tx: Transaction<'static, MySql>,
    deduction: &Deduction,
) -> Result<Attempt, StoreError> {
    let row = sqlx::query_as(sql::LEVEL)
        .bind(deduction.sku.as_str())
        .bind(deduction.warehouse.as_str())
        .fetch_optional(&mut *tx)
        .await
        .map_err(failed)?;
    pool::roll_back(tx).await;
    let level = row.map(rows::level).transpose()?;
    Ok(Attempt::refused(level, deduction.quantity.units()))
}

/// Why the fenced statement changed nothing: a later holder of the lock has written, or else
/// somebody who held none.
async fn overtaken(
    mut tx: Transaction<'static, MySql>,
    deduction: &Deduction,
    fence: &Fence,
) -> Result<Attempt, StoreError> {
    let last: Option<(i64, String)> = sqlx::query_as(sql::FENCE)
        .bind(deduction.sku.as_str())
        .bind(deduction.warehouse.as_str())
        .fetch_optional(&mut *tx)
        .await
        .map_err(failed)?;
    pool::roll_back(tx).await;
    let later = last.is_some_and(|(token, source)| fence.is_before(token, &source));
    Ok(if later {
        Attempt::LockLost
    } else {
        Attempt::Stale
    })
}
