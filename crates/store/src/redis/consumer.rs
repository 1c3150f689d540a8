//! The journal consumer: applies the entries of the journals to the SQL ledger.
//!
//! Every replica runs one consumer, and they share the work: Redis gives each entry to one consumer,
//! and another consumer claims the entries of one that died. Guarantees:
//! - An entry is acknowledged and deleted only after the SQL commit.
//! - An entry that is applied twice is recorded once.
//! - An entry that cannot be parsed or that SQL refuses stays in the journal, and the audit
//!   counts it. It does not block other entries.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::consumer_groups::{AT_ONCE, ConsumerConnection, GROUP, ReadEntry};
use super::entries::StreamEntry;
use super::entry_error_log::EntryErrorLog;
use super::failure::reading;
use super::keys::Shard;
use super::{RedisStore, scripts};
use crate::StoreError;
use crate::journal::JournalEntry;

/// How long a consumer waits for new entries before it does its periodic work.
const WAIT: Duration = Duration::from_millis(250);

/// How long a consumer lets entries gather if it read only a few. A transaction for every few entries
/// would cost the database several times as much.
const GATHER: Duration = Duration::from_millis(20);

/// A consumer claims entries that another consumer read this long ago and has not acknowledged. If
/// the other one is only slow, both apply the entry, which is harmless.
const CLAIM_AFTER: Duration = Duration::from_secs(2);

/// How often a consumer claims entries and reports how many movements wait.
const REFRESH_EVERY: Duration = Duration::from_millis(500);

/// A consumer that holds no entries and was idle for this long has ended. Its name is deleted.
const RETIRE_AFTER: Duration = Duration::from_secs(10);

/// How often a consumer deletes such names.
const RETIRE_EVERY: Duration = Duration::from_secs(5);

/// The longest pause after a failure. The first pause is an eighth of it.
const MAX_PAUSE: Duration = Duration::from_millis(800);

/// A transaction takes no further entry once it has this many movements.
const BATCH: usize = 500;

/// One consumer of all journals.
#[derive(Debug)]
pub struct JournalConsumer {
    store: Arc<RedisStore>,
    name: String,
    /// Entries that were read and are not known to be applied.
    backlog: Vec<ReadEntry>,
    entry_errors: EntryErrorLog,
    backoff: Backoff,
}

impl JournalConsumer {
    pub(crate) fn new(store: Arc<RedisStore>, replica: &str) -> Self {
        Self {
            store,
            // Unique per process: a restarted replica claims the entries of its predecessor.
            name: format!("{replica}-{:08x}", fastrand::u32(..)),
            backlog: Vec::new(),
            entry_errors: EntryErrorLog::new(),
            backoff: Backoff::default(),
        }
    }

    /// Applies entries until `stop` is cancelled, and then the entries that the journals have at that
    /// moment. Calls `report` with the number of waiting movements, or `None` if it is unknown.
    ///
    /// # Cancel safety
    /// After the future is dropped, other consumers claim the entries that it had read.
    pub async fn run(
        mut self,
        stop: CancellationToken,
        report: impl Fn(Option<u64>) + Send + Sync,
    ) {
        while let Err(error) = self.consume(&stop, &report).await {
            report(None);
            self.backoff.warn_once(&error);
            if stop.is_cancelled() {
                return;
            }
            self.backoff.pause(&stop).await;
        }
    }

    /// Applies entries on one connection until `stop` is cancelled, or Redis or SQL fails.
    async fn consume(
        &mut self,
        stop: &CancellationToken,
        report: &(impl Fn(Option<u64>) + Sync),
    ) -> Result<(), StoreError> {
        let store = Arc::clone(&self.store);
        let name = self.name.clone();
        let mut connection = store.consumer(&name, WAIT).await?;
        let (mut refreshed, mut retired) = (None, None);
        while !stop.is_cancelled() {
            if is_due(&mut refreshed, REFRESH_EVERY) {
                report(Some(connection.refresh().await.map_err(reading)?));
                self.claim(&mut connection).await?;
            }
            if is_due(&mut retired, RETIRE_EVERY) {
                connection.retire(RETIRE_AFTER).await.map_err(reading)?;
            }
            if self.backlog.is_empty() {
                self.backlog = connection.read_new(WAIT).await.map_err(reading)?;
            }
            let few = (1..AT_ONCE).contains(&self.backlog.len());
            match self.apply_backlog().await {
                Ok(()) => {
                    self.backoff.reset();
                    if few {
                        let _ = timeout(GATHER, stop.cancelled()).await;
                    }
                }
                Err(error) => {
                    self.backoff.warn_once(&error);
                    self.backoff.pause(stop).await;
                }
            }
        }
        self.finish(&mut connection, report).await
    }

    /// Applies the entries that are in the journals now. Entries that arrive later are left to other
    /// consumers, because they may never end.
    async fn finish(
        &mut self,
        connection: &mut ConsumerConnection<'_>,
        report: &(impl Fn(Option<u64>) + Sync),
    ) -> Result<(), StoreError> {
        connection.refresh().await.map_err(reading)?;
        let mut left = connection.entries;
        self.claim(connection).await?;
        self.apply_backlog().await?;
        while left > 0 {
            self.backlog = connection.read_new(Duration::ZERO).await.map_err(reading)?;
            if self.backlog.is_empty() {
                break;
            }
            left = left.saturating_sub(self.backlog.len());
            self.apply_backlog().await?;
        }
        report(Some(connection.refresh().await.map_err(reading)?));
        Ok(())
    }

