//! The first checkpoints of a ledger that has movements of older releases, and the mark that no replica
//! of those is left.
//!
//! Guarantees: a checkpoint is the sum of all movements in one snapshot, whatever replicas write at the
//! same time.

use tokio::time::{Duration, Instant, sleep};
use tracing::info;

use super::{LevelRow, LevelSums, level, level_sums, levels, write};
use crate::sql::dialect::{AnyRow, Dialect, Statement, Value, values};
use crate::sql::errors::before_commit;
use crate::sql::migration::MigrationServer;
use crate::sql::pool::{Pool, ServerHealth};
use crate::{Result, StoreError};

/// How long [`write_first`] waits for a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// How often [`write_first`] logs its progress.
const PROGRESS: Duration = Duration::from_secs(10);

/// How often [`write_first`] tries a level again that a replica has locked or written at the same time.
const ATTEMPTS: u32 = 50;

/// The pause before the next attempt.
const PAUSE: Duration = Duration::from_millis(100);

/// Says that no older replica is left.
pub(in crate::sql) async fn set_numbered<D: Dialect + MigrationServer>(server: &D) -> Result<()> {
    let health = ServerHealth::new(CONNECT_LIMIT, D::EMBEDDED);
    let pool = Pool::new(server.clone(), 1, &health);
    let mut tx = pool.begin(D::WORDS.begin).await?;
    let numbered = Statement::built(format!(
        "INSERT INTO numbering SELECT current_timestamp{}
        WHERE NOT EXISTS (SELECT 1 FROM numbering)",
        D::WORDS.no_table
    ));
    let written = tx.execute(numbered, &[]).await;
    written.map_err(before_commit)?;
    tx.commit().await?;
    pool.close().await;
    Ok(())
}

/// Writes a checkpoint of every level from the sum of all its movements. May take any time. From then
/// on, replicas write the next ones. If it fails, it can be repeated.
pub(in crate::sql) async fn write_first<D: Dialect + MigrationServer>(server: &D) -> Result<u64> {
    let health = ServerHealth::new(CONNECT_LIMIT, D::EMBEDDED);
    let pool = Pool::new(server.clone(), 1, &health);
    let (mut written, mut logged) = (0, Instant::now());
    let mut after = (String::new(), String::new());
    loop {
        let page = values![&*after.0, &*after.1];
        let page: Vec<LevelRow> = select(&pool, levels(), &page).await?;
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
    pool.close().await;
    set_numbered(server).await?;
    Ok(written)
}

async fn select<D: Dialect, T: AnyRow>(
    pool: &Pool<D>,
    statement: Statement,
    values: &[Value<'_>],
) -> Result<Vec<T>> {
    let mut tx = pool.begin("BEGIN").await?;
    let found = tx.fetch(statement, values).await;
    let found = found.map_err(before_commit)?;
    tx.roll_back().await;
    Ok(found)
}

/// Replaces the checkpoint of a level, while replicas may write it, too.
async fn write_full<D: Dialect>(pool: &Pool<D>, mut before: LevelRow) -> Result<()> {
    for attempt in 1.. {
        let place = values![before.sku.as_str(), before.warehouse.as_str()];
        let mut found = select(pool, level_sums::<D>("movement", ""), &place).await?;
        let Some::<LevelSums>(found) = found.pop() else {
            return Ok(());
        };
        let checkpoint = LevelRow {
            level_version: Some(found.last_version),
            received: found.received,
            sold: found.sold,
            held: found.held,
            ..before.clone()
        };
        match write(pool, &before, &checkpoint, &found).await {
            Ok(true) => return Ok(()),
            Ok(false) | Err(StoreError::Aborted(_) | StoreError::LockWait(_))
                if attempt < ATTEMPTS => {}
            Ok(false) => break,
            Err(error) => return Err(error),
        }
        sleep(PAUSE).await;
        let now = values![before.sku.as_str(), before.warehouse.as_str()];
        match select(pool, level(), &now).await?.pop() {
            Some(level) => before = level,
            None => return Ok(()),
        }
    }
    Err(StoreError::LockWait(
        format!(
            "replicas write the checkpoint of {} all the time",
            before.sku
        )
        .into(),
    ))
}
