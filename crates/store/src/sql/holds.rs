//! The rows of open holds: read under the locks of their levels, written with the movements of a plan, listed,
//! and extended.
//!
//! Guarantees: a row is deleted only by the transaction that records the end of its line. Each of those has
//! locked the level of the line first.

use async_trait::async_trait;
use uuid::Uuid;

use super::SqlStore;
use super::dialect::Dialect;
use super::errors::{Inserted, before_commit, inserted};
use super::pool::PooledConnection;
use super::reads::movements;
use super::rows::rows;
use super::statement::{Statement, Value, values};
use super::statements::OF_KIND;
use crate::{Result, StoreError};
use stocklock_core::plan::{HoldLine, Plan, Snapshot};
use stocklock_core::ports::HoldStore;
use stocklock_core::stock::{
    Change, HoldCursor, HoldFilter, How, Movement, MovementKind, NEVER, OpenHold, Operation,
    OperationId, Sku, Warehouse,
};

/// How many rows a statement reads or writes: few different texts, so that the servers keep each.
const PIECES: [usize; 3] = [64, 8, 1];

const COLUMNS: &str = "operation_id, sku, warehouse, units, expires_at";

rows! {
    /// An open line of a hold.
    #[derive(Debug)]
    struct HoldRow {
        operation_id: Uuid,
        line: i64,
        sku: Sku as String,
        warehouse: Warehouse as String,
        units: i64,
        expires_at: i64,
        /// The database's clock.
        now: i64,
    }
}

impl HoldRow {
    fn open(self) -> OpenHold {
        OpenHold {
            hold: OperationId(self.operation_id),
            line: self.line,
            sku: self.sku,
            warehouse: self.warehouse,
            units: self.units,
            expires_at: self.expires_at,
            is_due: self.expires_at <= self.now,
        }
    }
}

/// Selects open holds. `rest` follows the table.
fn open<D: Dialect>(rest: &str) -> Statement {
    let (integer, now) = (D::texts().integer.as_str(), D::texts().now.as_str());
    Statement::built(format!(
        "SELECT {COLUMNS}, cast(line AS {integer}) AS line, cast({now} AS {integer}) AS now FROM hold {rest}"
    ))
}

/// A condition for each row, joined by OR. It gets the numbers of the parameters of its row.
fn any_of(rows: usize, columns: usize, condition: impl Fn(&[usize]) -> String) -> String {
    let numbers = |row| {
        (1..=columns)
            .map(|column| row * columns + column)
            .collect::<Vec<_>>()
    };
    let conditions: Vec<_> = (0..rows).map(|row| condition(&numbers(row))).collect();
    conditions.join(" OR ")
}

/// The rows in pieces of a few sizes.
fn pieces<T>(mut rows: &[T]) -> Vec<&[T]> {
    let mut pieces = Vec::new();
    while !rows.is_empty() {
        let size = PIECES.into_iter().find(|size| *size <= rows.len());
        let (piece, others) = rows.split_at(size.unwrap_or(rows.len()));
        pieces.push(piece);
        rows = others;
    }
    pieces
}

/// Reads the holds that operations end, and the clock if one begins or ends.
pub(super) async fn read_holds<D: Dialect>(
    connection: &mut PooledConnection<D>,
    operations: &[Operation],
    snapshot: &mut Snapshot,
) -> Result<()> {
    let lines = || operations.iter().flat_map(|operation| &operation.lines);
    let ends = lines().filter_map(|line| match line.change {
        Change::End(end) => Some(end),
        _ => None,
    });
    let ends: Vec<_> = ends.collect();
    if ends.is_empty() && !lines().any(|line| matches!(line.change, Change::Hold(_))) {
        return Ok(());
    }
    let clock = connection.fetch(&D::texts().clock, &[]).await;
    let clock: Vec<(i64,)> = clock.map_err(before_commit)?;
    snapshot.now = clock.first().map_or(0, |(now,)| *now);
    for piece in pieces(&ends) {
        let values: Vec<_> = piece
            .iter()
            .flat_map(|end| values![end.hold.0, end.line])
            .collect();
        let condition = any_of(piece.len(), 2, |numbers| {
            format!("operation_id = ${} AND line = ${}", numbers[0], numbers[1])
        });
        let found = connection.fetch(open::<D>(&format!("WHERE {condition}")), &values);
        let found: Vec<HoldRow> = found.await.map_err(before_commit)?;
        let row = |row: HoldRow| {
            let line = (OperationId(row.operation_id), row.line);
            (line, (row.units, row.expires_at))
        };
        snapshot.holds.extend(found.into_iter().map(row));
    }
    for end in ends {
        let line = (end.hold, end.line);
        // What has expired already need not expire again, however it ended.
        if !snapshot.holds.contains_key(&line) && end.how != How::Expire {
            let last = last_end(connection, line).await?;
            snapshot.ends.extend(last.map(|kind| (line, kind)));
        }
    }
    Ok(())
}

