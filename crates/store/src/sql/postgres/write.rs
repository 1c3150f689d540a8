//! The write of a plan: one statement.

use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{Postgres, Row as _};

use super::{PostgresServer, after_the_wait, is_undone, unless_missing};
use crate::sql::dialect::Dialect as _;
use crate::sql::errors::{Verdict, before_commit, classify, in_autocommit, waited_for_the_ledger};
use crate::sql::pool::PooledConnection;
use crate::sql::statement::trusted;
use crate::sql::write::{Session, Write, Written, WrittenLevel};
use crate::{Result, StoreError};
use stocklock_core::stock::Remarks;

/// How long operations wait for another transaction that is recording the key of one of them. The levels are
/// locked then, and the others can be made without it.
const KEY_WAIT_MILLIS: u32 = 100;

/// The first parameter of the remarks. Strategy and expiry, the columns of the levels, and the other columns
/// of sales come before.
const FIRST_REMARK: usize = 18;

pub(super) async fn write(session: Session<PostgresServer>, write: &Write<'_>) -> Result<Written> {
    match session {
        // The last message of the answer confirms the commit.
        Session::Fresh(mut connection) => {
            written(send(&mut connection, write).await, write, in_autocommit)
        }
        Session::Open(mut tx) => {
            let written = written(send(&mut tx, write).await, write, before_commit)?;
            match &written {
                Written::Levels(levels) if !levels.is_empty() => tx.commit().await?,
                _ => tx.roll_back().await,
            }
            Ok(written)
        }
    }
}

fn written(
    answer: sqlx::Result<Vec<WrittenLevel>>,
    write: &Write<'_>,
    other: impl Fn(sqlx::Error) -> StoreError,
) -> Result<Written> {
    match answer {
        Ok(levels) => Ok(Written::Levels(levels)),
        Err(error) if classify(&error) == Verdict::Duplicate => Ok(Written::Duplicate),
        Err(error) if is_undone(&error) => Ok(Written::Levels(Vec::new())),
        Err(error) if write.waits && waited_for_the_ledger(&error) && write.has_key() => {
            Err(StoreError::KeyInFlight(Box::new(error)))
        }
        Err(error) => Err(other(error)),
    }
}

async fn send(
    connection: &mut PooledConnection<PostgresServer>,
    write: &Write<'_>,
) -> sqlx::Result<Vec<WrittenLevel>> {
    let query = bind(sqlx::query(trusted(statement(write))), write);
    let rows = query.fetch_all(connection.send()).await;
    connection.received(rows).and_then(|rows| {
        let rows = rows.iter();
        let level = |row: &sqlx::postgres::PgRow| Ok((row.try_get(0)?, row.try_get(1)?));
        rows.map(level).collect()
    })
}

/// A write that does not wait first locks the rows that no transaction has locked.
fn statement(write: &Write<'_>) -> String {
    let in_time = format!("{} < $2", PostgresServer::WORDS.now);
    let wanted = "unnest($3::bigint[], $4::text[], $5::text[], $6::bigint[], $7::bigint[],
            $8::bigint[], $9::bigint[], $10::bigint[])
        AS wanted (number, sku, warehouse, delta, movements, read_version, new_limit, held_delta)";
    let holds = "stock.version = coalesce(wanted.read_version, stock.version)
        AND on_hand + wanted.delta - held - wanted.held_delta >= -coalesce(wanted.new_limit, backorder_limit)";
    let (free, source, condition) = if write.waits {
        (String::new(), wanted, &*in_time)
    } else {
        let free = format!(
            "free AS MATERIALIZED (
                SELECT wanted.* FROM {wanted} JOIN stock USING (sku, warehouse)
                WHERE {holds} AND {in_time}
                FOR NO KEY UPDATE OF stock SKIP LOCKED
            ), "
        );
        (free, "free AS wanted", "TRUE")
    };
    let key_wait = if write.is_shared() {
        format!(", set_config('lock_timeout', '{KEY_WAIT_MILLIS}', true)")
    } else {
        String::new()
    };
    let whole = if write.is_whole() {
        let all = "(SELECT count(*) FROM written) = cardinality($3::bigint[])";
        format!(", {}", after_the_wait(all))
    } else {
        String::new()
    };
    let all = "(SELECT count(*) FROM recorded) = (SELECT sum(movements) FROM written)";
    let recorded = unless_missing(all, "number");
    format!(
        "WITH {free}written AS (
                UPDATE stock SET on_hand = on_hand + wanted.delta, held = held + wanted.held_delta,
                    backorder_limit = coalesce(wanted.new_limit, backorder_limit),
                    version = version + wanted.movements
                FROM {source}
                WHERE stock.sku = wanted.sku AND stock.warehouse = wanted.warehouse
                    AND {holds} AND {condition}
                RETURNING wanted.number, wanted.movements, stock.sku, stock.warehouse, stock.version,
                    on_hand - held + backorder_limit AS available, {in_time_still}{key_wait}
            ), recorded AS (
                INSERT INTO movement (operation_id, line, sku, warehouse, kind, delta, read_version,
                    strategy, caller, idempotency_key, request_hash, {remarks}, available_after,
                    level_version, reverses, returned, held_delta)
                SELECT operation_id, coalesce(line, 0), sku, warehouse, coalesce(kind, 'deducted'), delta,
                    read_version, CASE WHEN coalesce(kind, 'deducted') = 'deducted' THEN $1 END, caller,
                    idempotency_key, request_hash, {remarks}, available + units_after,
                    version - movements_after, reverses, returned, coalesce(held_delta, 0)
                FROM written JOIN {movements} USING (number)
                RETURNING 1
            )
        SELECT number, available, {recorded}{whole} FROM written",
        in_time_still = after_the_wait(&in_time),
        remarks = Remarks::NAMES.join(", "),
        movements = movements_as_table(),
    )
}

