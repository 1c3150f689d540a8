//! Checkpoints: the sums of a level's movements up to a `level_version`. An audit reads only the
//! movements after it.
//!
//! Replicas write them in the background, whenever a level is [`DUE_AFTER`] movements past its last
//! one, so sales do no work for them. A step sums at most [`STEP`] movements in one statement, which is
//! one snapshot. It is right after any crash and with any number of writers: a movement is committed
//! before the level's next one gets its version, and a checkpoint only moves forward.

use async_trait::async_trait;

use super::SqlStore;
use super::dialect::Dialect;
use super::errors::conflict_if_duplicate;
use super::pool::PooledConnection;
use super::rows::rows;
use super::statement::values;
use crate::{Result, StoreError};
use stocklock_core::stock::{Sku, Warehouse};

/// How many movements may follow a checkpoint. An audit reads that many in a few milliseconds.
const DUE_AFTER: i64 = 1_000;

/// How many movements one step sums: few enough for the time limit of a statement.
const STEP: i64 = 10_000;

/// How many levels are read at once.
const LEVELS: u16 = 500;

/// How many levels one round looks at. The next round continues behind them.
const LEVELS_PER_ROUND: u16 = 20_000;

rows! {
    /// A level, and its checkpoint, or zeros.
    #[derive(Debug, Clone)]
    struct LevelRow {
        sku: Sku as String,
        warehouse: Warehouse as String,
        version: i64,
        level_version: Option<i64>,
        received: i64,
        sold: i64,
        held: i64,
    }
}

rows! {
    /// What `checkpoint_step` reads.
    #[derive(Debug)]
    struct StepRow {
        version: i64,
        received: i64,
        sold: i64,
        held: i64,
    }
}

/// Writes the checkpoints of a database.
#[async_trait]
pub trait Checkpoints: Send + Sync {
    /// Writes those that are due among the next levels.
    async fn write_due(&self) -> Result<()>;
}

#[async_trait]
impl<D: Dialect> Checkpoints for SqlStore<D> {
    async fn write_due(&self) -> Result<()> {
        let mut after = self.checkpointed.lock().await;
        let mut failed = Ok(());
        for _ in 0..LEVELS_PER_ROUND / LEVELS {
            let page: Vec<LevelRow> = {
                let (sku, warehouse) = &*after;
                let page = values![&**sku, &**warehouse, i64::from(LEVELS)];
                let levels = &D::texts().checkpoint_levels;
                self.select(&self.ledger_readers, levels, &page).await?
            };
            let levels = page.iter().map(|level| (&level.sku, &level.warehouse));
            self.remember_unpublished(levels).await?;
            let is_last = page.len() < usize::from(LEVELS);
            *after = match page.last() {
                Some(last) if !is_last => (last.sku.to_string(), last.warehouse.to_string()),
                _ => Default::default(),
            };
            for level in page.into_iter().filter(LevelRow::is_due) {
                match self.catch_up(level).await {
                    Ok(()) => {}
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

impl LevelRow {
    fn is_due(&self) -> bool {
        self.version - self.level_version.unwrap_or(0) >= DUE_AFTER
    }
}

impl<D: Dialect> SqlStore<D> {
    /// Moves the checkpoint of a level forward, until fewer than [`DUE_AFTER`] movements follow, or
    /// another replica does.
    async fn catch_up(&self, mut level: LevelRow) -> Result<()> {
        while level.is_due() {
            let before = level.level_version;
            let from = before.unwrap_or(0);
            let place = (level.sku.clone(), level.warehouse.clone());
            let range = values![place.0.as_str(), place.1.as_str(), from, from + STEP];
            let pool = self.ledger_readers.for_sku(&place.0);
            let mut found = self
                .select(&pool, &D::texts().checkpoint_step, &range)
                .await?;
            let Some::<StepRow>(found) = found.pop() else {
                return Ok(());
            };
            level.version = found.version;
            // All movements up to the level's version are committed.
            level.level_version = Some(found.version.min(from + STEP));
            level.received += found.received;
            level.sold += found.sold;
            level.held += found.held;
            let level = &level;
            let written = self.write_row(&place.0, |connection| write(connection, before, level));
            if !written.await? {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Writes a checkpoint. Returns false if its version is no longer `before`: then another process has
/// written it.
async fn write<D: Dialect>(
    connection: PooledConnection<D>,
    before: Option<i64>,
    level: &LevelRow,
) -> Result<bool> {
    let columns = values![
        level.sku.as_str(),
        level.warehouse.as_str(),
        level.level_version,
        level.received,
        level.sold,
        level.held,
        before,
    ];
    let mut tx = connection.begin(D::texts().begin.as_str()).await?;
    let written = match before {
        None => {
            tx.execute(&D::texts().insert_checkpoint, &columns[..6])
                .await
        }
        Some(_) => tx.execute(&D::texts().update_checkpoint, &columns).await,
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
