//! Many deductions of one level, written together.
//!
//! Usually one message takes the units of all, on condition that they are available, with all movements,
//! and commits. If that is refused, reads without a lock fetch the level, then what the ledger has of
//! the batch, and the core decides ([`BatchPlan`]). The write is then conditional on the version of the
//! level. Under a lock, all that is one transaction.

use super::dialect::{Dialect, Statement, Value, values};
use super::errors::{Inserted, before_commit, inserted};
use super::ledger_row::LedgerRow;
use super::pool::{PooledConnection, Transaction};
use super::reads::movements;
use super::rows::{self, LevelRow};
use super::sold::{Hex, Sold, json};
use super::statements::{self, INSERT_COLUMNS};
use super::{READ, SqlStore};
use crate::{Result, StoreError};
use stocklock_core::ports::{
    BatchAnswer, BatchAttempt, BatchGuard, BatchPlan, BatchSale, BatchStore, DeductionStore as _,
    Expiry, SqlMethod,
};
use stocklock_core::stock::{Deduction, Movement, Remarks, StockLevel};

/// Takes the units of a batch, with the parameters of [`BatchWrite::guarded`]. `in_time`: a condition.
pub(crate) fn update(in_time: &str) -> String {
    format!(
        "UPDATE stock SET on_hand = on_hand - $6, version = version + $7
            WHERE sku = $1 AND warehouse = $2 AND version = coalesce($4, version)
                AND on_hand - $6 - held >= -backorder_limit AND {in_time}"
    )
}

/// The sales of a batch, and the condition on which they are made.
#[derive(Debug)]
pub(crate) struct BatchWrite<'a> {
    pub(crate) sales: &'a [BatchSale<'a>],
    /// All units of the sales.
    pub(super) units: i64,
    /// The level that was read, which has this version still.
    read: Option<&'a StockLevel>,
    /// In milliseconds since 1970, on the server's clock.
    expires_at: i64,
}

impl<'a> BatchWrite<'a> {
    /// `None` without sales.
    pub(super) fn new(plan: &'a BatchPlan<'_>, expires_at: i64) -> Option<Self> {
        Some(Self {
            units: plan.sales.last()?.units,
            sales: &plan.sales,
            read: plan.read.as_ref(),
            expires_at,
        })
    }

    /// The number of movements.
    pub(super) fn movements(&self) -> i64 {
        i64::try_from(self.sales.len()).expect("a short list")
    }

    /// The values of a write that the database decides: SKU, warehouse, strategy, the version that the
    /// level must have or NULL, expiry, units and movements of the batch.
    pub(crate) fn guarded(&self) -> [Value<'_>; 7] {
        let version = self.read.map(|level| level.version);
        self.shared(version, [self.units, self.movements()])
    }

    /// The values of an [`insert`]: SKU, warehouse, strategy, the version before the batch, expiry, the
    /// units that are available after it, movements.
    fn written(&self, available: i64, version: i64) -> [Value<'_>; 7] {
        self.shared(
            Some(version - self.movements()),
            [available, self.movements()],
        )
    }

    fn shared(&self, version: Option<i64>, [sixth, seventh]: [i64; 2]) -> [Value<'_>; 7] {
        let Deduction {
            sku,
            warehouse,
            strategy,
            ..
        } = self.sales[0].deduction;
        values![
            sku.as_str(),
            warehouse.as_str(),
            *strategy,
            version,
            self.expires_at,
            sixth,
            seventh,
        ]
    }

    /// The movements, in their order.
    pub(crate) fn sold(&self) -> impl Iterator<Item = Sold<'a>> {
        let (units, last) = (self.units, self.movements() - 1);
        self.sales.iter().zip(0..).map(move |(sale, before)| Sold {
            deduction: sale.deduction,
            units_after: units - sale.units,
            sales_after: last - before,
        })
    }

    /// The [`Sold::json`] of the movements as a JSON array.
    pub(crate) fn json(&self) -> String {
        json(self.sold().map(Sold::json))
    }
}

/// Inserts sales, which `sales` has as a table. `level`: SKU, warehouse, the units that are available after
/// its last sale, and the version before its first one. `in_time`: a condition on each row.
pub(crate) fn insert<D: Dialect>(
    sales: &str,
    [sku, warehouse, available, version]: [&str; 4],
    strategy: &str,
    in_time: &str,
) -> String {
    let remarks = Remarks::NAMES.join(", ");
    format!(
        "INSERT INTO movement ({columns})
            SELECT operation_id, 0, {sku}, {warehouse}, 'deducted', delta, NULL, {strategy}, caller,
                idempotency_key, request_hash, {remarks}, {available} + units_after,
                {version} + number
            FROM {sales}{in_time}",
        columns = *INSERT_COLUMNS,
    )
}

/// Inserts the sales with the values of [`BatchWrite::written`], in time.
pub(crate) fn insert_in_time<D: Dialect>(sales: &str) -> String {
    let in_time = format!(" WHERE {} < $5", D::WORDS.now);
    insert::<D>(sales, ["$1", "$2", "$6", "$4"], "$3", &in_time)
}

