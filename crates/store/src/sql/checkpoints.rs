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
use tracing::warn;

use super::SqlStore;
use super::dialect::{Dialect, Statement, values};
use super::errors::conflict_if_duplicate;
use super::pool::Pool;
use super::statements::{IN_ORDER, sums};
use crate::{Result, StoreError};
use stocklock_core::stock::{Home, Sku, Warehouse};

mod first;

pub(super) use first::{set_numbered, write_first};

/// How many movements may follow a checkpoint. An audit reads that many in a few milliseconds.
const DUE_AFTER: i64 = 1_000;

/// How many movements one step sums: few enough for the time limit of a statement.
const STEP: i64 = 10_000;

/// How many levels are read at once.
const LEVELS: usize = 500;

/// How many levels one round looks at. The next round goes on behind them.
const LEVELS_PER_ROUND: usize = 20_000;

/// The last `level_version` that a level has given.
const LAST_VERSION: &str =
    "CASE s.home WHEN 'sql' THEN s.version ELSE coalesce(s.ledger_version, 0) END";

fn select_levels(rest: &str) -> Statement {
    Statement::built(format!(
        "SELECT s.sku, s.warehouse, s.home, {LAST_VERSION} AS last_version, c.level_version,
            coalesce(c.received, 0) AS received, coalesce(c.sold, 0) AS sold,
            coalesce(c.held, 0) AS held
        FROM stock s LEFT JOIN checkpoint c ON c.sku = s.sku AND c.warehouse = s.warehouse
        WHERE {rest}"
    ))
}

/// The next [`LEVELS`] after SKU and warehouse of a position.
fn levels() -> Statement {
    select_levels(&format!(
        "s.sku >= $1 AND (s.sku > $1 OR s.warehouse > $2)
        ORDER BY s.sku, s.warehouse LIMIT {LEVELS}"
    ))
}

