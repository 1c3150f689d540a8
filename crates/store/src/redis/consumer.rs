//! The journal consumer: applies the entries of the journals to the SQL ledger.
//!
//! Every replica runs one consumer, and they share the work: each takes leases of some journals, applies
//! a batch of their entries, and gives the leases back. Guarantees:
//! - An entry is removed only after the SQL commit, and only from the Redis of the ledger.
//! - An entry that is applied twice is recorded once.
//! - An entry that SQL refuses, although it takes others, is set aside and tried again every minute.
//!   The audit counts it as pending. It does not block other entries.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::RedisStore;
use super::keys::Shard;
use super::nodes::Nodes;
use super::streams::{JournalReport, Size, Source, StreamEntry};
use crate::StoreError;
use crate::journal::JournalEntry;
use crate::sql::Known;

mod batch;
mod leases;
mod portions;
mod warnings;

pub(super) use batch::took_too_long;
use batch::{MAX_BATCH, batch_size};
use leases::{Done, Leases};
use portions::Portion;
use warnings::{Backoff, EntryErrorLog};

/// The pause before a consumer that found no entries looks again.
const IDLE: Duration = Duration::from_millis(100);

/// How long a consumer lets entries gather if it found only a few. A transaction for every few entries
/// would cost the database several times as much.
const GATHER: Duration = Duration::from_millis(20);

/// How many batches first look for movements and keys that the ledger has, after a batch with one. They
/// often come together: a key for two SKUs, or the entries of a lost lease. The look takes a fifth of the time.
const LOOKS: u32 = 100;

/// Fewer entries than this are few.
const FEW: usize = 32;

/// How often a consumer tries the entries again that were set aside.
const RETRY_EVERY: Duration = Duration::from_mins(1);

/// How many of them it tries in each shard.
const RETRIED: usize = 100;

/// An entry that can be applied: as read, and parsed.
type Valid<'a, 'b> = (&'a StreamEntry, &'b JournalEntry);

/// One consumer of all journals.
#[derive(Debug)]
pub struct JournalConsumer {
    store: Arc<RedisStore>,
    /// Not the one that sales use: replies with many entries would delay them.
    nodes: Nodes,
    name: String,
    /// The number of batches so far.
    batches: u64,
    /// The shard with which the next batch begins.
    next: usize,
    /// Where to start in streams whose first entries stay.
    starts: HashMap<(Source, Shard), String>,
    /// The number of movements in a transaction: half of the last one that took too long.
    size: usize,
    /// How many batches more look for what the ledger has.
    looks: u32,
    /// When entries that were set aside were last tried.
    retried: Option<Instant>,
    /// Why the last batch had no lease of some shards, unless another consumer has it.
    skipped: Option<StoreError>,
    /// How many entries were applied again since the last report.
    repeated: u64,
    entry_errors: EntryErrorLog,
    backoff: Backoff,
}

impl JournalConsumer {
    pub(crate) fn new(store: Arc<RedisStore>, replica: &str) -> Self {
        Self {
            nodes: store.nodes.apart(),
            store,
            // Unique per process: a restarted replica must not have the leases of its predecessor.
            name: format!("{replica}-{:08x}", fastrand::u32(..)),
            batches: 0,
            // So that consumers begin with different shards.
            next: fastrand::usize(..),
            starts: HashMap::new(),
            size: MAX_BATCH,
            looks: 0,
            retried: None,
            skipped: None,
            repeated: 0,
            entry_errors: EntryErrorLog::new(),
            backoff: Backoff::default(),
        }
    }

    /// Applies entries until `stop` is cancelled. Then it applies those added before and returns.
    ///
    /// # Cancel safety
    /// After the future is dropped, its leases end within seconds.
    pub async fn run(
        mut self,
        stop: CancellationToken,
        report: impl Fn(JournalReport) + Send + Sync,
    ) {
        while !stop.is_cancelled() {
            let pause = match self.batch(&report).await {
                Ok(done) => {
                    match self.skipped.take() {
                        Some(error) => self.backoff.skipped(&error),
                        None => self.backoff.reset(),
                    }
                    match done {
                        0 => IDLE,
                        1..FEW => GATHER,
                        _ => continue,
                    }
                }
                Err(error) => self.failed(&error, &report),
            };
            // An error means that the pause is over.
            let _ = timeout(pause, stop.cancelled()).await;
        }
        if let Err(error) = self.finish(&report).await {
            self.failed(&error, &report);
        }
    }

