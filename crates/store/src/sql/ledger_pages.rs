//! Reads pages of the ledger: each warehouse by an index, in the order of the commits.
//!
//! A query per warehouse reads at most a page, so no page reads rows of other SKUs, or rows that earlier
//! pages had. A filter has its own index, so that a page of few movements among millions does not read the
//! others. A page of sales, or with two filters, reads movements that do not match, because its index also
//! leads to them. It ends after a number of rows, even if it has no movement: the next page goes on there.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::dialect::Dialect;
use super::ledger_row;
use super::pool::PooledConnection;
use super::reads::movements;
use super::rows::rows;
use super::statement::{Statement, Value, values};
use super::statements::{IN_ORDER, OF_KIND, OF_REFERENCE};
use super::{READ, SqlStore};
use crate::Result;
use stocklock_core::stock::{
    LedgerPage, MovementFilter, MovementKind, OperationId, Sku, Warehouse,
};

/// The position before the newest movement.
const NEWEST: i64 = i64::MAX;

/// The position behind the oldest movement.
const BEHIND_OLDEST: i64 = 0;

/// How many rows a page reads, if its limit is not higher. The databases need about 10 ms for them.
const MOST_ROWS: u32 = 3_000;

/// How many warehouses one statement reads. SQLite combines at most 500 queries.
const WAREHOUSES_PER_STATEMENT: usize = 200;

rows! {
    /// The first movement of a warehouse that a page does not read.
    #[derive(Debug)]
    struct EndRow {
        warehouse: Warehouse as String,
        level_version: i64,
        operation_id: Uuid,
    }
}

impl EndRow {
    fn position(self) -> (Warehouse, (OperationId, i64)) {
        let operation = OperationId(self.operation_id);
        (self.warehouse, (operation, self.level_version))
    }
}

/// The end of a page in each warehouse that it does not read completely.
type Ends = BTreeMap<Warehouse, (OperationId, i64)>;

