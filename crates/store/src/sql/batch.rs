//! Many deductions of one level, decided on one reading and written together.
//!
//! Reads without a lock fetch the level, then what the ledger has of the batch. The core decides
//! ([`BatchPlan`]). One message writes the level, on condition of its version and of the expiry, with
//! all movements, and commits. Under a lock, all that is one transaction.

use serde::{Serialize, Serializer};

use super::dialect::{Dialect, Statement, Value, values};
use super::errors::{Inserted, before_commit, inserted};
use super::ledger_row::LedgerRow;
use super::pool::{PooledConnection, Transaction};
use super::reads::movements;
use super::rows::{self, LevelRow};
use super::statements::{self, INSERT_COLUMNS};
use super::{READ, SqlStore};
use crate::{Result, StoreError};
use stocklock_core::ports::{
    BatchAnswer, BatchAttempt, BatchPlan, BatchSale, BatchStore, DeductionStore as _, Expiry,
    LevelAfter, SqlMethod,
};
use stocklock_core::stock::{Deduction, Movement, Remarks, StockLevel};

/// SKU, warehouse, `on_hand`, version; the version that was read.
const UPDATE_LEVEL: &str = "UPDATE stock SET on_hand = $3, version = $4
    WHERE sku = $1 AND warehouse = $2 AND home = 'sql' AND version = $5";

/// The sales of a batch, and the level that they leave.
#[derive(Debug)]
pub(crate) struct BatchWrite<'a> {
    pub(crate) sales: &'a [BatchSale<'a>],
    pub(crate) after: LevelAfter,
    /// The version of the level that the sales were computed from.
    pub(crate) version: i64,
    /// In milliseconds since 1970, on the server's clock.
    pub(crate) expires_at: i64,
}

impl<'a> BatchWrite<'a> {
    /// `None` without sales.
    fn new(sales: &'a [BatchSale<'a>], expires_at: i64) -> Option<Self> {
        let ([first, ..], [.., last]) = (sales, sales) else {
            return None;
        };
        Some(Self {
            sales,
            after: last.after,
            version: first.after.version - 1,
            expires_at,
        })
    }

    /// The values that all movements share, and those of the level: SKU, warehouse, strategy, the
    /// version that was read, expiry, `on_hand` and version after the sales.
    pub(crate) fn shared(&self) -> [Value<'_>; 7] {
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
            self.version,
            self.expires_at,
            self.after.on_hand,
            self.after.version,
        ]
    }

    /// The other values of the movements as a JSON array with an array for each: operation, delta,
    /// `available_after`, caller, key, hash, remarks. Bytes are hexadecimal digits.
    pub(crate) fn json(&self) -> String {
        let rows = self.sales.iter().map(|BatchSale { deduction, after }| {
            let idempotency = deduction.idempotency.as_ref();
            (
                Hex(deduction.operation.0.as_bytes()),
                -deduction.quantity.units(),
                after.available,
                deduction.caller(),
                idempotency.map(|one| one.key.as_str()),
                idempotency.map(|one| Hex(&one.hash.0)),
                deduction.remarks.texts(),
            )
        });
        json(rows)
    }
}

/// A list of values that JSON can represent.
fn json<T: Serialize>(rows: impl Iterator<Item = T>) -> String {
    let rows: Vec<T> = rows.collect();
    serde_json::to_string(&rows).expect("texts and numbers are JSON")
}

/// At most 32 bytes as hexadecimal digits.
struct Hex<'a>(&'a [u8]);

impl Serialize for Hex<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut digits = [0; 64];
        for (byte, pair) in self.0.iter().zip(digits.chunks_exact_mut(2)) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 0xf)];
        }
        let digits = &digits[..2 * self.0.len()];
        serializer.serialize_str(str::from_utf8(digits).expect("digits are ASCII"))
    }
}

/// Inserts the sales of a batch, which `sales` has as a table. `now`: only if the attempt has not
/// expired by this clock.
pub(crate) fn insert(sales: &str, now: &str) -> String {
    let remarks = Remarks::NAMES.join(", ");
    let in_time = if now.is_empty() {
        String::new()
    } else {
        format!(" WHERE {now} < $5")
    };
    format!(
        "INSERT INTO movement ({columns})
            SELECT operation_id, 0, $1, $2, 'deducted', delta, NULL, $3, 'committed', caller,
                idempotency_key, request_hash, {remarks}, available_after, $4 + number
            FROM {sales}{in_time}",
        columns = *INSERT_COLUMNS,
    )
}

