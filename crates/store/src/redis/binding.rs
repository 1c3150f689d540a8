//! Binds the ledger to one Redis: a row in SQL and a key in Redis contain the same id.
//!
//! Guarantees:
//! - Stock is sold in one Redis, and entries are deleted from one Redis: the one in the row.
//! - A connection is used only if its server was that Redis when the connection was opened. A server
//!   that loses its data by a restart closes its connections, so the loss is noticed before a sale.
//! - A restart or a failover that keeps the id needs no operator. Replicas that used the Redis before
//!   follow it at once. Others wait until no replica uses another Redis with the same data.
//! - Before a Redis is followed, the row says that its levels are being compared. From then on, SQL takes no
//!   entries of the earlier run, so no level is older than SQL after the comparison ([`rollback`]).
//! - If another Redis may have sold since this one was used, its journals are merged into SQL before ([`merge`]).
//! - If a Redis without a restart has lost the key, it has lost its data. No level is loaded before the ledger
//!   is bound to it under another id. From then on, SQL takes no entries that were read before the loss.
//!
//! Replicas that use the Redis increase a beat, first in the row, then in the key, if the key still has
//! the beat that they found. A beat that does not change shows that no replica uses the Redis. Another
//! beat in the key shows that the database is a copy, or has lost its last writes. Of a database and its
//! copy, one at most increases the beat of the key, so the other one is refused.
//!
//! With `ON_REDIS_LOSS=reload`, a process sells only while it knows of a recent beat ([`beats`]).

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError, RedisResult};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::cluster::Node;
use super::connection::Connector;
use super::errors::is_redirected;
use super::keys::Keys;
use super::nodes::{Connections, Layouts};
use super::{OnRedisLoss, RedisOptions};
use crate::StoreError;
use crate::sql::{BoundRedis, SqlBackend};
use stocklock_core::ports::Server;

mod beats;
mod decide;
mod merge;
mod rollback;
mod rules;
mod server;

use beats::{Beats, Moment};
use rules::{Found, Refusal, Step, next_step};
pub(super) use server::{field, may_be_loaded};

/// How often a check asks the servers, if the answer is outdated at once because the process was paused.
const MAX_CHECKS: usize = 3;

/// The binding of one ledger, as this process knows it.
#[derive(Debug)]
pub(super) struct Binding {
    sql: Arc<dyn SqlBackend>,
    /// Opens connections to the server that `REDIS_URL` leads to.
    connector: Connector,
    layouts: Layouts,
    on_loss: OnRedisLoss,
    keys: OnceCell<Keys>,
    state: Mutex<State>,
    /// The number of the current binding, or 0 if the Redis may not be used.
    current: AtomicU64,
    /// One decision at a time.
    deciding: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug, Default)]
struct State {
    now: Now,
    /// When that was decided.
    decided: Option<Instant>,
    /// The runs of the servers that were bound last.
    runs: Vec<String>,
    /// How many bindings there were.
    bindings: u64,
    /// The Redis that this process used last.
    last: Option<BoundRedis>,
    beats: Beats,
    /// A row that does not match the key, the beat of the key, and since when both have not changed.
    watched: Option<((BoundRedis, i64), Instant)>,
    /// Whether other replicas have changed row or key while they were watched.
    in_use: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum Now {
    #[default]
    Unknown,
    /// No stock was ever in a Redis.
    Nothing,
    Bound(BoundRedis),
    Refused(Refusal),
}

impl Binding {
    pub(super) fn new(
        sql: Arc<dyn SqlBackend>,
        connector: Connector,
        layouts: Layouts,
        options: &RedisOptions,
    ) -> Arc<Self> {
        Arc::new(Self {
            sql,
            connector,
            layouts,
            on_loss: options.on_loss,
            keys: OnceCell::new(),
            state: Mutex::default(),
            current: AtomicU64::new(0),
            deciding: Arc::default(),
        })
    }

    pub(super) async fn keys(&self) -> Result<&Keys, StoreError> {
        let ledger = || async { self.sql.ledger_id().await.map(Keys) };
        self.keys.get_or_try_init(ledger).await
    }

    /// Returns the number of the binding if stock may be used in this Redis. Binds the ledger if no
    /// stock was in a Redis before. No request reaches Redis before this.
    pub(super) async fn check(self: &Arc<Self>) -> Result<u64, StoreError> {
        for _ in 0..MAX_CHECKS {
            let number = self.current.load(Ordering::Acquire);
            if number != 0 && self.may_sell(&self.state()) {
                return Ok(number);
            }
            match self.decide(true).await? {
                Now::Bound(_) => {}
                Now::Refused(why) => return Err(refused(why)),
                Now::Unknown | Now::Nothing => break,
            }
        }
        Err(changed())
    }

