//! Reads pages of the ledger: each warehouse by an index, in the order of the commits.
//!
//! A query per warehouse reads at most a page, so no page reads rows of other SKUs, or rows that earlier
//! pages had. A filter has its own index, so that a page of few movements among millions does not read the
//! others. Only for sales it reads those of other kinds, on databases whose index leaves out the sales.

use std::collections::BTreeMap;

use super::dialect::{Dialect, Statement, Value, values};
use super::errors::before_commit;
use super::ledger_row::LedgerRow;
use super::pool::PooledConnection;
use super::reads::movements;
use super::statements::{IN_ORDER, OF_KIND, OF_REFERENCE};
use super::{READ, SqlStore};
use crate::Result;
use stocklock_core::stock::{LedgerPage, MovementFilter, MovementKind, Sku, Warehouse};

/// The position before the newest movement.
const NEWEST: i64 = i64::MAX;

/// The SKU's warehouses.
const WAREHOUSES: &str = "SELECT warehouse FROM stock WHERE sku = $1 ORDER BY warehouse";

/// How many warehouses one statement reads. SQLite combines at most 500 queries.
const WAREHOUSES_PER_STATEMENT: usize = 200;

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

/// The `level_version` at which the page starts in each warehouse.
async fn positions<D: Dialect>(
    connection: &mut PooledConnection<D>,
    filter: &MovementFilter,
) -> Result<BTreeMap<Warehouse, i64>> {
    let mut positions = match (&filter.from, &filter.warehouse) {
        (Some(from), _) => from.0.clone(),
        (None, Some(warehouse)) => BTreeMap::from([(warehouse.clone(), NEWEST)]),
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
) -> Result<BTreeMap<Warehouse, i64>> {
    let found = connection.fetch(WAREHOUSES, &values![sku.as_str()]).await;
    let found: Vec<(String,)> = found.map_err(before_commit)?;
    let parse = |(name,): (String,)| {
        let warehouse =
            Warehouse::parse(name).map_err(|error| crate::StoreError::Bug(error.into()));
        Ok((warehouse?, NEWEST))
    };
    found.into_iter().map(parse).collect()
}

/// One more movement than the page has, from each of these positions.
fn page<'a, D: Dialect>(
    filter: &'a MovementFilter,
    positions: &'a [(Warehouse, i64)],
) -> (Statement, Vec<Value<'a>>) {
    let mut values = values![filter.sku.as_str(), i64::from(filter.limit) + 1].to_vec();
    let (mut index, mut filters) = (IN_ORDER, Vec::new());
    if let Some(kind) = &filter.kind {
        values.push(kind.as_str().into());
        filters.push(format!(" AND kind = ${}", values.len()));
        if *kind != MovementKind::Deducted {
            index = OF_KIND;
            // The condition of a partial index, word for word.
            filters.push(" AND kind <> 'deducted'".to_owned());
        }
    }
    if let Some(reference) = &filter.reference {
        values.push(reference.as_str().into());
        filters.push(format!(" AND reference = ${}", values.len()));
        index = OF_REFERENCE;
    }
    let filters = filters.concat();
    let movements_by_index = D::WORDS.movements_by(index);
    let mut queries = Vec::with_capacity(positions.len());
    for (number, (warehouse, position)) in positions.iter().enumerate() {
        values.extend(values![warehouse.as_str(), *position]);
        let version = values.len();
        let select = movements::<D>(&format!(
            "{movements_by_index} WHERE sku = $1 AND warehouse = ${warehouse}
                AND level_version <= ${version}{filters} ORDER BY level_version DESC LIMIT $2",
            warehouse = version - 1
        ));
        let select = select.text.as_str();
        queries.push(format!("SELECT * FROM ({select}) AS part_{number}"));
    }
    let statement = Statement::for_levels(queries.join(" UNION ALL "), positions.len());
    // PostgreSQL would keep a plan that reads the whole ledger, made when that was short.
    let persistent = statement.persistent && D::WORDS.plans_for_any_size;
    (
        Statement {
            persistent,
            ..statement
        },
        values,
    )
}