/// SKU and warehouse.
fn level() -> Statement {
    select_levels("s.sku = $1 AND s.warehouse = $2")
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

/// Zero while older replicas may write.
const NUMBERED: &str = "SELECT count(*) FROM numbering";

/// SKU, warehouse, version, sums, journal entry.
const INSERT: &str = "INSERT INTO checkpoint
    (sku, warehouse, level_version, received, sold, held, journal_millis, journal_number)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";

/// The same, then the version and the sums that it must still have.
const UPDATE: &str =
    "UPDATE checkpoint SET level_version = $3, received = $4, sold = $5, held = $6,
        journal_millis = $7, journal_number = $8
    WHERE sku = $1 AND warehouse = $2
        AND level_version = $9 AND received = $10 AND sold = $11 AND held = $12";

/// A level, and its checkpoint, or zeros.
#[derive(Debug, Clone, FromRow)]
struct LevelRow {
    #[sqlx(try_from = "String")]
    sku: Sku,
    #[sqlx(try_from = "String")]
    warehouse: Warehouse,
    home: String,
    last_version: i64,
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

/// What a replica remembers between its rounds.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    /// SKU and warehouse of the last level that was looked at; empty at the start.
    after: (String, String),
    /// Whether it has warned of movements of older releases.
    warned: bool,
}

/// Writes the checkpoints of a database.
#[async_trait]
pub(crate) trait Checkpoints: Send + Sync {
    /// Writes those that are due among the next levels.
    async fn write_due(&self) -> Result<()>;
}

#[async_trait]
impl<D: Dialect> Checkpoints for SqlStore<D> {
    async fn write_due(&self) -> Result<()> {
        let mut rounds = self.rounds.lock().await;
        // While older replicas may write, nothing is due.
        let numbered: Vec<(i64,)> = self.select(&self.ledger_readers, NUMBERED, &[]).await?;
        if numbered == [(0,)] {
            return Ok(());
        }
        let mut failed = Ok(());
        for _ in 0..LEVELS_PER_ROUND / LEVELS {
            let page: Vec<LevelRow> = {
                let (sku, warehouse) = &rounds.after;
                let page = values![&**sku, &**warehouse];
                self.select(&self.ledger_readers, levels(), &page).await?
            };
            let is_last = page.len() < LEVELS;
            rounds.after = match page.last() {
                Some(last) if !is_last => (last.sku.to_string(), last.warehouse.to_string()),
                _ => Default::default(),
            };
            for level in page.into_iter().filter(LevelRow::is_due) {
                let (sku, warehouse) = (level.sku.clone(), level.warehouse.clone());
                match self.catch_up(level).await {
                    Ok(CaughtUp::Yes) => {}
                    Ok(CaughtUp::NotNumbered) if rounds.warned => {}
                    Ok(CaughtUp::NotNumbered) => {
                        rounds.warned = true;
                        warn!(
                            %sku, %warehouse,
                            "an older release has written movements, so audits sum all of them: run \
                             `stocklock migrate --finish` when no replica of it is left"
                        );
                    }
                    // Only this level: the others come first.
                    Err(
                        error @ (StoreError::TooSlow(_)
                        | StoreError::LockWait(_)
                        | StoreError::Aborted(_)),
                    ) => failed = Err(error),
                    Err(error) => return Err(error),
                }
            }
            if is_last {
                break;
            }
        }
        failed
    }
}

/// What [`SqlStore::catch_up`] found.
#[derive(Debug, Clone, Copy)]
enum CaughtUp {
    Yes,
    /// Not every movement has a `level_version`.
    NotNumbered,
}

impl LevelRow {
    fn is_due(&self) -> bool {
        self.last_version - self.level_version.unwrap_or(0) >= DUE_AFTER
    }
}

impl<D: Dialect> SqlStore<D> {
    /// Moves the checkpoint of a level forward, until fewer than [`DUE_AFTER`] movements follow, or
    /// another replica does.
    async fn catch_up(&self, mut level: LevelRow) -> Result<CaughtUp> {
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
            let mut found = self.select(&pool, statement(), &step).await?;
            let Some::<LevelSums>(found) = found.pop() else {
                return Ok(CaughtUp::Yes);
            };
            let newest = found.newest.unwrap_or(from);
            let is_in_sql = level.home == Home::Sql.as_str();
            // A gap of a whole step has no newest movement.
            let is_gap = newest == from && found.last_version > from;
            if is_in_sql && (is_gap || newest - from != found.movements) {
                return Ok(CaughtUp::NotNumbered);
            }
            if newest == from {
                return Ok(CaughtUp::Yes);
            }
            let before = level.clone();
            level.level_version = Some(newest);
            level.received += found.received;
            level.sold += found.sold;
            level.held += found.held;
            let pool = self.writers.for_sku(&sku);
            let written = self.write(write(&pool, &before, &level, &found));
            if !written.await? || found.last_version - newest < DUE_AFTER {
                return Ok(CaughtUp::Yes);
            }
        }
    }
}

/// Writes a checkpoint. Returns false if it is no longer what `before` says: then another process has
/// written it.
async fn write<D: Dialect>(
    pool: &Pool<D>,
    before: &LevelRow,
    level: &LevelRow,
    found: &LevelSums,
) -> Result<bool> {
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
    let mut tx = pool.begin(D::WORDS.begin).await?;
    let written = match before.level_version {
        None => tx.execute(INSERT, &columns).await,
        Some(version) => {
            let unchanged = values![version, before.received, before.sold, before.held];
            tx.execute(UPDATE, &[&columns[..], &unchanged].concat())
                .await
        }
    };
    let is_written = match written.map_err(conflict_if_duplicate) {
        Ok(rows) => rows > 0,
        Err(StoreError::Aborted(_)) => false,
        Err(error) => return Err(error),
    };
    if is_written {
        tx.commit().await?;
    } else {
        tx.roll_back().await;
    }
    Ok(is_written)
}
