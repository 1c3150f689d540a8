//! Checkpoints: the sums of a level's movements up to a `level_version`. An audit reads only the
//! movements after it.
//!
//! Replicas write them in the background, whenever a level is [`DUE_AFTER`] movements past its last
//! one, so sales do no work for them. A step sums at most [`STEP`] movements in one statement, which is
//! one snapshot. It is right after any crash and with any number of writers: a movement is committed
//! before the level's next one gets its version, and a checkpoint only moves forward. The first
//! checkpoint of a level that has movements of older releases is written by [`write_first`].

use async_trait::async_trait;
use sqlx::FromRow;
use tokio::time::{Duration, Instant};
use tracing::{info, warn};

use super::SqlStore;
use super::dialect::{Dialect, Statement, values};
use super::errors::{before_commit, conflict_if_duplicate};
use super::migration::MigrationServer;
use super::pool::{Pool, ServerHealth, Transaction};
use super::statements::{IN_ORDER, sums};
use crate::{Result, StoreError};
use stocklock_core::stock::{Home, Sku, Warehouse};

/// How many movements may follow a checkpoint. An audit reads that many in a few milliseconds.
const DUE_AFTER: i64 = 1_000;

/// How many movements one step sums: few enough for the time limit of a statement.
const STEP: i64 = 10_000;

/// How many levels are read at once.
const LEVELS: i64 = 100;

/// The last `level_version` that a level has given.
const LAST_VERSION: &str =
    "CASE s.home WHEN 'sql' THEN s.version ELSE coalesce(s.ledger_version, 0) END";

/// SKU and warehouse of a position, versions, limit. Nothing is due while older replicas may write.
fn due_levels() -> Statement {
    Statement::built(format!(
        "SELECT s.sku, s.warehouse, s.home, c.level_version, coalesce(c.received, 0) AS received,
            coalesce(c.sold, 0) AS sold, coalesce(c.held, 0) AS held
        FROM stock s LEFT JOIN checkpoint c ON c.sku = s.sku AND c.warehouse = s.warehouse
        WHERE s.sku >= $1 AND (s.sku > $1 OR s.warehouse > $2)
            AND {LAST_VERSION} - coalesce(c.level_version, 0) >= $3
            AND EXISTS (SELECT 1 FROM numbering)
        ORDER BY s.sku, s.warehouse LIMIT $4"
    ))
}

/// The journal entry of the mirror is at least as late as those of the movements: SKU, warehouse, and
/// the parameters of `rest`, which ends the condition on the `movements`.
fn level_sums<D: Dialect>(movements: &str, rest: &str) -> Statement {
    Statement::built(format!(
        "SELECT {LAST_VERSION} AS last_version, s.journal_millis, s.journal_number,
            m.received, m.sold, m.held, m.movements, m.newest
        FROM stock s CROSS JOIN (
            SELECT {} FROM {movements} WHERE sku = $1 AND warehouse = $2{rest}
        ) m WHERE s.sku = $1 AND s.warehouse = $2",
        sums(&D::WORDS)
    ))
}

/// SKU, warehouse, version, sums, journal entry.
const INSERT: &str = "INSERT INTO checkpoint
    (sku, warehouse, level_version, received, sold, held, journal_millis, journal_number)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";

const UPDATE: &str =
    "UPDATE checkpoint SET level_version = $3, received = $4, sold = $5, held = $6,
        journal_millis = $7, journal_number = $8
    WHERE sku = $1 AND warehouse = $2 AND level_version <= $3";

/// A level, and its checkpoint, or zeros.
#[derive(Debug, Clone, FromRow)]
struct DueRow {
    #[sqlx(try_from = "String")]
    sku: Sku,
    #[sqlx(try_from = "String")]
    warehouse: Warehouse,
    home: String,
    level_version: Option<i64>,
    received: i64,
    sold: i64,
    held: i64,
}

/// What [`level_sums`] reads.
#[derive(Debug, FromRow)]
struct LevelSums {
    last_version: i64,
    journal_millis: i64,
    journal_number: i64,
    received: i64,
    sold: i64,
    held: i64,
    movements: i64,
    newest: Option<i64>,
}

/// Writes the checkpoints of a database.
#[async_trait]
pub(crate) trait Checkpoints: Send + Sync {
    /// Writes those that are due.
    async fn write_due(&self) -> Result<()>;
}

#[async_trait]
impl<D: Dialect> Checkpoints for SqlStore<D> {
    async fn write_due(&self) -> Result<()> {
        let mut after = (String::new(), String::new());
        let mut failed = Ok(());
        loop {
            let page = values![&*after.0, &*after.1, DUE_AFTER, LEVELS];
            let due = self.select(&self.ledger_readers, due_levels(), &page).await;
            let due: Vec<DueRow> = due?;
            let Some(last) = due.last() else {
                return failed;
            };
            after = (last.sku.to_string(), last.warehouse.to_string());
            for level in due {
                match self.catch_up(level).await {
                    // The other levels come first.
                    slow @ Err(StoreError::TooSlow(_)) => failed = slow,
                    written => written?,
                }
            }
        }
    }
}

