//! The write-behind: brings the journals' entries into the SQL ledger.
//!
//! Every replica runs one, and they share the work: an entry goes to one consumer, and if that one
//! dies with it, to another. Guarantees: an entry leaves the journal only after the commit that
//! recorded it; recorded twice, it is the same row once. An entry that SQL will not take, or that
//! nobody understands, stays where it is, where the audit shows it, and holds up no other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::complaints::Complaints;
use super::entries::Entry;
use super::failure::reading;
use super::groups::{AT_ONCE, Consumer, GROUP, Read};
use super::keys::Shard;
use super::{RedisStore, scripts};
use crate::StoreError;
use crate::journal::Journaled;

/// How long a consumer waits for new entries before it looks after other things.
const WAIT: Duration = Duration::from_millis(250);

/// How long it lets entries gather where no more are there. A transaction for each few of them would
/// cost the database, and with it the sales beside, several times as much.
const GATHER: Duration = Duration::from_millis(20);

/// An entry that was read so long ago and has not left was read by a consumer that is dead, or slow:
/// then both record it, which does no harm.
const CLAIM_AFTER: Duration = Duration::from_secs(2);

/// How often it looks for such entries, and how far behind the ledger is.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A consumer that holds nothing and was not heard of for so long has ended, and its name may go.
const RETIRE_AFTER: Duration = Duration::from_secs(10);

/// How often it looks for such consumers.
const RETIRE_EVERY: Duration = Duration::from_secs(5);

/// The longest pause after a failure; the first is an eighth of it.
const PAUSE: Duration = Duration::from_millis(800);

/// How many movements one transaction records, and no entry that begins after them.
const BATCH: usize = 500;

/// One consumer of all journals.
#[derive(Debug)]
pub struct Follower {
    store: Arc<RedisStore>,
    name: String,
    /// Entries that were read, and are not in SQL yet as far as is known.
    backlog: Vec<Read>,
    complaints: Complaints,
    pause: Pause,
}

impl Follower {
    pub(crate) fn new(store: Arc<RedisStore>, replica: &str) -> Self {
        Self {
            store,
            // A name of its own for each process: what an earlier one left is another consumer's.
            name: format!("{replica}-{:08x}", fastrand::u32(..)),
            backlog: Vec::new(),
            complaints: Complaints::new(),
            pause: Pause::default(),
        }
    }

    /// Follows until it is stopped, and then until what was there by then is in SQL. `lag` is told how
    /// many movements wait, and when nobody knows.
    ///
    /// # Cancel safety
    /// Dropping the future leaves what was read to the other consumers, and to the next one.
    pub async fn run(mut self, stop: CancellationToken, lag: impl Fn(Option<u64>) + Send + Sync) {
        while let Err(error) = self.follow(&stop, &lag).await {
            lag(None);
            self.pause.tell(&error);
            if stop.is_cancelled() {
                return;
            }
            self.pause.pass(&stop).await;
        }
    }

    /// Follows on one connection until it is stopped, or Redis or SQL fails.
    async fn follow(
        &mut self,
        stop: &CancellationToken,
        lag: &(impl Fn(Option<u64>) + Sync),
    ) -> Result<(), StoreError> {
        let store = Arc::clone(&self.store);
        let name = self.name.clone();
        let mut consumer = store.consumer(&name, WAIT).await?;
        let (mut looked, mut retired) = (None, None);
        while !stop.is_cancelled() {
            if is_due(&mut looked, LOOK_EVERY) {
                lag(Some(consumer.look().await.map_err(reading)?));
                self.claim(&mut consumer).await?;
            }
            if is_due(&mut retired, RETIRE_EVERY) {
                consumer.retire(RETIRE_AFTER).await.map_err(reading)?;
            }
            if self.backlog.is_empty() {
                self.backlog = consumer.read_new(WAIT).await.map_err(reading)?;
            }
            let few = (1..AT_ONCE).contains(&self.backlog.len());
            match self.record_backlog().await {
                Ok(()) => {
                    self.pause.reset();
                    if few {
                        let _ = timeout(GATHER, stop.cancelled()).await;
                    }
                }
                Err(error) => {
                    self.pause.tell(&error);
                    self.pause.pass(stop).await;
                }
            }
        }
        self.finish(&mut consumer, lag).await
    }

    /// Brings what is there now into SQL, and nothing of what comes meanwhile: that may never end.
    async fn finish(
        &mut self,
        consumer: &mut Consumer<'_>,
        lag: &(impl Fn(Option<u64>) + Sync),
    ) -> Result<(), StoreError> {
        consumer.look().await.map_err(reading)?;
        let mut left = consumer.entries;
        self.claim(consumer).await?;
        self.record_backlog().await?;
        while left > 0 {
            self.backlog = consumer.read_new(Duration::ZERO).await.map_err(reading)?;
            if self.backlog.is_empty() {
                break;
            }
            left = left.saturating_sub(self.backlog.len());
            self.record_backlog().await?;
        }
        lag(Some(consumer.look().await.map_err(reading)?));
        Ok(())
    }