/// How a line of a hold ended at last.
async fn last_end<D: Dialect>(
    connection: &mut PooledConnection<D>,
    (hold, line): HoldLine,
) -> Result<Option<MovementKind>> {
    const LAST: &str = "SELECT kind FROM movement WHERE reverses = $1 AND line = $2
        ORDER BY level_version DESC LIMIT 1";
    let found = connection.fetch(LAST, &values![hold.0, line]).await;
    let mut found: Vec<(String,)> = found.map_err(before_commit)?;
    Ok(found.pop().map(|(kind,)| kind.into()))
}

/// Deletes the lines of holds that a plan ends, and inserts those that it opens, in the transaction that has
/// locked their levels.
///
/// [`Inserted::Duplicate`]: an earlier attempt at the operation has made its hold, and its outcome was unknown.
///
/// # Errors
/// [`StoreError::Aborted`] if a line has been extended since it was read.
pub(super) async fn write<D: Dialect>(
    connection: &mut PooledConnection<D>,
    plan: &Plan<'_>,
) -> Result<Inserted> {
    for piece in pieces(&plan.ended) {
        let values: Vec<_> = piece
            .iter()
            .flat_map(|((hold, line), due_at)| values![hold.0, *line, *due_at])
            .collect();
        let condition = any_of(piece.len(), 3, |numbers| {
            let [hold, line, due_at] = [0, 1, 2].map(|place| numbers[place]);
            format!("operation_id = ${hold} AND line = ${line} AND expires_at <= ${due_at}")
        });
        let statement = Statement::built(format!("DELETE FROM hold WHERE {condition}"));
        let deleted = connection.execute(statement, &values).await;
        if deleted.map_err(before_commit)? != piece.len() as u64 {
            let problem = "a hold was extended meanwhile";
            return Err(StoreError::Aborted(problem.into()));
        }
    }
    let opened = plan.movements();
    let opened =
        opened.filter_map(|(movement, level)| Some((movement, level, movement.expires_at?)));
    let opened: Vec<_> = opened.collect();
    for piece in pieces(&opened) {
        let values: Vec<Value<'_>> = piece
            .iter()
            .flat_map(|(movement, level, expires_at)| {
                values![
                    movement.operation.id.0,
                    level.sku.as_str(),
                    level.warehouse.as_str(),
                    movement.held_delta,
                    *expires_at,
                    movement.ledger_line,
                ]
            })
            .collect();
        let rows: Vec<_> = (0..piece.len())
            .map(|row| {
                let numbers: Vec<_> = (1..=6)
                    .map(|column| format!("${}", 6 * row + column))
                    .collect();
                format!("({})", numbers.join(", "))
            })
            .collect();
        let rows = rows.join(", ");
        let insert = Statement::built(format!("INSERT INTO hold ({COLUMNS}, line) VALUES {rows}"));
        let answer = connection.execute(insert, &values).await;
        if inserted(answer, false)? == Inserted::Duplicate {
            return Ok(Inserted::Duplicate);
        }
    }
    Ok(Inserted::New)
}

