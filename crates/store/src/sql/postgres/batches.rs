//! Sales of a batch as parameters, and those of several levels in one statement.

use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{Postgres, Row as _};

use super::{PostgresServer, after_the_wait, column, has_expired};
use crate::Result;
use crate::sql::batch;
use crate::sql::dialect::{Dialect as _, trusted};
use crate::sql::errors::{Verdict, classify, in_autocommit};
use crate::sql::merged::{MergedLevel, MergedWrite, WrittenLevel};
use crate::sql::pool::PooledConnection;
use crate::sql::sold::Sold;
use stocklock_core::stock::Remarks;

/// How long a batch waits for another transaction that is recording one of its keys. The level is
/// locked then, and the other deductions can be made without that key.
pub(super) const KEY_WAIT_MILLIS: u32 = 100;

/// Locks the rows that no transaction has locked, and writes those that still have enough units.
pub(super) async fn write_merged(
    mut connection: PooledConnection<PostgresServer>,
    write: &MergedWrite<'_>,
) -> Result<Option<Vec<WrittenLevel>>> {
    let in_time = format!("{} < $5", PostgresServer::WORDS.now);
    let available = "on_hand - held >= wanted.units - backorder_limit";
    let text = format!(
        "WITH free AS MATERIALIZED (
                SELECT wanted.*
                FROM unnest($1::text[], $2::text[], $4::bigint[], $6::bigint[], $7::bigint[])
                        AS wanted (sku, warehouse, units, movements, first_sale)
                    JOIN stock USING (sku, warehouse)
                WHERE {available} AND {in_time}
                FOR NO KEY UPDATE OF stock SKIP LOCKED
            ), written AS (
                UPDATE stock SET on_hand = on_hand - wanted.units,
                    version = version + wanted.movements
                FROM free AS wanted
                WHERE stock.sku = wanted.sku AND stock.warehouse = wanted.warehouse
                    AND {available}
                RETURNING stock.sku, stock.warehouse, wanted.first_sale,
                    on_hand - held + backorder_limit AS available,
                    version - wanted.movements - wanted.first_sale AS version,
                    {in_time_still}, set_config('lock_timeout', '{KEY_WAIT_MILLIS}', true)
            ), recorded AS (
                {insert}
            )
        SELECT first_sale, available FROM written",
        in_time_still = after_the_wait(&in_time),
        insert = batch::insert::<PostgresServer>(
            &format!(
                "written JOIN {} USING (first_sale)",
                sales_as_table(Some(("first_sale", "bigint[]")))
            ),
            ["sku", "warehouse", "available", "version"],
            "$3",
            "",
        ),
    );
    let levels = write.levels();
    let query = sqlx::query(trusted(text))
        .bind(column(levels, MergedLevel::sku))
        .bind(column(levels, MergedLevel::warehouse))
        .bind(write.strategy())
        .bind(column(levels, |level| level.batch.units))
        .bind(write.expires_at)
        .bind(column(levels, |level| level.batch.movements()))
        .bind(column(levels, |level| level.first_sale));
    let (levels, sales): (Vec<_>, Vec<_>) = write.sales().unzip();
    let query = bind_sales(query, &sales).bind(column(&levels, |level| level.first_sale));
    let rows = query.fetch_all(connection.send()).await;
    let written = connection.received(rows).and_then(|rows| {
        let rows = rows.iter();
        rows.map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
            .collect()
    });
    match written {
        Err(error) if classify(&error) == Verdict::Duplicate => Ok(None),
        Err(error) if has_expired(&error) => Ok(Some(Vec::new())),
        written => written.map(Some).map_err(in_autocommit),
    }
}

/// Sales as a table: the parameters of [`bind_sales`], then one for the column that is `also` there.
pub(super) fn sales_as_table(also: Option<(&str, &str)>) -> String {
    let names = Remarks::NAMES;
    let last = 14 + names.len();
    let mut arrays: Vec<_> = (14..last)
        .map(|number| format!("${number}::text[]"))
        .collect();
    let mut columns = names.to_vec();
    if let Some((column, array)) = also {
        arrays.push(format!("${last}::{array}"));
        columns.push(column);
    }
    format!(
        "unnest($8::uuid[], $9::bigint[], $10::bigint[], $11::text[], $12::text[], $13::bytea[],
            {}) WITH ORDINALITY
            AS sale (operation_id, delta, units_after, caller, idempotency_key, request_hash,
                {}, number)",
        arrays.join(", "),
        columns.join(", ")
    )
}

/// Binds one array parameter per column of the sales.
pub(super) fn bind_sales<'q>(
    query: Query<'q, Postgres, PgArguments>,
    sales: &[Sold<'_>],
) -> Query<'q, Postgres, PgArguments> {
    let keys = column(sales, |sale| sale.deduction.idempotency.as_ref());
    let mut query = query
        .bind(column(sales, |sale| sale.deduction.operation.0))
        .bind(column(sales, |sale| -sale.deduction.quantity.units()))
        .bind(column(sales, |sale| sale.units_after))
        .bind(column(sales, |sale| sale.deduction.caller()))
        .bind(column(&keys, |key| key.map(|one| one.key.as_str())))
        .bind(column(&keys, |key| key.map(|one| &one.hash.0[..])));
    for remark in 0..Remarks::NAMES.len() {
        query = query.bind(column(sales, |sale| sale.deduction.remarks.texts()[remark]));
    }
    query
}