    /// When this process must stop to sell, unless it learns of another beat until then. `None` if no
    /// replica takes over by itself.
    pub(super) fn sells_until(&self) -> Option<Instant> {
        let left = || self.state().beats.sells_for(beats::now());
        (self.on_loss == OnRedisLoss::Reload).then(|| Instant::now() + left())
    }

    /// Whether a beat is recent enough to sell.
    fn may_sell(&self, state: &State) -> bool {
        self.on_loss == OnRedisLoss::Refuse || !state.beats.sells_for(beats::now()).is_zero()
    }

    /// The same, or 0 if no stock was ever in a Redis: then this does not bind the ledger.
    pub(super) async fn check_to_read(self: &Arc<Self>) -> Result<u64, StoreError> {
        loop {
            let number = self.current.load(Ordering::Acquire);
            if number != 0 {
                return Ok(number);
            }
            match self.decide(false).await? {
                Now::Bound(_) => {}
                Now::Nothing => return Ok(0),
                Now::Refused(why) => return Err(refused(why)),
                Now::Unknown => return Err(changed()),
            }
        }
    }

    /// Refuses a new connection unless its server is the Redis of this ledger. Returns the number of the
    /// binding, or 0 if there is none, or the binding changes meanwhile.
    pub(super) async fn admit(
        self: &Arc<Self>,
        connection: &mut MultiplexedConnection,
        node: &Node,
    ) -> RedisResult<u64> {
        // Before the server answers, so it is not the number of a later binding.
        let number = self.current.load(Ordering::Acquire);
        let (run_id, is_used) = match node {
            Node::Single => {
                let found = self.find(&Connections::single(connection.clone())).await;
                let found = found.map_err(unknown)?;
                (found.runs[0].clone(), self.is_used(&found))
            }
            Node::Of { .. } => {
                let run = server::run_of(connection).await.map_err(unknown)?;
                let is_used = self.has_run(&run);
                (run, is_used)
            }
        };
        if is_used {
            return Ok(number);
        }
        self.forget();
        match self.decide(false).await.map_err(unknown)? {
            Now::Nothing => Ok(0),
            Now::Bound(bound) if self.has_run(&run_id) => Ok(self.number_of(&bound)),
            Now::Refused(why) => Err(not_admitted(why)),
            Now::Bound(_) | Now::Unknown => {
                Err(not_admitted("Redis was replaced while it was checked"))
            }
        }
    }

    /// Whether one of the servers that are in use has this run.
    fn has_run(&self, run: &String) -> bool {
        let state = self.state();
        matches!(state.now, Now::Bound(_)) && state.runs.contains(run)
    }

    /// The number of this binding, or 0 if it is no longer the current one.
    fn number_of(&self, bound: &BoundRedis) -> u64 {
        match &self.state().now {
            Now::Bound(now) if now.is_same(bound) => self.current.load(Ordering::Acquire),
            _ => 0,
        }
    }

    /// Whether this is the number of the current binding.
    pub(super) fn is_current(&self, number: u64) -> bool {
        number != 0 && number == self.current.load(Ordering::Acquire)
    }

    /// Whether the server is the one that is in use.
    fn is_used(&self, found: &Found) -> bool {
        match &self.state().now {
            // If the key was deleted, the ledger is bound again later: at the next load, or by a consumer.
            Now::Bound(bound) => {
                bound.run_id == found.run_id && found.id.as_ref().is_none_or(|id| *id == bound.id)
            }
            _ => false,
        }
    }

    /// Checks that row and key still have the id that this process uses. The consumer asks before it
    /// reads entries and before it deletes them. Returns the row, or `None` if no stock was ever in a
    /// Redis.
    pub(super) async fn confirm(
        self: &Arc<Self>,
        connections: &Connections,
    ) -> Result<Option<BoundRedis>, StoreError> {
        let confirmed = self.confirmed(connections, false).await?;
        Ok(confirmed.map(|(_, row)| row))
    }