    /// Claims entries of other consumers if the backlog is empty.
    async fn claim(&mut self, connection: &mut ConsumerConnection<'_>) -> Result<(), StoreError> {
        if self.backlog.is_empty() {
            self.backlog = connection.claim(CLAIM_AFTER).await.map_err(reading)?;
        }
        Ok(())
    }

    /// Applies the backlog to SQL in batches, and acknowledges each batch.
    async fn apply_backlog(&mut self) -> Result<(), StoreError> {
        while !self.backlog.is_empty() {
            let batch: Vec<ReadEntry> = self.backlog.drain(..batch_size(&self.backlog)).collect();
            if let Err(error) = self.apply_batch(&batch).await {
                // Entries that SQL refused stay in the journal and are claimed again later.
                if !matches!(error, StoreError::Bug(_)) {
                    self.backlog.splice(0..0, batch);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    async fn apply_batch(&mut self, batch: &[ReadEntry]) -> Result<(), StoreError> {
        let mut parsed = Vec::with_capacity(batch.len());
        for read in batch {
            match &read.entry.parsed {
                Ok(_) => parsed.push(read),
                Err(why) => {
                    self.entry_errors.warn_once(&read.entry, why);
                }
            }
        }
        match self.store.sql.apply_entries(&entries(&parsed)).await {
            Ok(()) => self.ack_entries(&parsed).await,
            // SQL refuses at least one entry: find out which.
            Err(error @ StoreError::Bug(_)) => self.apply_each(&parsed, error).await,
            Err(error) => Err(error),
        }
    }

    /// Applies each entry in its own transaction. An entry that SQL refuses stays in the journal. If
    /// SQL refuses all of several entries, the cause is probably not in the entries: then this
    /// returns `refused`, so that the consumer pauses.
    async fn apply_each(
        &mut self,
        batch: &[&ReadEntry],
        refused: StoreError,
    ) -> Result<(), StoreError> {
        let (mut any_applied, mut any_logged) = (false, false);
        for read in batch {
            match self.store.sql.apply_entries(&entries(&[read])).await {
                Ok(()) => {
                    self.ack_entries(&[read]).await?;
                    any_applied = true;
                }
                Err(StoreError::Bug(why)) => {
                    any_logged |= self.entry_errors.warn_once(&read.entry, &why);
                }
                Err(error) => return Err(error),
            }
        }
        if any_applied || batch.len() == 1 {
            return Ok(());
        }
        if !any_logged {
            self.backoff.suppress();
        }
        Err(refused)
    }

    /// Acknowledges and deletes entries that SQL has committed.
    async fn ack_entries(&self, batch: &[&ReadEntry]) -> Result<(), StoreError> {
        let mut by_shard: BTreeMap<Shard, Vec<String>> = BTreeMap::new();
        for read in batch {
            let arguments = by_shard
                .entry(read.shard)
                .or_insert_with(|| vec![GROUP.to_owned()]);
            let StreamEntry { id, level, .. } = &read.entry;
            arguments.extend([
                id.clone(),
                level.clone(),
                read.entry.movements().to_string(),
            ]);
        }
        let keys = self.store.keys().await?;
        for (shard, arguments) in by_shard {
            let script_keys = [keys.journal(shard), keys.counters(shard)];
            self.store
                .shared
                .script(&scripts::ACK, &script_keys, &arguments)
                .await?;
        }
        Ok(())
    }
}

/// Whether `every` has passed since `last`. If so, sets `last` to now.
fn is_due(last: &mut Option<Instant>, every: Duration) -> bool {
    let due = last.is_none_or(|last| last.elapsed() >= every);
    if due {
        *last = Some(Instant::now());
    }
    due
}

/// How many entries of the backlog the next transaction applies.
fn batch_size(backlog: &[ReadEntry]) -> usize {
    let mut movements = 0;
    let fits = |read: &&ReadEntry| {
        let before = movements;
        movements += read.entry.movements();
        before < BATCH
    };
    backlog.iter().take_while(fits).count()
}

fn entries<'a>(batch: &[&'a ReadEntry]) -> Vec<&'a JournalEntry> {
    let parsed = batch
        .iter()
        .filter_map(|read| read.entry.parsed.as_ref().ok());
    parsed.collect()
}

/// Increasing pauses between consecutive failures, with one log line for all of them.
#[derive(Debug, Default)]
struct Backoff {
    failures: u32,
    warned: bool,
    suppressed: bool,
}

impl Backoff {
    fn warn_once(&mut self, error: &StoreError) {
        if !self.warned && !self.suppressed {
            let cause = std::error::Error::source(error).map(ToString::to_string);
            tracing::warn!(%error, cause, "the ledger does not follow the journals");
            self.warned = true;
        }
        self.suppressed = false;
        self.failures = self.failures.saturating_add(1);
    }

    /// Does not log the next failure, because each of its entries was logged before.
    fn suppress(&mut self) {
        self.suppressed = true;
    }

    fn reset(&mut self) {
        if self.warned {
            tracing::info!(
                failures = self.failures,
                "the ledger follows the journals again"
            );
        }
        *self = Self::default();
    }

    async fn pause(&self, stop: &CancellationToken) {
        let pause = MAX_PAUSE / 2_u32.pow(4_u32.saturating_sub(self.failures));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stop.cancelled() => {}
        }
    }
}