    /// Takes over what other consumers have left, if there is nothing of its own.
    async fn claim(&mut self, consumer: &mut Consumer<'_>) -> Result<(), StoreError> {
        if self.backlog.is_empty() {
            self.backlog = consumer.claim(CLAIM_AFTER).await.map_err(reading)?;
        }
        Ok(())
    }

    /// Brings what was read into SQL, and lets it depart from the journals.
    async fn record_backlog(&mut self) -> Result<(), StoreError> {
        while !self.backlog.is_empty() {
            let batch: Vec<Read> = self.backlog.drain(..one_batch(&self.backlog)).collect();
            if let Err(error) = self.record(&batch).await {
                // What was refused stays in the journal, and comes again when it is claimed.
                if !matches!(error, StoreError::Bug(_)) {
                    self.backlog.splice(0..0, batch);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    async fn record(&mut self, batch: &[Read]) -> Result<(), StoreError> {
        let (understood, strange): (Vec<&Read>, Vec<&Read>) =
            batch.iter().partition(|read| read.entry.journaled.is_ok());
        for read in strange {
            if let Err(why) = &read.entry.journaled {
                self.complaints.say(&read.entry, why);
            }
        }
        match self.store.sql.apply_entries(&journaled(&understood)).await {
            Ok(()) => self.depart(&understood).await,
            // One of them it will not take: which?
            Err(error @ StoreError::Bug(_)) => self.record_each(&understood, error).await,
            Err(error) => Err(error),
        }
    }

    /// Each in a transaction of its own; what is refused even so stays in the journal. Where all of
    /// several are, it is not they that are wrong: that is a failure, and calls for a pause.
    async fn record_each(
        &mut self,
        batch: &[&Read],
        refused: StoreError,
    ) -> Result<(), StoreError> {
        let (mut taken, mut news) = (false, false);
        for read in batch {
            match self.store.sql.apply_entries(&journaled(&[read])).await {
                Ok(()) => {
                    self.depart(&[read]).await?;
                    taken = true;
                }
                Err(StoreError::Bug(why)) => news |= self.complaints.say(&read.entry, &why),
                Err(error) => return Err(error),
            }
        }
        if taken || batch.len() == 1 {
            return Ok(());
        }
        if !news {
            self.pause.hush();
        }
        Err(refused)
    }

    /// Removes entries that SQL has.
    async fn depart(&self, batch: &[&Read]) -> Result<(), StoreError> {
        let mut by_shard: BTreeMap<Shard, Vec<String>> = BTreeMap::new();
        for read in batch {
            let arguments = by_shard
                .entry(read.shard)
                .or_insert_with(|| vec![GROUP.to_owned()]);
            let Entry { id, level, .. } = &read.entry;
            arguments.extend([
                id.clone(),
                level.clone(),
                read.entry.movements().to_string(),
            ]);
        }
        let keys = self.store.keys().await?;
        for (shard, arguments) in by_shard {
            let touched = [keys.journal(shard), keys.tally(shard)];
            self.store
                .shared
                .script(&scripts::DEPART, &touched, &arguments)
                .await?;
        }
        Ok(())
    }
}

/// Whether it was last done so long ago, or never; then it is done now.
fn is_due(last: &mut Option<Instant>, every: Duration) -> bool {
    let due = last.is_none_or(|last| last.elapsed() >= every);
    if due {
        *last = Some(Instant::now());
    }
    due
}

/// How many of these entries one transaction records.
fn one_batch(backlog: &[Read]) -> usize {
    let mut movements = 0;
    let begins_in_time = |read: &&Read| {
        let begins = movements;
        movements += read.entry.movements();
        begins < BATCH
    };
    backlog.iter().take_while(begins_in_time).count()
}

fn journaled<'a>(batch: &[&'a Read]) -> Vec<&'a Journaled> {
    let understood = batch
        .iter()
        .filter_map(|read| read.entry.journaled.as_ref().ok());
    understood.collect()
}

/// Pauses between failures, each longer than the one before; and one line for a row of them.
#[derive(Debug, Default)]
struct Pause {
    failures: u32,
    told: bool,
    hushed: bool,
}

impl Pause {
    fn tell(&mut self, error: &StoreError) {
        if !self.told && !self.hushed {
            let cause = std::error::Error::source(error).map(ToString::to_string);
            tracing::warn!(%error, cause, "the ledger does not follow the journals");
            self.told = true;
        }
        self.hushed = false;
        self.failures = self.failures.saturating_add(1);
    }

    /// The next failure is one that was told of before, entry by entry.
    fn hush(&mut self) {
        self.hushed = true;
    }

    fn reset(&mut self) {
        if self.told {
            tracing::info!(
                failures = self.failures,
                "the ledger follows the journals again"
            );
        }
        *self = Self::default();
    }

    async fn pass(&self, stop: &CancellationToken) {
        let pause = PAUSE / 2_u32.pow(4_u32.saturating_sub(self.failures));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stop.cancelled() => {}
        }
    }
}