    /// Returns how long to pause.
    fn failed(&mut self, error: &StoreError, report: impl Fn(JournalReport)) -> Duration {
        report(self.report(None));
        self.backoff.warn_once(error);
        self.backoff.pause()
    }

    /// Applies the entries that are in the journals now. Entries that arrive later are left to other
    /// consumers, because they may never end.
    async fn finish(&mut self, report: &impl Fn(JournalReport)) -> Result<(), StoreError> {
        // A slot that moves gives no lease, so its entries are left to other consumers.
        let sizes = self.sizes().await?;
        let mut left: u64 = sizes.iter().flatten().map(|size| size.entries).sum();
        // Other consumers have the leases of the first journals, perhaps not of the others.
        let mut tries = Shard::all().count();
        loop {
            match self.batch(report).await? {
                0 => tries -= 1,
                done => left = left.saturating_sub(done as u64),
            }
            if left == 0 || tries == 0 {
                break;
            }
        }
        let sizes = self.sizes().await?;
        report(self.report(Some(&sizes)));
        self.skipped.take().map_or(Ok(()), Err)
    }

    /// Applies one batch. Returns how many entries have left their journals.
    async fn batch(&mut self, report: &impl Fn(JournalReport)) -> Result<usize, StoreError> {
        self.skipped = None;
        let sizes = self.sizes().await?;
        report(self.report(Some(&sizes)));
        if is_due(&mut self.retried, RETRY_EVERY) {
            let refused = |(shard, size): (_, &Option<Size>)| {
                size.is_some_and(|size| size.rejected > 0)
                    .then_some((shard, RETRIED))
            };
            let portions = Shard::all().zip(&sizes).filter_map(refused);
            let portions = self.portions(Source::Rejected, portions);
            if self.apply(Source::Rejected, portions).await? > 0 {
                // The cause has ended, at least for some.
                self.retried = None;
            }
        }
        let portions = self.choose(&sizes);
        let portions = self.portions(Source::Journal, portions);
        self.apply(Source::Journal, portions).await
    }

    async fn sizes(&self) -> Result<Vec<Option<Size>>, StoreError> {
        Size::of_all(&self.nodes, self.store.keys_to_read().await?).await
    }

    fn report(&mut self, sizes: Option<&[Option<Size>]>) -> JournalReport {
        let sum = |number: fn(&Size) -> u64| {
            let numbers = sizes?.iter().map(|size| size.as_ref().map(number));
            numbers.sum()
        };
        JournalReport {
            waiting: sum(|size| size.movements),
            rejected: sum(|size| size.rejected),
            repeated: std::mem::take(&mut self.repeated),
        }
    }

    /// Applies entries under their leases. Returns how many have left their stream.
    async fn apply(&mut self, source: Source, portions: Vec<Portion>) -> Result<usize, StoreError> {
        if portions.is_empty() {
            return Ok(0);
        }
        let (store, nodes) = (Arc::clone(&self.store), self.nodes.clone());
        let Some(from) = store.confirm(&nodes).await? else {
            return Ok(0);
        };
        self.batches += 1;
        let token = format!("{}.{}", self.name, self.batches);
        let mut leases = Leases::new(&nodes, store.keys_to_read().await?, source, token);
        let (read, skipped) = leases.take(&portions).await?;
        self.skipped = self.skipped.take().or(skipped);
        let entries: Vec<&StreamEntry> = read.iter().flatten().flatten().collect();
        let mut done = Done::new(from);
        let applied = leases.during(self.apply_all(&entries, &mut done)).await;
        if matches!(applied, Ok(()) | Err(StoreError::Bug(_))) {
            for (portion, entries) in portions.iter().zip(&read) {
                self.skip_staying(source, portion, entries.as_deref(), &done);
            }
        }
        // A Redis that is no longer the ledger's keeps its entries. The leases end by themselves.
        let ended = async {
            store.confirm(&nodes).await?;
            leases.end(&done).await
        };
        applied.and(ended.await)?;
        Ok(done.len())
    }

