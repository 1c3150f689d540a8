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
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use secrecy::ExposeSecret;

use super::sql::ledger_row::LedgerRow;
use super::sql::{BoundRedis, SqlBackend};
use super::{AttemptOutcome, RedisMethod, StoreError};
use stocklock_core::ports::Expiry;
use stocklock_core::stock::{Deduction, Durability, Home, Sku, Warehouse};

mod address;
mod audit;
mod batching;
mod binding;
mod capacity;
mod cluster;
mod connection;
mod consumer;
mod errors;
mod idempotency;
mod keys;
mod level_cache;
mod level_keys;
mod levels;
#[cfg(test)]
mod model;
mod nodes;
mod on_demand;
mod repair;
mod scripts;
mod server_check;
mod streams;
mod update;
mod watch;
mod writer;

use address::Address;
use batching::ScriptBatches;
use binding::Binding;
use capacity::Capacity;
use cluster::Node;
use connection::{Connector, millis};
pub use consumer::JournalConsumer;
use errors::{bad_answer, is_redirected};
use idempotency::{KeyCheck, UnknownOutcomes};
use keys::{Keys, Shard};
pub use level_cache::{Cached, Miss, SharedLevels};
use level_keys::KeptKeys;
use nodes::{Layouts, Nodes};
use scripts::Answer;
pub use streams::{JournalReport, RejectedEntry};
use writer::Writer;

/// How to connect to Redis, and the limits of its use.
#[derive(Debug, Clone)]
pub struct RedisOptions {
    /// `redis://[user[:password]@]host[:port][/database]`, or
    /// `redis+sentinel://[user[:password]@]host[:port],…/master[/database]`, or
    /// `redis+cluster://[user[:password]@]host[:port],…`, or one of them with `rediss` and TLS.
    pub url: secrecy::SecretString,
    /// How long to wait for a connection, and for a reply.
    pub wait_limit: Duration,
    /// How long a request may be repeated that has no idempotency key. All replicas need the same.
    pub request_deadline: Duration,
    /// The maximum number of connections for `WATCH` and `WAIT` to each server.
    pub watch_connections: u32,
    /// Which connections `WATCH` uses.
    pub watch_on: WatchOn,
    /// How many replicas must have a change before it is answered.
    pub wait_replicas: u32,
    /// The maximum number of movements that may wait in one journal.
    pub journal_limit: u32,
    /// The maximum number of bytes that all journals may take together.
    pub journal_limit_bytes: u64,
    /// What to do if Redis has lost its data.
    pub on_loss: OnRedisLoss,
}

/// What a replica does if Redis has lost its data, or is another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnRedisLoss {
    /// Sells nothing from Redis until an operator says which Redis has the stock.
    Refuse,
    /// Loads the stock from SQL, once no replica uses another Redis.
    Reload,
}

/// What a repair of one level found, and did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repair {
    /// The warehouse.
    pub warehouse: Warehouse,
    /// By how many units the level was too high.
    pub drift: i64,
    /// Units on hand after that.
    pub on_hand: i64,
    /// What was done.
    pub result: Repaired,
}

/// What a repair did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repaired {
    /// Level and ledger agree.
    NotNeeded,
    /// The level was too high, and is right now.
    Corrected,
    /// The level is too low: SQL has lost sales, or does not have them yet. Nothing was changed.
    TooLow,
    /// The journal has entries of this level that cannot be read, so the drift may be wrong. Nothing was
    /// changed.
    UnreadableEntries,
}

/// How often a replica calls [`crate::StoreRouter::confirm_redis`].
pub const BEAT_EVERY: Duration = Duration::from_secs(1);

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
    binding: Arc<Binding>,
    /// The number of the binding that the open connections belong to.
    bound: AtomicU64,
    nodes: Nodes,
    writer: Writer,
    batches: ScriptBatches,
    capacity: Arc<Capacity>,
    kept_keys: KeptKeys,
    unknown: UnknownOutcomes,
    options: RedisOptions,
}

impl RedisStore {
    pub(super) fn open(options: RedisOptions, sql: Arc<dyn SqlBackend>) -> Result<Self, String> {
        let address = Address::parse(options.url.expose_secret()).ok_or_else(|| {
            "expected redis[s]://[user[:password]@]host[:port][/database], \
             redis[s]+sentinel://[user[:password]@]host[:port],…/master[/database], or \
             redis[s]+cluster://[user[:password]@]host[:port],…"
                .to_owned()
        })?;
        let limit = options.wait_limit;
        let layouts = Layouts::new(address.clone(), limit);
        let mut connector = Connector {
            address,
            node: Node::Single,
            limit,
            binding: None,
        };
        let sql_of_binding = Arc::clone(&sql);
        let binding = Binding::new(sql_of_binding, connector.clone(), layouts.clone(), &options);
        connector.binding = Some(Arc::clone(&binding));
        let nodes = Nodes::new(connector, layouts, options.watch_connections as usize);
        let capacity = Arc::new(Capacity::new(
            options.journal_limit,
            options.journal_limit_bytes,
        ));
        let writer = Writer {
            nodes: nodes.clone(),
            replicas: options.wait_replicas,
        };
        Ok(Self {
            sql,
            binding,
            bound: AtomicU64::new(0),
            batches: ScriptBatches::new(writer.clone(), Arc::clone(&capacity)),
            capacity,
            nodes,
            kept_keys: KeptKeys::default(),
            writer,
            unknown: UnknownOutcomes::default(),
            options,
        })
    }