/// Which holds, and how many, are on a page. `now`: the server's clock.
fn page<D: Dialect>(filter: &HoldFilter, now: i64) -> (Statement, Vec<Value<'_>>) {
    let (level, after, only_due, limit) = match filter {
        HoldFilter::Operation(hold) => {
            let of_hold = open::<D>("WHERE operation_id = $1 ORDER BY line");
            return (of_hold, values![hold.0].to_vec());
        }
        HoldFilter::Page {
            level,
            after,
            only_due,
            limit,
        } => (level, after, *only_due, *limit),
    };
    let first = HoldCursor {
        expires_at: i64::MIN,
        hold: OperationId(Uuid::nil()),
        line: 0,
    };
    let after = after.unwrap_or(first);
    // As a parameter, so that the database reads no others in the index.
    let last = if only_due { now } else { NEVER };
    let mut values = values![
        after.expires_at,
        after.hold.0,
        after.line,
        i64::from(limit),
        last,
    ]
    .to_vec();
    let mut condition = "expires_at >= $1 AND expires_at <= $5
            AND (expires_at > $1 OR operation_id > $2 OR operation_id = $2 AND line > $3)"
        .to_owned();
    if let Some((sku, warehouse)) = level {
        values.extend(values![sku.as_str(), warehouse.as_str()]);
        condition += " AND sku = $6 AND warehouse = $7";
    }
    let rest = format!("WHERE {condition} ORDER BY expires_at, operation_id, line LIMIT $4");
    (open::<D>(&rest), values)
}

#[async_trait]
impl<D: Dialect> HoldStore for SqlStore<D> {
    async fn children(&self, parent: OperationId) -> Result<Vec<Movement>> {
        let statement = movements::<D>("movement WHERE reverses = $1 ORDER BY line, level_version");
        let statement = Statement {
            // PostgreSQL would keep a plan that reads the whole ledger, made when that was short.
            persistent: D::KEEPS_PLANS,
            ..statement
        };
        self.select_movements(&self.readers, statement, &values![parent.0])
            .await
    }

    async fn open_holds(&self, filter: &HoldFilter) -> Result<Vec<OpenHold>> {
        let mut now = 0;
        if matches!(filter, HoldFilter::Page { only_due: true, .. }) {
            let clock = &D::texts().clock;
            let clock: Vec<(i64,)> = self.select(&self.readers, clock, &[]).await?;
            now = clock.first().map_or(0, |(now,)| *now);
        }
        let (statement, values) = page::<D>(filter, now);
        let found: Vec<HoldRow> = self.select(&self.readers, statement, &values).await?;
        Ok(found.into_iter().map(HoldRow::open).collect())
    }

    async fn has_expired(&self, sku: &Sku, warehouse: &Warehouse) -> Result<bool> {
        // SQLite uses this index only if the query repeats what it leaves out.
        let movements = D::texts().movements_by(OF_KIND);
        let last = Statement::built(format!(
            "SELECT level_version FROM {movements} WHERE sku = $1 AND warehouse = $2
                AND kind = 'expired' AND kind <> 'deducted' ORDER BY level_version DESC LIMIT 1"
        ));
        let level = values![sku.as_str(), warehouse.as_str()];
        let found: Vec<(i64,)> = self.select(&self.readers, last, &level).await?;
        Ok(!found.is_empty())
    }

    async fn extend(&self, hold: OperationId, lasts: Option<i64>) -> Result<Vec<OpenHold>> {
        let (integer, now) = (D::texts().integer.as_str(), D::texts().now.as_str());
        let end = match lasts {
            Some(_) => format!("cast({now} AS {integer}) + $2"),
            None => "$2".to_owned(),
        };
        let update = Statement::built(format!(
            "UPDATE hold SET expires_at = CASE WHEN expires_at > {end} THEN expires_at ELSE {end} END
            WHERE operation_id = $1 AND expires_at > {now}"
        ));
        let found = self.write(async {
            let connection = self.writers.acquire().await?;
            let mut tx = connection.begin(D::texts().begin.as_str()).await?;
            let values = values![hold.0, lasts.unwrap_or(NEVER)];
            tx.execute(update.clone(), &values)
                .await
                .map_err(before_commit)?;
            let open = open::<D>("WHERE operation_id = $1 ORDER BY line");
            let found = tx.fetch(open, &values[..1]).await;
            let found: Vec<HoldRow> = found.map_err(before_commit)?;
            tx.commit().await?;
            Ok(found)
        });
        Ok(found.await?.into_iter().map(HoldRow::open).collect())
    }
}