/// Inserts the sales of a batch, which `sales` has as a table made from the JSON in `$8`.
pub(crate) async fn insert_json<D: Dialect>(
    tx: &mut Transaction<D>,
    sales: &str,
    write: &BatchWrite<'_>,
    values: &[Value<'_>],
) -> sqlx::Result<u64> {
    let json = write.json();
    let values = [values, &values![&*json]].concat();
    let statement = Statement::built(insert_in_time::<D>(sales));
    tx.execute(statement, &values).await
}

/// A plan, how the write of its sales ended, and when that expires.
type Tried<'a> = (BatchPlan<'a>, Result<Written>, Expiry);

/// How a conditional write of a batch ended.
#[derive(Debug)]
pub(crate) enum Written {
    /// The batch has no sales.
    Nothing,
    /// Level and movements are committed, and this many units are available.
    Committed(i64),
    /// The condition does not hold, or the attempt has expired.
    Refused,
    /// The ledger already has one of the operations or keys.
    Duplicate,
}

impl<D: Dialect> BatchStore for SqlStore<D> {
    async fn attempt(&self, batch: &[Deduction], guard: BatchGuard) -> Result<BatchAttempt> {
        let mut connections = self.writers.for_row(&batch[0].sku);
        loop {
            let connection = connections.acquire().await?;
            let tried = match guard {
                BatchGuard::Available => {
                    let plan = BatchPlan::unread(batch);
                    Ok(self.write_in_one_message(connection, plan).await)
                }
                BatchGuard::Version => self.write_on_version(connection, batch).await,
                BatchGuard::RowLock => self.write_under_lock(connection, batch).await,
            };
            match tried {
                Err(error) | Ok((_, Err(error), _)) if connections.again(&error) => {}
                tried => return self.attempted(tried?).await,
            }
        }
    }

    async fn alone(&self, deduction: &Deduction) -> BatchAnswer {
        self.deduct(deduction, SqlMethod::Guarded).await
    }

    async fn write_merged(&self, plans: &[&BatchPlan<'_>]) -> Result<Option<Vec<Option<i64>>>> {
        self.write_levels(plans).await
    }

    async fn recorded_sales(&self, plans: &[&BatchPlan<'_>]) -> Result<Vec<Movement>> {
        self.recorded_in_levels(plans).await
    }
}

impl<D: Dialect> SqlStore<D> {
    /// Reads without a lock, and writes on condition of the version.
    async fn write_on_version<'a>(
        &self,
        mut connection: PooledConnection<D>,
        batch: &'a [Deduction],
    ) -> Result<Tried<'a>> {
        let plan = self
            .read(3 * READ, plan(&mut connection, batch, ""))
            .await?;
        Ok(self.write_in_one_message(connection, plan).await)
    }

    async fn write_in_one_message<'a>(
        &self,
        connection: PooledConnection<D>,
        plan: BatchPlan<'a>,
    ) -> Tried<'a> {
        let expiry = connection.expiry(plan.deadline());
        let written = match BatchWrite::new(&plan, expiry.at) {
            Some(write) => self.write(D::write_batch(connection, &write)).await,
            None => Ok(Written::Nothing),
        };
        (plan, written, expiry)
    }

    /// What the end of the conditional write means for the deductions.
    async fn attempted(&self, (plan, written, expiry): Tried<'_>) -> Result<BatchAttempt> {
        Ok(match written {
            Ok(Written::Nothing) => BatchAttempt::Answered(plan.without_sales()),
            Ok(Written::Committed(available)) => BatchAttempt::Answered(plan.committed(available)),
            Ok(Written::Refused) => BatchAttempt::Conflict,
            Ok(Written::Duplicate) => BatchAttempt::Duplicate,
            // The database may refuse a row of one deduction, for example by a constraint of the operator.
            Err(StoreError::KeyInFlight(_) | StoreError::Unexpected(_) | StoreError::Bug(_)) => {
                BatchAttempt::Alone
            }
            Err(StoreError::LockWait(error)) => {
                if self.has_key_in_flight(&plan).await? {
                    BatchAttempt::Alone
                } else {
                    BatchAttempt::Answered(plan.failed(StoreError::LockWait(error)))
                }
            }
            Err(error) => BatchAttempt::Answered(plan.failed(error.expiring(expiry))),
        })
    }

    /// The row is locked from the reading to the commit.
    async fn write_under_lock<'a>(
        &self,
        connection: PooledConnection<D>,
        batch: &'a [Deduction],
    ) -> Result<Tried<'a>> {
        let reading = async {
            let mut tx = connection.begin(D::WORDS.begin).await?;
            let plan = plan(&mut tx, batch, D::WORDS.lock_rows).await?;
            Ok((tx, plan))
        };
        let (tx, plan) = self.read(3 * READ, reading).await?;
        let expiry = tx.expiry(plan.deadline());
        let written = if let Some(write) = BatchWrite::new(&plan, expiry.at) {
            self.write(write_under_lock(tx, &write)).await
        } else {
            tx.roll_back().await;
            Ok(Written::Nothing)
        };
        // The outcome of a COMMIT is visible to the next transaction that locks the row.
        Ok((plan, written, Expiry::passed()))
    }

    /// Whether another transaction is recording the key of one of the sales, as far as the database
    /// can tell.
    async fn has_key_in_flight(&self, plan: &BatchPlan<'_>) -> Result<bool> {
        let (Some(begin), Some(first)) = (D::WORDS.begin_read_uncommitted, plan.sales.first())
        else {
            return Ok(false);
        };
        let pool = self.writers.for_sku(&first.deduction.sku);
        self.read(2 * READ, async {
            let mut tx = pool.begin(begin).await?;
            let sales = plan.sales.iter().map(|sale| sale.deduction);
            let found = recorded_among(&mut tx, sales).await?;
            tx.roll_back().await;
            Ok(!found.is_empty())
        })
        .await
    }
}