    /// Applies the entries to SQL in transactions of `self.size` movements.
    async fn apply_all<'a>(
        &mut self,
        entries: &[&'a StreamEntry],
        done: &mut Done<'a>,
    ) -> Result<(), StoreError> {
        let mut valid = Vec::with_capacity(entries.len());
        for read in entries.iter().copied() {
            match &read.parsed {
                Ok(entry) => valid.push((read, entry)),
                Err(why) => {
                    self.entry_errors.warn_once(read, why);
                    // A replica of a newer release applies what it has written.
                    if !read.is_newer && read.source == Source::Journal {
                        done.refused.push((read, why.clone()));
                    }
                }
            }
        }
        let mut rest = &valid[..];
        while !rest.is_empty() {
            let (batch, later) = rest.split_at(batch_size(rest, self.size));
            let applied = self.apply_batch(batch, done).await;
            self.size = match &applied {
                Ok(()) => (2 * self.size).min(MAX_BATCH),
                Err(error) if took_too_long(error) => (self.size / 2).max(1),
                Err(_) => self.size,
            };
            applied?;
            rest = later;
        }
        Ok(())
    }

    async fn apply_batch<'a>(
        &mut self,
        batch: &[Valid<'a, '_>],
        done: &mut Done<'a>,
    ) -> Result<(), StoreError> {
        let entries: Vec<&JournalEntry> = batch.iter().map(|(_, entry)| *entry).collect();
        let (sql, from) = (&self.store.sql, &done.from);
        let known = if self.looks > 0 {
            Known::Look
        } else {
            Known::Refuse
        };
        let mut applied = sql.apply_entries(from, &entries, known).await;
        self.looks = self.looks.saturating_sub(1);
        if known == Known::Refuse && matches!(applied, Err(StoreError::Aborted(_))) {
            self.looks = LOOKS;
            applied = sql.apply_entries(from, &entries, Known::Look).await;
        }
        match applied {
            Ok(repeated) => {
                self.repeated += repeated as u64;
                done.applied.extend(batch.iter().map(|(read, _)| *read));
                Ok(())
            }
            // SQL refuses at least one entry: find out which.
            Err(error @ StoreError::Bug(_)) => self.apply_each(batch, done, error).await,
            Err(error) => Err(error),
        }
    }

    /// Finds the entries that SQL refuses. They are set aside if it takes another one. If it refuses
    /// all, the cause is probably not in the entries: then they stay, and this returns `error`, so that
    /// the consumer pauses.
    async fn apply_each<'a>(
        &mut self,
        batch: &[Valid<'a, '_>],
        done: &mut Done<'a>,
        error: StoreError,
    ) -> Result<(), StoreError> {
        let refused = self.find_refused(batch, done).await?;
        let is_retry = |(read, _): &Valid<'_, '_>| read.source == Source::Rejected;
        if batch.iter().any(is_retry) {
            return Ok(());
        }
        if refused.len() == batch.len() {
            return Err(error);
        }
        // The cause may have ended during the first try.
        let refused: Vec<_> = refused.into_iter().map(|(entry, _)| entry).collect();
        let refused = self.find_refused(&refused, done).await?;
        let to_set_aside = refused.into_iter().map(|((read, _), why)| (read, why));
        done.refused.extend(to_set_aside);
        Ok(())
    }

    /// Applies each entry in its own transaction. Returns those that SQL refuses, with the reasons.
    async fn find_refused<'a, 'b>(
        &mut self,
        batch: &[Valid<'a, 'b>],
        done: &mut Done<'a>,
    ) -> Result<Vec<(Valid<'a, 'b>, String)>, StoreError> {
        let (mut refused, mut any_logged) = (Vec::new(), false);
        for &(read, entry) in batch {
            let (sql, entry_alone) = (&self.store.sql, [entry]);
            let applied = sql.apply_entries(&done.from, &entry_alone, Known::Look);
            match applied.await {
                Ok(repeated) => {
                    self.repeated += repeated as u64;
                    done.applied.push(read);
                }
                Err(StoreError::Bug(why)) => {
                    any_logged |= self.entry_errors.warn_once(read, &why);
                    refused.push(((read, entry), why.to_string()));
                }
                Err(error) => return Err(error),
            }
        }
        if !refused.is_empty() && !any_logged {
            self.backoff.suppress();
        }
        Ok(refused)
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