impl<D: Dialect> SqlStore<D> {
    /// Reads one page.
    pub(super) async fn ledger_page(&self, filter: &MovementFilter) -> Result<LedgerPage> {
        let pool = self.ledger_readers.for_sku(&filter.sku);
        self.read(3 * READ, async {
            let mut connection = pool.acquire().await?;
            let positions = positions(&mut connection, filter).await?;
            let positions: Vec<_> = positions.into_iter().collect();
            let reading = Reading::new(filter, positions.len());
            let (mut found, mut ends) = (Vec::new(), Ends::new());
            for positions in positions.chunks(WAREHOUSES_PER_STATEMENT) {
                if reading.kind.is_some() {
                    let (statement, values) = reading.ends::<D>(positions);
                    let rows: Vec<EndRow> = connection.rows(statement, &values).await?;
                    ends.extend(rows.into_iter().map(EndRow::position));
                }
                let (statement, values) = reading.page::<D>(positions, &ends);
                let rows = connection.rows(statement, &values).await?;
                found.extend(ledger_row::movements(rows));
            }
            Ok(LedgerPage::merge(found, reading.rows, ends, filter.limit))
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
    let statement = &D::texts().warehouses;
    let found: Vec<(String,)> = connection.rows(statement, &values![sku.as_str()]).await?;
    let parse = |(name,): (String,)| {
        let warehouse =
            Warehouse::parse(name).map_err(|error| crate::StoreError::Bug(error.into()));
        Ok((warehouse?, NEWEST))
    };
    found.into_iter().map(parse).collect()
}

/// What a page reads of each warehouse.
#[derive(Debug)]
struct Reading<'a> {
    sku: &'a str,
    index: &'static str,
    /// A condition on a column of the index, and its value: no other movement is read.
    indexed: Option<(&'static str, &'a str)>,
    /// The kind of the movements, if the index leads to other kinds too.
    kind: Option<&'a str>,
    /// How many rows are read at most.
    share: u32,
    /// How many movements are wanted: one more than may be on the page.
    rows: u32,
}

impl<'a> Reading<'a> {
    fn new(filter: &'a MovementFilter, warehouses: usize) -> Self {
        let kind = filter.kind.as_ref();
        let (index, indexed, kind) = match (&filter.reference, kind) {
            (Some(reference), kind) => {
                let indexed = (" AND reference = ", reference.as_str());
                (OF_REFERENCE, Some(indexed), kind)
            }
            (None, Some(kind)) if *kind != MovementKind::Deducted => {
                // The condition of a partial index, word for word.
                let indexed = (" AND kind <> 'deducted' AND kind = ", kind.as_str());
                (OF_KIND, Some(indexed), None)
            }
            (None, kind) => (IN_ORDER, None, kind),
        };
        let wanted = filter.limit.saturating_add(1);
        let warehouses = u32::try_from(warehouses).unwrap_or(u32::MAX).max(1);
        // Of two rows, one can be on the page.
        let share = (MOST_ROWS.max(wanted) / warehouses).max(2);
        Self {
            sku: filter.sku.as_str(),
            index,
            indexed,
            kind: kind.map(MovementKind::as_str),
            share,
            rows: wanted.min(share),
        }
    }

    /// Reads the first movement behind the rows that the page reads, in each warehouse that has one.
    fn ends<D: Dialect>(&self, positions: &'a [(Warehouse, i64)]) -> (Statement, Vec<Value<'a>>) {
        self.statement::<D>(self.share, positions, |_, rows, _| {
            format!(
                "SELECT warehouse, level_version, operation_id FROM {rows}
                ORDER BY level_version DESC LIMIT 1 OFFSET $2"
            )
        })
    }

    /// Reads the movements up to these ends.
    fn page<D: Dialect>(
        &self,
        positions: &'a [(Warehouse, i64)],
        ends: &Ends,
    ) -> (Statement, Vec<Value<'a>>) {
        self.statement::<D>(self.rows, positions, |warehouse, rows, values| {
            let mut filters = String::new();
            if let Some(kind) = self.kind {
                let end = ends.get(warehouse).map_or(BEHIND_OLDEST, |end| end.1);
                values.extend(values![kind, end]);
                let end = values.len();
                filters = format!(" AND kind = ${} AND level_version > ${end}", end - 1);
            }
            let select = movements::<D>(&format!(
                "{rows}{filters} ORDER BY level_version DESC LIMIT $2"
            ));
            select.as_str().to_owned()
        })
    }

    /// A query for each position. `query` makes it from the rows to which the index leads from there on. Its
    /// parameter `$2` is `count`.
    fn statement<D: Dialect>(
        &self,
        count: u32,
        positions: &'a [(Warehouse, i64)],
        query: impl Fn(&Warehouse, &str, &mut Vec<Value<'a>>) -> String,
    ) -> (Statement, Vec<Value<'a>>) {
        let mut values = values![self.sku, i64::from(count)].to_vec();
        let mut indexed = String::new();
        if let Some((condition, value)) = self.indexed {
            values.push(value.into());
            indexed = format!("{condition}${}", values.len());
        }
        let movements_by_index = D::texts().movements_by(self.index);
        let mut queries = Vec::with_capacity(positions.len());
        for (number, (warehouse, position)) in positions.iter().enumerate() {
            values.extend(values![warehouse.as_str(), *position]);
            let version = values.len();
            let rows = format!(
                "{movements_by_index} WHERE sku = $1 AND warehouse = ${warehouse}
                    AND level_version <= ${version}{indexed}",
                warehouse = version - 1
            );
            let select = query(warehouse, &rows, &mut values);
            queries.push(format!("SELECT * FROM ({select}) AS part_{number}"));
        }
        let statement = Statement::for_levels(queries.join(" UNION ALL "), positions.len());
        // PostgreSQL would keep a plan that reads the whole ledger, made when that was short.
        let persistent = statement.persistent && D::KEEPS_PLANS;
        (
            Statement {
                persistent,
                ..statement
            },
            values,
        )
    }
}