/// Inserts the sales of a batch, which `sales` has as a table made from the JSON in `$6`.
pub(crate) async fn insert_json<D: Dialect>(
    tx: &mut Transaction<D>,
    sales: &str,
    write: &BatchWrite<'_>,
) -> sqlx::Result<u64> {
    let json = write.json();
    let values = [&write.shared()[..5], &values![&*json]].concat();
    let statement = Statement::built(insert(sales, D::WORDS.now));
    tx.execute(statement, &values).await
}

/// How a conditional write of a batch ended.
#[derive(Debug)]
pub(crate) enum Written {
    /// Level and movements are committed.
    Committed,
    /// The level has another version, or the attempt has expired.
    Refused,
    /// The ledger already has one of the operations or keys.
    Duplicate,
}

impl<D: Dialect> BatchStore for SqlStore<D> {
    async fn attempt(&self, batch: &[Deduction], lock: bool) -> Result<BatchAttempt> {
        if lock {
            self.attempt_under_lock(batch).await
        } else {
            self.attempt_on_version(batch).await
        }
    }

    async fn alone(&self, deduction: &Deduction) -> BatchAnswer {
        self.deduct_in_sql(deduction, SqlMethod::Guarded).await
    }
}

impl<D: Dialect> SqlStore<D> {
    /// Reads without a lock, and writes on condition of the version.
    async fn attempt_on_version(&self, batch: &[Deduction]) -> Result<BatchAttempt> {
        let pool = self.writers.for_sku(&batch[0].sku);
        let reading = async {
            let mut connection = pool.acquire().await?;
            let plan = plan(&mut connection, batch, "").await?;
            Ok((connection, plan))
        };
        let (connection, plan) = self.read(3 * READ, reading).await?;
        let expiry = connection.expiry(plan.deadline());
        let Some(write) = BatchWrite::new(&plan.sales, expiry.at) else {
            return Ok(BatchAttempt::Answered(plan.committed()));
        };
        let written = self.write(D::write_batch(connection, &write)).await;
        self.attempted(plan, written, expiry).await
    }

    /// What the end of the conditional write means for the deductions.
    async fn attempted(
        &self,
        plan: BatchPlan<'_>,
        written: Result<Written>,
        expiry: Expiry,
    ) -> Result<BatchAttempt> {
        Ok(match written {
            Ok(Written::Committed) => BatchAttempt::Answered(plan.committed()),
            Ok(Written::Refused) => BatchAttempt::Conflict,
            Ok(Written::Duplicate) => BatchAttempt::Duplicate,
            // The database may refuse a row of one deduction, for example by a constraint of the operator.
            Err(StoreError::KeyInFlight(_) | StoreError::Bug(_)) => BatchAttempt::Alone,
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
    async fn attempt_under_lock(&self, batch: &[Deduction]) -> Result<BatchAttempt> {
        let pool = self.writers.for_sku(&batch[0].sku);
        let reading = async {
            let mut tx = pool.begin(D::WORDS.begin).await?;
            let plan = plan(&mut tx, batch, D::WORDS.lock_rows).await?;
            Ok((tx, plan))
        };
        let (tx, plan) = self.read(3 * READ, reading).await?;
        let expiry = tx.expiry(plan.deadline());
        let Some(write) = BatchWrite::new(&plan.sales, expiry.at) else {
            tx.roll_back().await;
            return Ok(BatchAttempt::Answered(plan.committed()));
        };
        let written = self.write(write_and_commit(tx, &write)).await;
        // The outcome of a COMMIT is visible to the next transaction that locks the row.
        self.attempted(plan, written, Expiry::passed()).await
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

/// Writes the level, if it still has the version that was read, and the movements, and commits.
pub(crate) async fn write_and_commit<D: Dialect>(
    mut tx: Transaction<D>,
    write: &BatchWrite<'_>,
) -> Result<Written> {
    let [sku, warehouse, _, version, _, on_hand, version_after] = write.shared();
    let level = [sku, warehouse, on_hand, version_after, version];
    let updated = tx.execute(UPDATE_LEVEL, &level).await;
    if updated.map_err(before_commit)? == 0 {
        tx.roll_back().await;
        return Ok(Written::Refused);
    }
    let answer = D::insert_batch(&mut tx, write).await;
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
            Ok(Written::Committed)
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
    let level: Option<StockLevel> = rows::levels(found)?.pop();
    let recorded = recorded_among(connection, batch).await?;
    Ok(BatchPlan::new(level, &recorded, batch))
}

/// The movements with the keys of the deductions, or with their operations if they have no key. One
/// look-up of each is enough: an operation is always recorded with its key.
async fn recorded_among<'a, D: Dialect>(
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
