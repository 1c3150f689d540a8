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

use super::errors::{Failed, reading};
use super::keys::Shard;
use super::streams::StreamEntry;
use super::{RedisStore, scripts};
use crate::StoreError;
use crate::journal::JournalEntry;

mod groups;
mod warnings;

use groups::{AT_ONCE, ConsumerConnection, GROUP};
use warnings::{Backoff, EntryErrorLog};

/// How long a consumer lets entries gather if it read only a few. A transaction for every few entries
/// would cost the database several times as much.
const GATHER: Duration = Duration::from_millis(20);

/// How often a consumer claims entries and reports how many movements wait.
const REFRESH_EVERY: Duration = Duration::from_millis(500);

/// How often a consumer deletes the names of ended consumers.
const RETIRE_EVERY: Duration = Duration::from_secs(5);

/// A transaction takes no further entry once it has this many movements.
const BATCH: usize = 500;

/// One consumer of all journals.
#[derive(Debug)]
pub struct JournalConsumer {
    store: Arc<RedisStore>,
    name: String,
    /// Entries that were read and are not known to be applied.
    backlog: Vec<StreamEntry>,
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

    /// Applies entries until `stop` is cancelled. Then it applies those added before and returns.
    /// Calls `report` with the number of waiting movements, or `None` if it is unknown.
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
        let mut connection = ConsumerConnection::open(&store, &name).await?;
        let (mut refreshed, mut retired) = (None, None);
        while !stop.is_cancelled() {
            if is_due(&mut refreshed, REFRESH_EVERY) {
                report(Some(connection.refresh().await.map_err(reading)?));
                self.claim(&mut connection).await?;
            }
            if is_due(&mut retired, RETIRE_EVERY) {
                connection.retire().await.map_err(reading)?;
            }
            if self.backlog.is_empty() {
                self.backlog = connection.read_new(true).await.map_err(reading)?;
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
        let mut left: u64 = connection.entries.values().sum();
        self.claim(connection).await?;
        self.apply_backlog().await?;
        while left > 0 {
            self.backlog = connection.read_new(false).await.map_err(reading)?;
            if self.backlog.is_empty() {
                break;
            }
            left = left.saturating_sub(self.backlog.len() as u64);
            self.apply_backlog().await?;
        }
        report(Some(connection.refresh().await.map_err(reading)?));
        Ok(())
    }

    /// Claims entries of other consumers if the backlog is empty.
    async fn claim(&mut self, connection: &mut ConsumerConnection<'_>) -> Result<(), StoreError> {
        if self.backlog.is_empty() {
            self.backlog = connection.claim().await.map_err(reading)?;
        }
        Ok(())
    }

    /// Applies the backlog to SQL in batches, and acknowledges each batch.
    async fn apply_backlog(&mut self) -> Result<(), StoreError> {
        while !self.backlog.is_empty() {
            let size = batch_size(&self.backlog);
            let batch: Vec<StreamEntry> = self.backlog.drain(..size).collect();
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

    async fn apply_batch(&mut self, batch: &[StreamEntry]) -> Result<(), StoreError> {
        let mut valid = Vec::with_capacity(batch.len());
        for read in batch {
            match &read.parsed {
                Ok(entry) => valid.push((read, entry)),
                Err(why) => _ = self.entry_errors.warn_once(read, why),
            }
        }
        let entries: Vec<&JournalEntry> = valid.iter().map(|(_, entry)| *entry).collect();
        match self.store.sql.apply_entries(&entries).await {
            Ok(()) => self.ack(valid.into_iter().map(|(read, _)| read)).await,
            // SQL refuses at least one entry: find out which.
            Err(error @ StoreError::Bug(_)) => self.apply_each(&valid, error).await,
            Err(error) => Err(error),
        }
    }

    /// Applies each entry in its own transaction. An entry that SQL refuses stays in the journal. If
    /// SQL refuses all of several entries, the cause is probably not in the entries: then this
    /// returns `refused`, so that the consumer pauses.
    async fn apply_each(
        &mut self,
        batch: &[(&StreamEntry, &JournalEntry)],
        refused: StoreError,
    ) -> Result<(), StoreError> {
        let (mut any_applied, mut any_logged) = (false, false);
        for (read, entry) in batch {
            match self.store.sql.apply_entries(&[entry]).await {
                Ok(()) => {
                    self.ack([*read]).await?;
                    any_applied = true;
                }
                Err(StoreError::Bug(why)) => any_logged |= self.entry_errors.warn_once(read, &why),
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

    /// Acknowledges and deletes entries that SQL has committed. They stay if the ledger is no longer
    /// bound to this Redis.
    async fn ack(&self, applied: impl IntoIterator<Item = &StreamEntry>) -> Result<(), StoreError> {
        self.store.confirm().await?;
        let keys = self.store.keys().await?;
        let mut by_shard: BTreeMap<Shard, _> = BTreeMap::new();
        for read in applied {
            let script = by_shard.entry(read.shard).or_insert_with(|| {
                let mut script = scripts::ACK.key(keys.journal(read.shard));
                script.key(keys.counters(read.shard)).arg(GROUP);
                script
            });
            script
                .arg(&read.id)
                .arg(&read.level)
                .arg(read.movements().len());
        }
        for script in by_shard.values() {
            self.store
                .shared
                .run(script)
                .await
                .map_err(Failed::writing)?;
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
fn batch_size(backlog: &[StreamEntry]) -> usize {
    let mut movements = 0;
    let fits = |read: &&StreamEntry| {
        let before = movements;
        // An entry that could not be parsed counts as one movement.
        movements += read.movements().len().max(1);
        before < BATCH
    };
    backlog.iter().take_while(fits).count()
}