/// The movements as a table: the parameters of [`bind`].
fn movements_as_table() -> String {
    let others = FIRST_REMARK + Remarks::NAMES.len();
    let remarks = (FIRST_REMARK..others).map(|number| format!("${number}::text[]"));
    format!(
        "unnest($11::bigint[], $12::bigint[], $13::uuid[], $14::bigint[], $15::bigint[], $16::text[],
            $17::text[], {remarks}, ${hash}::bytea[], ${line}::bigint[], ${kind}::text[],
            ${read_version}::bigint[], ${reverses}::uuid[], ${returned}::bigint[],
            ${held_delta}::bigint[])
            AS movement_row (number, movements_after, operation_id, delta, units_after, caller,
                idempotency_key, {names}, request_hash, line, kind, read_version, reverses, returned,
                held_delta)",
        remarks = remarks.collect::<Vec<_>>().join(", "),
        names = Remarks::NAMES.join(", "),
        hash = others,
        line = others + 1,
        kind = others + 2,
        read_version = others + 3,
        reverses = others + 4,
        returned = others + 5,
        held_delta = others + 6,
    )
}

/// Binds strategy and expiry, then one array for each column of the levels and of the movements. What no
/// movement has is an empty array, which stands for NULLs.
fn bind<'q>(
    query: Query<'q, Postgres, PgArguments>,
    write: &Write<'_>,
) -> Query<'q, Postgres, PgArguments> {
    let levels: Vec<_> = write.levels().collect();
    let movements: Vec<_> = write.movements().collect();
    let mut query = query
        .bind(write.strategy())
        .bind(write.expires_at)
        .bind(column(&levels, |level| level.number))
        .bind(column(&levels, |level| level.sku))
        .bind(column(&levels, |level| level.warehouse))
        .bind(column(&levels, |level| level.delta))
        .bind(column(&levels, |level| level.movements))
        .bind(column(&levels, |level| level.read_version))
        .bind(column(&levels, |level| level.backorder_limit))
        .bind(column(&levels, |level| level.held_delta))
        .bind(column(&movements, |one| one.level))
        .bind(column(&movements, |one| one.movements_after))
        .bind(column(&movements, |one| one.operation().id.0))
        .bind(column(&movements, |one| one.delta()))
        .bind(column(&movements, |one| one.units_after))
        .bind(column(&movements, |one| one.operation().caller.as_str()))
        .bind(column(&movements, |one| one.key().map(|(key, _)| key)));
    for remark in 0..Remarks::NAMES.len() {
        query = query.bind(column(&movements, |one| {
            one.operation().remarks.texts()[remark]
        }));
    }
    let query = query.bind(column(&movements, |one| one.key().map(|(_, hash)| hash)));
    let others: Vec<_> = movements.iter().map(|one| one.others()).collect();
    let others = if others.iter().all(Option::is_none) {
        &[]
    } else {
        &others[..]
    };
    query
        .bind(column(others, |one| one.map(|one| one.line)))
        .bind(column(others, |one| one.map(|one| one.kind)))
        .bind(column(others, |one| one.and_then(|one| one.read_version)))
        .bind(column(others, |one| Some(one.as_ref()?.reverses?.0)))
        .bind(column(others, |one| one.and_then(|one| one.returned)))
        .bind(column(others, |one| one.map(|one| one.held_delta)))
}

/// The values of one column, in the order of the rows.
fn column<'a, R, T>(rows: &'a [R], value: impl Fn(&'a R) -> T) -> Vec<T> {
    rows.iter().map(value).collect()
}
