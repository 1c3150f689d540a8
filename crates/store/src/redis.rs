//! Redis as the home of stock: levels are hashes, changed by scripts or with `WATCH`. A journal
//! consumer applies the movements to the SQL ledger.
//!
//! Guarantees:
//! - One script or one `MULTI` writes a level, its journal entry and its dedup entry, or none of them.
//! - Stock that Redis keeps is never oversold, and the ledger has each movement once.
//!
//! Not guaranteed: durability. If Redis loses a level, the level is loaded from its mirror in SQL.
//! Units of lost journal entries can then be sold again.

use std::sync::Arc;
use std::time::Duration;

use deadpool::Runtime;
use deadpool::managed::{Pool, QueueMode};
use redis::{Client, Cmd};
use secrecy::ExposeSecret;
use tokio::sync::OnceCell;

use super::sql::SqlBackend;
use super::sql::ledger_row::LedgerRow;
use super::{AttemptOutcome, RedisMethod, StoreError};
use stocklock_core::ports::Expiry;
use stocklock_core::stock::{Deduction, Durability, Home};

mod audit;
mod batching;
mod connection;
mod consumer;
mod errors;
mod idempotency;
mod keys;
mod levels;
#[cfg(test)]
mod model;
mod scripts;
mod server_check;
mod streams;
mod update;
mod watch;

use batching::Batches;
use connection::{Connector, SharedConnection};
pub use consumer::JournalConsumer;
use errors::bad_answer;
use idempotency::UnknownOutcomes;
use keys::Keys;
use scripts::Answer;
pub use streams::{JournalReport, RejectedEntry};
use update::WriteRequest;

/// How many keys one `SCAN` looks at.
const KEYS_PER_SCAN: u32 = 1_000;

/// How to connect to Redis, and the limits of its use.
#[derive(Debug, Clone)]
pub struct RedisOptions {
    /// `redis://[user[:password]@]host[:port][/database]`, or `rediss://…` with TLS.
    pub url: secrecy::SecretString,
    /// How long to wait for a connection, and for a reply.
    pub wait_limit: Duration,
    /// The maximum number of connections for `WATCH`.
    pub watch_connections: u32,
    /// Which connections `WATCH` uses.
    pub watch_on: WatchOn,
    /// The maximum number of movements that may wait in one journal.
    pub journal_limit: u32,
}

/// Which connections `WATCH` uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchOn {
    /// Each `WATCH` has a connection for itself.
    Exclusive,
    /// All share one connection: **unsafe on purpose**. It shows the lost updates that result.
    Shared,
}

/// Stock in Redis, with its ledger in SQL.
#[derive(Debug)]
pub(super) struct RedisStore {
    sql: Arc<dyn SqlBackend>,
    connector: Connector,
    shared: SharedConnection,
    exclusive: Pool<Connector>,
    batches: Batches,
    unknown: UnknownOutcomes,
    keys: OnceCell<Keys>,
    options: RedisOptions,
}