/// Writes the level that was read under a lock, and the movements, and commits.
async fn write_under_lock<D: Dialect>(
    mut tx: Transaction<D>,
    write: &BatchWrite<'_>,
) -> Result<Written> {
    let update = Statement::built(update("TRUE"));
    let updated = tx.execute(update, &write.guarded()).await;
    let updated = updated.map_err(before_commit)?;
    let Some(read) = write.read.filter(|_| updated > 0) else {
        tx.roll_back().await;
        return Ok(Written::Refused);
    };
    let after = (
        read.available() - write.units,
        read.version + write.movements(),
    );
    insert_and_commit(tx, write, after).await
}

/// Inserts the movements, and commits. `after`: the units that are available after the batch, and the
/// version of the level then.
pub(crate) async fn insert_and_commit<D: Dialect>(
    mut tx: Transaction<D>,
    write: &BatchWrite<'_>,
    after: (i64, i64),
) -> Result<Written> {
    let (available, version) = after;
    let values = write.written(available, version);
    let answer = D::insert_batch(&mut tx, write, &values).await;
    // Each row compares the clock with the expiry.
    let is_late = matches!(answer, Ok(rows) if rows != write.sales.len() as u64);
    let waits_for_keys = !D::EMBEDDED && D::WORDS.begin_read_uncommitted.is_none();
    let recorded = inserted(answer, waits_for_keys)?;
    if is_late {
        tx.roll_back().await;
        return Err(StoreError::Aborted("the last message was too late".into()));
    }
    match recorded {
        Inserted::New => {
            tx.commit().await?;
            Ok(Written::Committed(available))
        }
        Inserted::Duplicate => {
            tx.roll_back().await;
            Ok(Written::Duplicate)
        }
    }
}

/// Reads the level, then the ledger, and decides.
async fn plan<'a, D: Dialect>(
    connection: &mut PooledConnection<D>,
    batch: &'a [Deduction],
    lock_rows: &str,
) -> Result<BatchPlan<'a>> {
    let place = values![batch[0].sku.as_str(), batch[0].warehouse.as_str()];
    let found = connection.fetch(statements::level(lock_rows), &place).await;
    let found: Vec<LevelRow> = found.map_err(before_commit)?;
    let level: Option<StockLevel> = rows::levels(found).pop();
    let recorded = recorded_among(connection, batch).await?;
    Ok(BatchPlan::new(level, &recorded, batch))
}

/// The movements with the keys of the deductions, or with their operations if they have no key. One
/// look-up of each is enough: an operation is always recorded with its key.
pub(super) async fn recorded_among<'a, D: Dialect>(
    connection: &mut PooledConnection<D>,
    deductions: impl IntoIterator<Item = &'a Deduction>,
) -> Result<Vec<Movement>> {
    let (mut keys, mut operations) = (Vec::new(), Vec::new());
    for deduction in deductions {
        match &deduction.idempotency {
            Some(one) => keys.push((one.caller.as_str(), one.key.as_str())),
            None => operations.push((Hex(deduction.operation.0.as_bytes()),)),
        }
    }
    let mut found: Vec<LedgerRow> = Vec::new();
    for (list, condition) in [
        (
            (!keys.is_empty()).then(|| json(keys.into_iter())),
            "movement.caller = wanted.text_1 AND movement.idempotency_key = wanted.text_2",
        ),
        (
            (!operations.is_empty()).then(|| json(operations.into_iter())),
            "movement.operation_id = wanted.bytes AND movement.line = 0",
        ),
    ] {
        let Some(list) = list else { continue };
        let from = format!("{} JOIN movement ON {condition}", D::WORDS.wanted);
        let statement = Statement {
            // PostgreSQL would keep a plan that reads the whole ledger, made when that was short.
            persistent: D::WORDS.plans_for_any_size,
            ..movements::<D>(&from)
        };
        let rows = connection.fetch(statement, &values![&*list]).await;
        found.append(&mut rows.map_err(before_commit)?);
    }
    found.into_iter().map(LedgerRow::movement).collect()
}
