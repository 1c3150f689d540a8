//! Redis as the home of stock: levels in hashes, decided by scripts or by `WATCH`, and a journal
//! that the SQL ledger follows.
//!
//! Guarantees: a level, its journal's entry and the memory of the operation are written in one
//! script, or in one `MULTI`, or not at all; what Redis keeps is never oversold, and each of its
//! movements is in the ledger once. Not guaranteed: that Redis keeps it. A level that it does not have
//! comes from its mirror in SQL, so what was lost on the way there can be sold again.

use std::sync::Arc;
use std::time::Duration;
use stocklock_core::stock::Durability;

use redis::Client;
use tokio::sync::OnceCell;

use super::mirror::Mirror;
use super::sql::ledger_row::LedgerRow;
use super::{AttemptOutcome, RedisMethod, StoreError};
use stocklock_core::stock::{Deduction, Fence, Home};

mod audit;
mod batches;
mod change;
mod cluster;
mod complaints;
mod connection;
mod entries;
mod erasure;
mod exclusive;
mod failure;
mod follower;
mod groups;
mod keys;
mod loading;
mod memory;
mod scripts;
mod settings;
mod step;
mod watch;
mod write;

use batches::Batches;
use connection::{Connector, Shared};
use exclusive::Exclusive;
pub use follower::Follower;
use keys::Keys;
use scripts::Answer;
use step::Taking;

/// How long an operation without a key is remembered under its own id. Only the replica that minted
/// it repeats it, for as long as a request may last: no deadline that can be set is longer than an
/// hour. What was sent and given up may still arrive as much later as the network holds it.
const OPERATION_MEMORY: Duration = Duration::from_hours(2);

/// How long one with a key is remembered, under that alone: it says which operation it was.
const KEY_MEMORY: Duration = Duration::from_hours(24);

/// How to reach a Redis, and how much to ask of it.
#[derive(Debug, Clone)]
pub struct RedisOptions {
    /// `redis://[user[:password]@]host[:port][/database]`.
    pub url: secrecy::SecretString,
    /// How long to wait for a connection, and for an answer.
    pub wait_limit: Duration,
    /// The most connections for `WATCH`.
    pub watch_connections: u32,
    /// On which connections `WATCH` is sent.
    pub watch_on: WatchOn,
    /// The most movements that may wait in one of the journals for the SQL ledger.
    pub journal_limit: u32,
}

/// On which connections `WATCH` is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchOn {
    /// Each on one that nobody else uses meanwhile.
    Exclusive,
    /// All on one: **not safe**, on purpose. It shows the lost update of a popular mistake.
    Shared,
}

/// What must hold of a level for a write that follows from an earlier reading.
#[derive(Debug, Clone, Copy)]
pub(super) enum Guard<'a> {
    /// Nothing.
    None,
    /// It has the version that was read.
    Version,
    /// That, and no later holder of the lock has written.
    Fence(&'a Fence),
}

/// Stock in Redis, with its ledger in SQL.
#[derive(Debug)]
pub(super) struct RedisStore {
    sql: Arc<dyn Mirror>,
    connector: Connector,
    shared: Shared,
    exclusive: Exclusive,
    batches: Batches,
    keys: OnceCell<Keys>,
    options: RedisOptions,
}

impl RedisStore {
    pub(super) fn open(options: RedisOptions, sql: Arc<dyn Mirror>) -> Result<Self, String> {
        use secrecy::ExposeSecret;
        // The driver's own text might show the URL.
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
            exclusive: Exclusive::new(connector, options.watch_connections, limit),
            keys: OnceCell::new(),
            options,
        })
    }

    async fn keys(&self) -> Result<&Keys, StoreError> {
        let ledger = || async { self.sql.ledger_id().await.map(Keys::new) };
        self.keys.get_or_try_init(ledger).await
    }

    /// One cheap round trip.
    pub(super) async fn ping(&self) -> Result<(), StoreError> {
        self.shared.read(&redis::cmd("PING")).await
    }

    pub(super) fn close(&self) {
        self.exclusive.close();
        self.shared.close();
    }

    /// Takes the units in one of Redis' own two ways.
    pub(super) async fn deduct(
        &self,
        deduction: &Deduction,
        how: RedisMethod,
    ) -> Result<AttemptOutcome, StoreError> {
        let row = LedgerRow::from_deduction(deduction, None);
        let (sku, warehouse) = (&deduction.sku, &deduction.warehouse);
        let key = deduction.idempotency.as_ref();
        let units = deduction.quantity.units();
        let step = Arc::new(self.step((sku, warehouse), &row, key).await?);
        let mut sure = key.is_none();
        for _ in 0..loading::LOADS {
            let taking = Taking {
                step: Arc::clone(&step),
                units,
                sure,
            };
            let answer = match how {
                RedisMethod::Script => self.batches.deduct(taking).await?,
                RedisMethod::Watch => self.watch(&taking).await?,
            };
            match answer {
                Answer::Absent => sure = key.is_none(),
                Answer::Unsure if self.recall(&step, sku, key).await? => {
                    return Ok(AttemptOutcome::Duplicate);
                }
                Answer::Unsure => {
                    sure = true;
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
        Err(loading::lost_again())
    }
}

/// What a script's answer means for a deduction of `units`.
fn attempt(answer: Answer, units: i64) -> Result<AttemptOutcome, StoreError> {
    Ok(match answer {
        Answer::Written { available, .. } => AttemptOutcome::Deducted {
            durability: Durability::Redis,
            remaining: available,
        },
        Answer::Duplicate => AttemptOutcome::Duplicate,
        // Somebody restocked since it was read.
        Answer::Short { available } if available >= units => AttemptOutcome::Conflict,
        Answer::Short { available } => AttemptOutcome::Insufficient { available },
        Answer::Stale => AttemptOutcome::Conflict,
        Answer::Fenced => AttemptOutcome::LockLost,
        Answer::Absent | Answer::Unsure => return Err(failure::bad_answer(answer)),
        Answer::Full => return Err(StoreError::JournalFull),
    })
}