impl RedisStore {
    pub(super) fn open(options: RedisOptions, sql: Arc<dyn SqlBackend>) -> Result<Self, String> {
        // The driver's error text may contain the password.
        let client = Client::open(options.url.expose_secret()).map_err(|_| {
            "expected redis[s]://[user[:password]@]host[:port][/database]".to_owned()
        })?;
        let limit = options.wait_limit;
        let connector = Connector { client, limit };
        let shared = SharedConnection::new(connector.clone());
        let exclusive = Pool::builder(connector.clone())
            .max_size(options.watch_connections as usize)
            .queue_mode(QueueMode::Lifo)
            .wait_timeout(Some(limit))
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self {
            sql,
            connector,
            batches: Batches::new(shared.clone(), options.journal_limit),
            shared,
            exclusive,
            unknown: UnknownOutcomes::default(),
            keys: OnceCell::new(),
            options,
        })
    }

    async fn keys(&self) -> Result<&Keys, StoreError> {
        let ledger = || async { self.sql.ledger_id().await.map(Keys) };
        self.keys.get_or_try_init(ledger).await
    }

    /// Sends one `PING`.
    pub(super) async fn ping(&self) -> Result<(), StoreError> {
        self.shared.read(&Cmd::ping()).await
    }

    pub(super) fn close(&self) {
        self.exclusive.close();
        self.shared.close();
    }

    /// Deletes every key of this ledger. The caller ensures that no replica uses the ledger.
    pub(super) async fn purge(&self) -> Result<(), StoreError> {
        let pattern = self.keys().await?.pattern();
        let mut cursor = 0_u64;
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(&pattern);
            let scan = scan.arg("COUNT").arg(KEYS_PER_SCAN);
            let (next, keys): (u64, Vec<String>) = self.shared.read(scan).await?;
            if !keys.is_empty() {
                // `read` is correct here because UNLINK is safe to repeat.
                self.shared.read::<u64>(&Cmd::unlink(keys)).await?;
            }
            if next == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }

    /// Whether the server refuses attempts that expire then.
    pub(super) async fn has_passed(&self, expiry: Expiry) -> Result<bool, StoreError> {
        Ok(self.shared.millis().await? >= expiry.at)
    }

    /// Deducts the units with a script or with `WATCH`.
    pub(super) async fn deduct(
        &self,
        deduction: &Deduction,
        how: RedisMethod,
    ) -> Result<AttemptOutcome, StoreError> {
        let (operation, deadline) = (deduction.operation.0, deduction.deadline);
        let attempt = self.try_deduct(deduction, how).await;
        self.unknown.observe(operation, deadline, &attempt);
        attempt
    }

    async fn try_deduct(
        &self,
        deduction: &Deduction,
        how: RedisMethod,
    ) -> Result<AttemptOutcome, StoreError> {
        let key = deduction.idempotency.as_ref();
        let row = LedgerRow::from_deduction(deduction, None);
        let mut request = Arc::new(WriteRequest::new(self.keys().await?, row, key));
        Arc::make_mut(&mut request).uncheck(&self.unknown);
        for _ in 0..levels::MAX_LOADS {
            let answer = match how {
                RedisMethod::Script => {
                    let deadline = deduction.deadline;
                    self.batches.deduct(Arc::clone(&request), deadline).await?
                }
                RedisMethod::Watch => self.watch(&request, deduction.deadline).await?,
            };
            match answer {
                Answer::KeyMayBeLost if self.restore_from_sql(&request, key).await? => {
                    return Ok(AttemptOutcome::Duplicate);
                }
                Answer::KeyMayBeLost => Arc::make_mut(&mut request).key_checked = true,
                Answer::Absent => {
                    Arc::make_mut(&mut request).uncheck(&self.unknown);
                    match self.load(&deduction.sku, &deduction.warehouse).await? {
                        Some(Home::Redis) => {}
                        Some(home) => return Ok(AttemptOutcome::WrongHome(home)),
                        None => return Ok(AttemptOutcome::UnknownSku),
                    }
                }
                settled => return attempt(settled, deduction.quantity.units()),
            }
        }
        Err(levels::evicted_again())
    }
}

/// Converts a script's answer to the outcome of deducting `units`.
fn attempt(answer: Answer, units: i64) -> Result<AttemptOutcome, StoreError> {
    Ok(match answer {
        Answer::Written { available, .. } => AttemptOutcome::Deducted {
            durability: Durability::Redis,
            remaining: available,
        },
        Answer::Duplicate => AttemptOutcome::Duplicate,
        // A restock came between the read and the write.
        Answer::Insufficient { available } if available >= units => AttemptOutcome::Conflict,
        Answer::Insufficient { available } => AttemptOutcome::Insufficient { available },
        Answer::Conflict => AttemptOutcome::Conflict,
        Answer::Fenced => AttemptOutcome::LockLost,
        Answer::Absent | Answer::KeyMayBeLost => return Err(bad_answer(answer)),
        Answer::Full => return Err(StoreError::JournalFull),
    })
}