    /// The names of the keys, if the stock of the ledger is in this Redis. Every operation needs them,
    /// so none starts in another Redis.
    async fn keys(&self) -> Result<&Keys, StoreError> {
        let binding = self.binding.check().await?;
        self.follow(binding);
        self.binding.keys().await
    }

    /// The names of the keys, for what does not need stock in Redis. Does not bind the ledger.
    async fn keys_to_read(&self) -> Result<&Keys, StoreError> {
        let binding = self.binding.check_to_read().await?;
        self.follow(binding);
        self.binding.keys().await
    }

    /// Closes the connections of an earlier binding, which may lead to another server.
    fn follow(&self, binding: u64) {
        if self.bound.swap(binding, Ordering::AcqRel) != binding {
            self.nodes.close();
        }
    }

    /// Checks that stock may be used here, and sends `PING`. In a cluster, one node that answers is enough: its
    /// stock can be sold.
    pub(super) async fn ping(&self) -> Result<(), StoreError> {
        let slots = self.keys_to_read().await?.slots();
        self.nodes.ping(slots).await
    }

    /// Checks that these connections lead to the Redis of the ledger, before entries are read or deleted.
    /// If not, closes them. Returns the binding, if stock was ever in a Redis.
    async fn confirm(&self, nodes: &Nodes) -> Result<Option<BoundRedis>, StoreError> {
        let slots = self.binding.keys().await?.slots();
        let connections = nodes.connections(slots).await?;
        let confirmed = self.binding.confirm(&connections).await;
        if confirmed.as_ref().is_err_and(|error| !is_redirected(error)) {
            nodes.close();
        }
        confirmed
    }

    /// The clock of Redis, in milliseconds since 1970. In a cluster, the one that is most behind, and the one
    /// that is most ahead.
    async fn clocks(&self, keys: &Keys) -> Result<(i64, i64), StoreError> {
        let connections = self.nodes.connections(keys.slots()).await?;
        let mut time = redis::pipe();
        time.cmd("TIME");
        let times: Vec<[(i64, i64); 1]> = connections.query_all(&time).await?;
        let times = || times.iter().map(|[time]| millis(*time));
        let both = times().min().zip(times().max());
        Ok(both.expect("there is a server"))
    }

    /// Checks the same, and shows the other replicas that this Redis is used: increases the beat if
    /// it is still `seen`. Returns the beat.
    pub(super) async fn beat(&self, seen: i64) -> Result<i64, StoreError> {
        // If the binding is unknown or refused, this asks the servers.
        let keys = self.keys_to_read().await?;
        // This notices a lost connection too, also without sales.
        let connections = self.nodes.connections(keys.slots()).await?;
        self.binding.beat(&connections, seen).await
    }

    /// Binds the ledger to this Redis. Returns whether it was bound to another one, or to none.
    pub(super) async fn adopt(&self) -> Result<bool, StoreError> {
        self.binding.adopt().await
    }

    pub(super) fn close(&self) {
        self.nodes.shut_down();
    }

    /// Deletes every key of this ledger. The caller ensures that no replica uses the ledger.
    pub(super) async fn purge(&self) -> Result<(), StoreError> {
        self.binding.purge().await
    }

    /// Whether Redis refuses attempts on this SKU that expire then. A node that no longer has the slot of the
    /// SKU refuses all.
    pub(super) async fn has_passed(&self, sku: &Sku, expiry: Expiry) -> Result<bool, StoreError> {
        let slot = self.keys_to_read().await?.slot(Shard::for_sku(sku));
        let time = self.nodes.read(slot, &redis::cmd("TIME")).await;
        Ok(millis(time?) >= expiry.at)
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
        let mut request = Arc::new(self.request(row, key).await?);
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
                Answer::KeyMayBeLost { .. } if self.restore(&request, key).await? => {
                    return Ok(AttemptOutcome::Duplicate);
                }
                Answer::KeyMayBeLost { loaded } => {
                    Arc::make_mut(&mut request).key_check = KeyCheck::Done { loaded };
                }
                Answer::Absent => {
                    Arc::make_mut(&mut request).uncheck(&self.unknown);
                    match self.load(&deduction.sku, &deduction.warehouse).await? {
                        Some(Home::Redis) => {}
                        Some(home) => return Ok(AttemptOutcome::WrongHome(home)),
                        None => return Ok(AttemptOutcome::UnknownSku),
                    }
                }
                Answer::Full => return Err(self.capacity.exceeded()),
                settled => return attempt(settled, deduction.quantity.units()),
            }
        }
        Err(levels::evicted_again())
    }
}

/// Converts a script's answer to the outcome of deducting `units`.
fn attempt(answer: Answer, units: i64) -> Result<AttemptOutcome, StoreError> {
    Ok(match answer {
        Answer::Written { available } => AttemptOutcome::Deducted {
            durability: Durability::Redis,
            remaining: available,
        },
        Answer::Duplicate => AttemptOutcome::Duplicate,
        // A restock came between the read and the write.
        Answer::Insufficient { available } if available >= units => AttemptOutcome::Conflict,
        // The script has looked for the operation.
        Answer::Insufficient { available } => AttemptOutcome::Unrecorded { available },
        Answer::Conflict => AttemptOutcome::Conflict,
        Answer::Fenced => AttemptOutcome::LockLost,
        Answer::Absent | Answer::KeyMayBeLost { .. } | Answer::Full => {
            return Err(bad_answer(answer));
        }
    })
}
