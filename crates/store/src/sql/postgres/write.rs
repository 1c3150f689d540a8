//! The write of a plan: one statement.

use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{Postgres, Row as _};

use super::{PostgresServer, is_undone};
use crate::sql::errors::{Verdict, before_commit, classify, in_autocommit, waited_for_the_ledger};
use crate::sql::pool::{PooledConnection, Server as _, committed, with_warning};
use crate::sql::statement::Statement;
use crate::sql::write::{Session, Write, Written, WrittenLevel};
use crate::{Result, StoreError};

pub(super) async fn write(session: Session<PostgresServer>, write: &Write<'_>) -> Result<Written> {
    match session {
        // The last message of the answer confirms the commit.
        Session::Fresh(mut connection) => {
            let answer = with_warning(send(&mut connection, write)).await;
            written(committed(answer), write, in_autocommit)
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
            Err(StoreError::KeyInFlight(error.into()))
        }
        Err(error) => Err(other(error)),
    }
}

async fn send(
    connection: &mut PooledConnection<PostgresServer>,
    write: &Write<'_>,
) -> sqlx::Result<Vec<WrittenLevel>> {
    let statement = statement(write);
    let query = bind(sqlx::query(statement.text.clone()), write);
    let rows = query.fetch_all(connection.send(statement.as_str())).await;
    connection.received(rows).and_then(|rows| {
        let rows = rows.iter();
        let level = |row: &sqlx::postgres::PgRow| Ok((row.try_get(0)?, row.try_get(1)?));
        rows.map(level).collect()
    })
}

fn statement(write: &Write<'_>) -> &'static Statement {
    let texts = PostgresServer::texts();
    match (write.waits, write.is_shared(), write.is_whole()) {
        (true, false, false) => &texts.write,
        (true, false, true) => &texts.write_whole,
        (true, true, false) => &texts.write_shared,
        (true, true, true) => &texts.write_shared_whole,
        (false, _, false) => &texts.write_free,
        (false, _, true) => &texts.write_free_whole,
    }
}

/// Binds strategy and expiry, then one array for each column of the levels and of the movements. What no
/// movement has is an empty array, which stands for NULLs.
fn bind<'q>(
    query: Query<'q, Postgres, PgArguments>,
    write: &Write<'_>,
) -> Query<'q, Postgres, PgArguments> {
    let levels: Vec<_> = write.levels().collect();
    let movements: Vec<_> = write.movements().collect();
    let are_plain = movements.iter().all(|one| one.is_plain());
    let others = if are_plain { &[] } else { &movements[..] };
    query
        .bind(write.strategy())
        .bind(write.expires_at)
        .bind(column(&levels, |(number, _)| *number))
        .bind(column(&levels, |(_, level)| level.sku.as_str()))
        .bind(column(&levels, |(_, level)| level.warehouse.as_str()))
        .bind(column(&levels, |(_, level)| level.delta))
        .bind(column(&levels, |(_, level)| level.movements))
        .bind(column(&levels, |(_, level)| level.read_version()))
        .bind(column(&levels, |(_, level)| level.backorder_limit))
        .bind(column(&levels, |(_, level)| level.held_delta))
        .bind(column(&movements, |one| one.level))
        .bind(column(&movements, |one| one.movements_after))
        .bind(column(&movements, |one| one.operation().id.0))
        .bind(column(&movements, |one| one.delta()))
        .bind(column(&movements, |one| one.units_after))
        .bind(column(&movements, |one| one.operation().caller.as_str()))
        .bind(column(&movements, |one| one.key().map(|(key, _)| key)))
        .bind(column(&movements, |one| one.remarks()[0]))
        .bind(column(&movements, |one| one.remarks()[1]))
        .bind(column(&movements, |one| one.key().map(|(_, hash)| hash)))
        .bind(column(others, |one| one.movement.ledger_line))
        .bind(column(others, |one| one.movement.kind.as_str()))
        .bind(column(others, |one| one.movement.read_version))
        .bind(column(others, |one| Some(one.movement.reverses?.0)))
        .bind(column(others, |one| one.movement.returned))
        .bind(column(others, |one| one.movement.held_delta))
}

/// The values of one column, in the order of the rows.
fn column<'a, R, T>(rows: &'a [R], value: impl Fn(&'a R) -> T) -> Vec<T> {
    rows.iter().map(value).collect()
}
