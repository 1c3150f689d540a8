//! Reads pages of the ledger: each warehouse by its index, in the order of the commits.
//!
//! A statement per warehouse reads at most a page, so no page reads rows of other SKUs, or rows that
//! earlier pages had.

use std::collections::BTreeMap;

use super::dialect::{Dialect, Statement, Value, values};
use super::errors::before_commit;
use super::ledger_row::LedgerRow;
use super::pool::PooledConnection;
use super::reads::movements;
use super::statements::{IN_ORDER, UNNUMBERED};
use super::{READ, SqlStore};
use crate::Result;
use stocklock_core::stock::{
    LedgerPage, LedgerPosition, MovementFilter, MovementKind, Sku, Warehouse,
};

/// The SKU's warehouses.
const WAREHOUSES: &str = "SELECT warehouse FROM stock WHERE sku = $1 ORDER BY warehouse";

/// How many warehouses one statement reads. SQLite combines at most 500 queries, and a warehouse
/// needs two.
const WAREHOUSES_PER_STATEMENT: usize = 100;

impl<D: Dialect> SqlStore<D> {
    /// Reads one page.
    pub(super) async fn ledger_page(&self, filter: &MovementFilter) -> Result<LedgerPage> {
        let pool = self.ledger_readers.for_sku(&filter.sku);
        self.read(2 * READ, async {
            let mut connection = pool.acquire().await?;
            let positions = positions(&mut connection, filter).await?;
            let positions: Vec<_> = positions.into_iter().collect();
            let mut found = Vec::new();
            for positions in positions.chunks(WAREHOUSES_PER_STATEMENT) {
                let (statement, values) = page::<D>(filter, positions);
                let rows = connection.fetch(statement, &values).await;
                let rows: Vec<LedgerRow> = rows.map_err(before_commit)?;
                found.extend(rows);
            }
            let found: Result<_> = found.into_iter().map(LedgerRow::movement).collect();
            Ok(LedgerPage::merge(found?, filter.limit))
        })
        .await
    }
}

/// The start of the page in each warehouse.
async fn positions<D: Dialect>(
    connection: &mut PooledConnection<D>,
    filter: &MovementFilter,
) -> Result<BTreeMap<Warehouse, LedgerPosition>> {
    let mut positions = match (&filter.from, &filter.warehouse) {
        (Some(from), _) => from.0.clone(),
        (None, Some(warehouse)) => BTreeMap::from([(warehouse.clone(), LedgerPosition::NEWEST)]),
        (None, None) => warehouses(connection, &filter.sku).await?,
    };
    if let Some(only) = &filter.warehouse {
        positions.retain(|warehouse, _| warehouse == only);
    }
    Ok(positions)
}

async fn warehouses<D: Dialect>(
    connection: &mut PooledConnection<D>,
    sku: &Sku,
) -> Result<BTreeMap<Warehouse, LedgerPosition>> {
    let found = connection.fetch(WAREHOUSES, &values![sku.as_str()]).await;
    let found: Vec<(String,)> = found.map_err(before_commit)?;
    let parse = |(name,): (String,)| {
        let warehouse =
            Warehouse::parse(name).map_err(|error| crate::StoreError::Bug(error.into()));
        Ok((warehouse?, LedgerPosition::NEWEST))
    };
    found.into_iter().map(parse).collect()
}

/// One more movement than the page has, from each of these positions.
fn page<'a, D: Dialect>(
    filter: &'a MovementFilter,
    positions: &'a [(Warehouse, LedgerPosition)],
) -> (Statement, Vec<Value<'a>>) {
    let mut values = values![
        filter.sku.as_str(),
        filter.kind.as_ref().map(MovementKind::as_str),
        filter.reference.as_deref(),
        i64::from(filter.limit) + 1,
    ]
    .to_vec();
    let mut queries = Vec::new();
    for (warehouse, position) in positions {
        values.push(warehouse.as_str().into());
        let warehouse = values.len();
        let mut add = |index: &str, rest: &str| {
            let select = movements::<D>(&format!(
                "{} WHERE sku = $1 AND warehouse = ${warehouse}
                    AND ($2 IS NULL OR kind = $2) AND ($3 IS NULL OR reference = $3) {rest} LIMIT $4",
                D::WORDS.movements_by(index)
            ));
            let number = queries.len();
            queries.push(format!(
                "SELECT * FROM ({}) AS part_{number}",
                select.text.as_str()
            ));
        };
        let mut unnumbered = "";
        let before;
        match position {
            LedgerPosition::Numbered(version) => {
                values.push((*version).into());
                let version = values.len();
                add(
                    IN_ORDER,
                    &format!("AND level_version <= ${version} ORDER BY level_version DESC"),
                );
            }
            LedgerPosition::Unnumbered(operation) => {
                values.push(operation.0.into());
                before = format!("AND operation_id <= ${}", values.len());
                unnumbered = &before;
            }
        }
        add(
            UNNUMBERED,
            &format!("AND level_version IS NULL {unnumbered} ORDER BY operation_id DESC"),
        );
    }
    let statement = Statement::for_levels(queries.join(" UNION ALL "), positions.len());
    (statement, values)
}