    /// The same. `marks`: also the marks of all shards, unless a slot moves. Returns what both servers say,
    /// or `None` if no stock was ever in a Redis.
    async fn confirmed(
        self: &Arc<Self>,
        connections: &Connections,
        marks: bool,
    ) -> Result<Option<(Found, BoundRedis)>, StoreError> {
        for _ in 0..2 {
            let sent = beats::now();
            let found = if marks {
                self.find_with_marks(connections).await?
            } else {
                self.find(connections).await?
            };
            let row = self.sql.bound_redis().await?;
            match (next_step(&found, row.as_ref(), false), row) {
                (Step::Use, Some(row)) if self.is_used(&found) => {
                    self.saw(&row, sent);
                    return Ok(Some((found, row)));
                }
                (Step::Nothing, _) => return Ok(None),
                _ => self.forget(),
            }
            match self.decide(false).await? {
                Now::Bound(bound) if bound.run_id == found.run_id => {}
                Now::Nothing => return Ok(None),
                Now::Refused(why) => return Err(refused(why)),
                Now::Bound(_) | Now::Unknown => break,
            }
        }
        let why = "this connection leads to a Redis that is no longer used";
        Err(StoreError::Unavailable(Server::Redis, why.into()))
    }

    /// Checks the same and, unless a slot moves, the marks of all shards, and increases the beat if it is still
    /// `seen`. Returns the beat. So the loss of a node without the key is found while the nodes have the same runs.
    pub(super) async fn beat(
        self: &Arc<Self>,
        connections: &Connections,
        seen: i64,
    ) -> Result<i64, StoreError> {
        let Some((found, row)) = self.confirmed(connections, true).await? else {
            return Ok(seen);
        };
        if found.beat == row.beat && row.beat != seen {
            return Ok(row.beat);
        }
        self.write_beat(connections, &row, &found).await
    }

    /// Writes the next beat, unless another replica has written one, or the key has not the last one yet.
    /// Returns the beat.
    async fn write_beat(
        &self,
        connections: &Connections,
        row: &BoundRedis,
        found: &Found,
    ) -> Result<i64, StoreError> {
        let keys = self.keys().await?;
        if found.beat != row.beat {
            // Another replica has not written the key yet, or has ended before it did.
            server::write(connections, keys, row, Some(found)).await?;
            return Ok(row.beat);
        }
        let (next, sent) = (found.next_row(row), beats::now());
        if self.sql.bind_redis(Some(row), &next).await? {
            self.wrote(&next, sent);
            server::write(connections, keys, &next, Some(found)).await?;
        }
        Ok(next.beat)
    }

    fn wrote(&self, row: &BoundRedis, sent: Moment) {
        let mut state = self.state();
        state.beats.wrote(row, sent);
        if state.last.as_ref().is_some_and(|last| last.is_same(row)) {
            state.last = Some(row.clone());
        }
    }

    /// Remembers a row that this process uses, read by a statement that was sent at `sent`.
    fn saw(&self, row: &BoundRedis, sent: Moment) {
        let mut state = self.state();
        state.beats.read(row, sent);
        state.last = Some(row.clone());
    }

    /// Deletes every key of this ledger.
    pub(super) async fn purge(&self) -> Result<(), StoreError> {
        let keys = self.keys().await?;
        self.delete_all(&self.connect().await?, &keys.pattern())
            .await
    }

    async fn find(&self, connections: &Connections) -> Result<Found, StoreError> {
        let database = self.connector.address.database();
        server::find(connections, self.keys().await?, database).await
    }

    /// The same, with the marks, which cannot all be read while a slot moves.
    async fn find_with_marks(&self, connections: &Connections) -> Result<Found, StoreError> {
        match self.find_all(connections).await {
            Err(error) if is_redirected(&error) => {
                self.layouts.refresh();
                self.find(connections).await
            }
            found => found,
        }
    }

    /// Makes the next user ask the servers again.
    pub(super) fn forget(&self) {
        let mut state = self.state();
        if matches!(state.now, Now::Bound(_) | Now::Nothing) {
            self.current.store(0, Ordering::Release);
            state.now = Now::Unknown;
            state.decided = None;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds this mutex.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn changed() -> StoreError {
    let why = "the binding of Redis changed while it was checked";
    StoreError::Unavailable(Server::Redis, why.into())
}

/// The error of a request. In a few seconds, it may succeed or be refused for another reason.
fn refused(why: Refusal) -> StoreError {
    match why {
        Refusal::NotYetKnown => StoreError::Unavailable(Server::Redis, why.into()),
        why => StoreError::NotBound(why.to_string()),
    }
}

/// The error of a connection whose server could not be checked.
fn unknown(error: StoreError) -> RedisError {
    match error {
        StoreError::Unavailable(_, source) | StoreError::ConnectionLost(_, source) => {
            not_admitted(source)
        }
        error => not_admitted(error),
    }
}

/// The error of a connection to a server that may not be used.
fn not_admitted(why: impl Display) -> RedisError {
    let what = "the stock in this Redis is not used";
    RedisError::from((ErrorKind::Client, what, why.to_string()))
}
