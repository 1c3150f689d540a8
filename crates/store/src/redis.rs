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
use stocklock_core::stock::Durability;

use redis::Client;
use tokio::sync::OnceCell;

use super::sql::SqlBackend;
use super::sql::ledger_row::LedgerRow;
use super::{AttemptOutcome, RedisMethod, StoreError};
use stocklock_core::stock::{Deduction, Home};

mod audit;
mod batches;
mod change;
mod cluster;
mod connection;
mod consumer;
mod consumer_groups;
mod dedup;
mod entries;
mod entry_error_log;
mod exclusive;
mod failure;
mod keys;
mod loading;
mod purge;
mod scripts;
mod settings;
mod watch;
mod write;
mod write_request;

use batches::Batches;
use connection::{Connector, Shared};
pub use consumer::JournalConsumer;
use exclusive::ExclusivePool;
use keys::Keys;
use scripts::Answer;
use write_request::{DeductRequest, KeyCheck};

/// How long Redis keeps the dedup entry of an operation without an idempotency key. Only the replica
/// that created the operation retries it, within the request's deadline of at most one hour. The rest
/// allows for packets that the network delays.
const OPERATION_DEDUP_TTL: Duration = Duration::from_hours(2);

/// How long Redis keeps the dedup entry of an idempotency key. The entry contains the operation id.
const KEY_DEDUP_TTL: Duration = Duration::from_hours(24);

/// How to connect to Redis, and the limits of its use.
#[derive(Debug, Clone)]
pub struct RedisOptions {
    /// `redis://[user[:password]@]host[:port][/database]`.
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
    shared: Shared,
    exclusive: ExclusivePool,
    batches: Batches,
    keys: OnceCell<Keys>,
    options: RedisOptions,
}

impl RedisStore {
    pub(super) fn open(options: RedisOptions, sql: Arc<dyn SqlBackend>) -> Result<Self, String> {
        use secrecy::ExposeSecret;
        // The driver's error text may contain the password.
        let client = Client::open(options.url.expose_secret())
            .map_err(|_| "expected redis://[user[:password]@]host[:port][/database]".to_owned())?;
        let limit = options.wait_limit;
        let connector = Connector::new(client, limit);
        let shared = Shared::new(connector.clone());
        Ok(Self {
            sql,
            connector: connector.clone(),
            batches: Batches::new(shared.clone(), options.journal_limit),
            shared,
            exclusive: ExclusivePool::new(connector, options.watch_connections, limit),
            keys: OnceCell::new(),
            options,
        })
    }

    async fn keys(&self) -> Result<&Keys, StoreError> {
        let ledger = || async { self.sql.ledger_id().await.map(Keys::new) };
        self.keys.get_or_try_init(ledger).await
    }

    /// Sends one `PING`.
    pub(super) async fn ping(&self) -> Result<(), StoreError> {
        self.shared.read(&redis::cmd("PING")).await
    }

    pub(super) fn close(&self) {
        self.exclusive.close();
        self.shared.close();
    }

    /// Deducts the units with a script or with `WATCH`.
    pub(super) async fn deduct(
        &self,
        deduction: &Deduction,
        how: RedisMethod,
    ) -> Result<AttemptOutcome, StoreError> {
        let row = LedgerRow::from_deduction(deduction, None);
        let (sku, warehouse) = (&deduction.sku, &deduction.warehouse);
        let key = deduction.idempotency.as_ref();
        let units = deduction.quantity.units();
        let request = Arc::new(self.write_request((sku, warehouse), &row, key).await?);
        let mut key_check = KeyCheck::for_key(key);
        for _ in 0..loading::MAX_LOADS {
            let deduct = DeductRequest {
                write: Arc::clone(&request),
                units,
                key_check,
            };
            let answer = match how {
                RedisMethod::Script => self.batches.deduct(deduct).await?,
                RedisMethod::Watch => self.watch(&deduct).await?,
            };
            match answer {
                Answer::Absent => key_check = KeyCheck::for_key(key),
                Answer::KeyMayBeLost if self.restore_from_sql(&request, sku, key).await? => {
                    return Ok(AttemptOutcome::Duplicate);
                }
                Answer::KeyMayBeLost => {
                    key_check = KeyCheck::Done;
                    continue;
                }
                settled => return attempt(settled, units),
            }
            match self.load(sku, warehouse).await? {
                Some(Home::Redis) => {}
                Some(home) => return Ok(AttemptOutcome::WrongHome(home)),
                None => return Ok(AttemptOutcome::UnknownSku),
            }
        }
        Err(loading::evicted_again())
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
        Answer::Absent | Answer::KeyMayBeLost => return Err(failure::bad_answer(answer)),
        Answer::Full => return Err(StoreError::JournalFull),
    })
}