impl<D: Dialect> SqlStore<D> {
    /// Moves the checkpoint of a level forward, until fewer than [`DUE_AFTER`] movements follow.
    async fn catch_up(&self, mut level: DueRow) -> Result<()> {
        let movements = D::WORDS.movements_by(IN_ORDER);
        let statement = || {
            level_sums::<D>(
                &movements,
                " AND level_version > $3 AND level_version <= $4",
            )
        };
        loop {
            let from = level.level_version.unwrap_or(0);
            let (sku, warehouse) = (level.sku.clone(), level.warehouse.clone());
            let step = values![sku.as_str(), warehouse.as_str(), from, from + STEP];
            let pool = self.ledger_readers.for_sku(&sku);
            let found = self.select(&pool, statement(), &step).await?;
            let Some(LevelSums {
                newest: Some(newest),
                ..
            }) = found.first()
            else {
                return Ok(());
            };
            let (newest, found) = (*newest, &found[0]);
            let is_in_sql = level.home == Home::Sql.as_str();
            if is_in_sql && newest - from != found.movements {
                warn!(
                    %sku, %warehouse,
                    "an older release has written movements, so audits sum all of them: run \
                     `stocklock migrate --finish` when no replica of it is left"
                );
                return Ok(());
            }
            level.received += found.received;
            level.sold += found.sold;
            level.held += found.held;
            let is_first = level.level_version.replace(newest).is_none();
            let written = self.write(async {
                let mut tx = self.writers.for_sku(&sku).begin(D::WORDS.begin).await?;
                write(&mut tx, &level, found, is_first).await?;
                tx.commit().await
            });
            match written.await {
                // Another replica has written it.
                Err(StoreError::Aborted(_)) if is_first => return Ok(()),
                written => written?,
            }
            if found.last_version - newest < DUE_AFTER {
                return Ok(());
            }
        }
    }
}

/// Writes a checkpoint, unless there is a later one.
async fn write<D: Dialect>(
    tx: &mut Transaction<D>,
    level: &DueRow,
    found: &LevelSums,
    is_first: bool,
) -> Result<()> {
    let columns = values![
        level.sku.as_str(),
        level.warehouse.as_str(),
        level.level_version,
        level.received,
        level.sold,
        level.held,
        found.journal_millis,
        found.journal_number,
    ];
    let statement = if is_first { INSERT } else { UPDATE };
    let written = tx.execute(statement, &columns).await;
    written.map(drop).map_err(conflict_if_duplicate)
}

/// How long [`write_first`] waits for a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// How often [`write_first`] logs its progress.
const PROGRESS: Duration = Duration::from_secs(10);

/// SKU and warehouse of a position, limit.
const ALL_LEVELS: &str = "SELECT s.sku, s.warehouse, s.home, c.level_version
    FROM stock s LEFT JOIN checkpoint c ON c.sku = s.sku AND c.warehouse = s.warehouse
    WHERE s.sku >= $1 AND (s.sku > $1 OR s.warehouse > $2)
    ORDER BY s.sku, s.warehouse LIMIT $3";

/// Says that no older replica is left.
fn numbered<D: Dialect>() -> Statement {
    Statement::built(format!(
        "INSERT INTO numbering SELECT current_timestamp{}
        WHERE NOT EXISTS (SELECT 1 FROM numbering)",
        D::WORDS.no_table
    ))
}

#[derive(Debug, FromRow)]
struct AnyLevelRow {
    #[sqlx(try_from = "String")]
    sku: Sku,
    #[sqlx(try_from = "String")]
    warehouse: Warehouse,
    home: String,
    level_version: Option<i64>,
}

/// Writes a checkpoint of every level from the sum of all its movements. May take any time. From then
/// on, replicas write the next ones. If it fails, it can be repeated.
pub(super) async fn write_first<D: Dialect + MigrationServer>(server: &D) -> Result<u64> {
    let health = ServerHealth::new(CONNECT_LIMIT, D::EMBEDDED);
    let pool = Pool::new(server.clone(), 1, &health);
    let (mut written, mut logged) = (0, Instant::now());
    let mut after = (String::new(), String::new());
    loop {
        let mut tx = pool.begin(D::WORDS.begin).await?;
        let page = tx
            .fetch(ALL_LEVELS, &values![&*after.0, &*after.1, LEVELS])
            .await;
        let page: Vec<AnyLevelRow> = page.map_err(before_commit)?;
        tx.roll_back().await;
        let Some(last) = page.last() else { break };
        after = (last.sku.to_string(), last.warehouse.to_string());
        for level in page {
            write_full(&pool, level).await?;
            written += 1;
            if logged.elapsed() > PROGRESS {
                info!("{written} levels have a checkpoint");
                logged = Instant::now();
            }
        }
    }
    let mut tx = pool.begin(D::WORDS.begin).await?;
    let numbered = tx.execute(numbered::<D>(), &[]).await;
    numbered.map_err(before_commit)?;
    tx.commit().await?;
    pool.close().await;
    Ok(written)
}

async fn write_full<D: Dialect>(pool: &Pool<D>, level: AnyLevelRow) -> Result<()> {
    let mut tx = pool.begin("BEGIN").await?;
    let place = values![level.sku.as_str(), level.warehouse.as_str()];
    let found = tx.fetch(level_sums::<D>("movement", ""), &place).await;
    let found: Vec<LevelSums> = found.map_err(before_commit)?;
    tx.roll_back().await;
    let Some(found) = found.first() else {
        return Ok(());
    };
    let checkpoint = DueRow {
        level_version: Some(found.last_version),
        received: found.received,
        sold: found.sold,
        held: found.held,
        sku: level.sku.clone(),
        warehouse: level.warehouse.clone(),
        home: level.home.clone(),
    };
    let mut tx = pool.begin(D::WORDS.begin).await?;
    write(&mut tx, &checkpoint, found, level.level_version.is_none()).await?;
    tx.commit().await
}
