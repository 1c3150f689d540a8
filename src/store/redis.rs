//! Redis as the home of stock: levels in hashes, decided by scripts or by `WATCH`, and a journal
//! that the SQL ledger follows.
//!
//! Guarantees: a level, its journal's entry and the memory of the operation are written in one
//! script, or in one `MULTI`, or not at all; what Redis keeps is never oversold, and each of its
//! entries is in the ledger once. Not guaranteed: that Redis keeps it. A level that it does not have
//! comes from its mirror in SQL, so what was lost on the way there can be sold again.

use std::sync::Arc;
use std::time::Duration;

use redis::Client;
use tokio::sync::OnceCell;

use super::journal::Note;
use super::mirror::Mirror;
use super::record::Record;
use super::{Attempt, InRedis, StoreError};
use crate::stock::{Deduction, Fence, Home, Idempotency, OperationId, Sku, StockLevel, Warehouse};

mod audit;
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
mod watch;

use connection::{Connector, Shared};
use exclusive::Exclusive;
pub(super) use failure::RedisFailure;
pub use follower::Follower;
use keys::{Keys, Shard};
use scripts::{Answer, Script};

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
    /// The most entries that may wait in one of the journals for the SQL ledger.
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
        Ok(Self {
            sql,
            connector: connector.clone(),
            shared: Shared::new(connector.clone()),
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
        how: InRedis,
    ) -> Result<Attempt, StoreError> {
        let note = Note::of(&Record::of_deduction(deduction, None));
        let units = deduction.quantity.units();
        let place = (&deduction.sku, &deduction.warehouse);
        let mut step = self
            .step(place, &note, deduction.idempotency.as_ref())
            .await?;
        for _ in 0..loading::LOADS {
            let answer = match how {
                InRedis::Script => {
                    let arguments = step.arguments([units.to_string()]);
                    self.run(&scripts::DEDUCT, &step.keys, &arguments).await?
                }
                InRedis::Watch => self.watch(&step, units).await?,
            };
            match answer {
                Answer::Absent => step.sure = deduction.idempotency.is_none(),
                Answer::Unsure if self.recall(&step).await? => return Ok(Attempt::Duplicate),
                Answer::Unsure => {
                    step.sure = true;
                    continue;
                }
                settled => return attempt(settled, units),
            }
            match self.load(place.0, place.1).await? {
                Some(Home::Redis) => {}
                Some(home) => return Ok(Attempt::WrongHome(home)),
                None => return Ok(Attempt::UnknownSku),
            }
        }
        Err(loading::lost_again())
    }

    /// Writes what follows from `read`, if the guard lets it pass.
    pub(super) async fn write_from(
        &self,
        deduction: &Deduction,
        read: &StockLevel,
        guard: Guard<'_>,
    ) -> Result<Attempt, StoreError> {
        let note = Note::of(&Record::of_deduction(deduction, Some(read)));
        let units = deduction.quantity.units();
        let place = (&deduction.sku, &deduction.warehouse);
        let mut step = self
            .step(place, &note, deduction.idempotency.as_ref())
            .await?;
        let mut wanted = vec![(read.on_hand - units).to_string(), String::new()];
        wanted.extend(match guard {
            Guard::Fence(fence) => [fence.token.to_string(), fence.source.to_string()],
            Guard::Version | Guard::None => [String::new(), String::new()],
        });
        if !matches!(guard, Guard::None) {
            step.keys.push(step.keys[0].clone());
            wanted.push(read.version.to_string());
        }
        let answer = self.write(&mut step, wanted).await?;
        if answer == Answer::Absent {
            // Redis has lost it since: it is to be read again.
            return Ok(Attempt::Stale);
        }
        attempt(answer, units)
    }

    /// Writes what is `wanted`, unless the operation is remembered here or, where that is not sure,
    /// in SQL.
    async fn write(&self, step: &mut Step<'_>, wanted: Vec<String>) -> Result<Answer, StoreError> {
        let arguments = step.arguments(wanted.iter().cloned());
        let answer = self.run(&scripts::WRITE, &step.keys, &arguments).await?;
        if answer != Answer::Unsure {
            return Ok(answer);
        }
        if self.recall(step).await? {
            return Ok(Answer::Duplicate);
        }
        step.sure = true;
        let arguments = step.arguments(wanted);
        self.run(&scripts::WRITE, &step.keys, &arguments).await
    }

    /// Runs a script that changes a level.
    async fn run(
        &self,
        script: &Script,
        keys: &[String],
        arguments: &[String],
    ) -> Result<Answer, StoreError> {
        Answer::parse(&self.shared.script(script, keys, arguments).await?)
    }

    /// What a change of a level is written with.
    async fn step<'a>(
        &self,
        (sku, warehouse): (&'a Sku, &Warehouse),
        note: &Note,
        idempotency: Option<&'a Idempotency>,
    ) -> Result<Step<'a>, StoreError> {
        let keys = self.keys().await?;
        Ok(Step {
            sku,
            operation: OperationId(note.operation),
            idempotency,
            sure: idempotency.is_none(),
            keys: vec![
                keys.level(sku, warehouse),
                keys.journal(Shard::of(sku)),
                keys.memory(sku, OperationId(note.operation), idempotency),
            ],
            movement: note.to_text(),
            journal_limit: self.options.journal_limit,
            memory: idempotency.map_or(OPERATION_MEMORY, |_| KEY_MEMORY),
        })
    }
}

/// The keys and arguments that all changes share, in the order of `scripts/prelude.lua`.
#[derive(Debug)]
struct Step<'a> {
    sku: &'a Sku,
    operation: OperationId,
    idempotency: Option<&'a Idempotency>,
    /// Whether SQL need not be asked for the key.
    sure: bool,
    keys: Vec<String>,
    movement: String,
    journal_limit: u32,
    /// How long the operation is remembered.
    memory: Duration,
}

impl Step<'_> {
    /// The name under which the operation is remembered.
    fn name(&self) -> &str {
        &self.keys[2]
    }

    fn arguments(&self, more: impl IntoIterator<Item = String>) -> Vec<String> {
        let mut all = vec![
            self.movement.clone(),
            self.journal_limit.to_string(),
            self.memory.as_millis().to_string(),
            u8::from(self.sure).to_string(),
        ];
        all.extend(more);
        all
    }
}

/// What a script's answer means for a deduction of `units`.
fn attempt(answer: Answer, units: i64) -> Result<Attempt, StoreError> {
    Ok(match answer {
        Answer::Written { available, .. } => Attempt::Journaled {
            remaining: available,
        },
        Answer::Duplicate => Attempt::Duplicate,
        // Somebody restocked since it was read.
        Answer::Short { available } if available >= units => Attempt::Stale,
        Answer::Short { available } => Attempt::Insufficient { available },
        Answer::Stale => Attempt::Stale,
        Answer::Fenced => Attempt::LockLost,
        Answer::Absent | Answer::Unsure => return Err(failure::bad_answer(answer)),
        Answer::Full => return Err(StoreError::JournalFull),
    })
}
