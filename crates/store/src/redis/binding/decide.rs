//! Finds out whether this Redis has the stock of the ledger, and writes what is missing.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::rules::{Found, Refusal, Step, next_step};
use super::{Binding, Now, beats, rollback, server};
use crate::StoreError;
use crate::redis::OnRedisLoss;
use crate::redis::errors::connecting;
use crate::redis::nodes::Connections;
use crate::sql::BoundRedis;
use stocklock_core::ports::Server;
use stocklock_core::stock::Home;

/// If the beat does not change for this long, no replica uses the Redis. Replicas increase it every
/// [`super::super::BEAT_EVERY`].
pub(super) const ABANDONED_AFTER: Duration = Duration::from_secs(5);

/// How long a refusal is repeated without asking the servers again.
const REFUSED_FOR: Duration = Duration::from_millis(250);

/// How many steps a decision may take. Each writes something, or another replica was faster.
const MAX_STEPS: usize = 20;

impl Binding {
    /// Asks both servers, unless another caller has done so since this call began. `bind`: stock is
    /// about to be used.
    pub(super) async fn decide(self: &Arc<Self>, bind: bool) -> Result<Now, StoreError> {
        let (this, asked) = (Arc::clone(self), Instant::now());
        let decision = async move {
            let one = Arc::clone(&this.deciding).lock_owned().await;
            if let Some(known) = this.known(asked, bind) {
                return Ok(Ok(known));
            }
            // A separate task, because the caller may be cancelled between two writes. It keeps the lock, so
            // there is one at most.
            let task = async move {
                let _one = one;
                this.decide_now(bind).await
            };
            tokio::spawn(task).await
        };
        let decided = timeout(2 * self.connector.limit, decision).await;
        let Ok(Ok(decided)) = decided else {
            let why = "it takes longer than usual to check which Redis has the stock";
            return Err(StoreError::Unavailable(Server::Redis, why.into()));
        };
        decided
    }

    /// What another caller has decided, if it is still valid for a caller of that time.
    fn known(&self, asked: Instant, bind: bool) -> Option<Now> {
        let state = self.state();
        let decided = state.decided?;
        let is_valid = match state.now {
            Now::Unknown => false,
            Now::Nothing => !bind,
            Now::Bound(_) => !bind || self.may_sell(&state),
            Now::Refused(_) => decided + REFUSED_FOR >= asked,
        };
        is_valid.then(|| state.now.clone())
    }

    async fn decide_now(&self, bind: bool) -> Result<Now, StoreError> {
        let connections = self.connect().await?;
        for _ in 0..MAX_STEPS {
            if let Some(now) = self.step(&connections, bind).await? {
                self.set(now.clone());
                return Ok(now);
            }
        }
        let why = "other replicas bind the ledger at the same time";
        Err(StoreError::Aborted(why.into()))
    }

    /// Opens connections to all servers that have the stock.
    pub(in crate::redis) async fn connect(&self) -> Result<Connections, StoreError> {
        let slots = self.keys().await?.slots();
        Connections::open(&self.connector, &self.layouts, slots).await
    }

    /// Deletes the keys of this ledger that match the pattern.
    pub(super) async fn delete_all(
        &self,
        connections: &Connections,
        pattern: &str,
    ) -> Result<(), StoreError> {
        let keys = self.keys().await?;
        server::delete_all(connections, keys, pattern).await?;
        // A node that has given a slot away since then refuses to read its mark. The epoch may stay the same: a
        // target that already has the highest one does not increase it. If a slot has left and come back, the epoch
        // is higher.
        self.find_all(connections).await?;
        let layout = self.layouts.ask_now().await.map_err(connecting)?;
        if layout.epoch() != connections.layout().epoch() {
            let why = "the nodes of the cluster have changed while keys were deleted; try again";
            return Err(StoreError::Aborted(why.into()));
        }
        Ok(())
    }

    pub(super) async fn find_all(&self, connections: &Connections) -> Result<Found, StoreError> {
        let database = self.connector.address.database();
        server::find_all(connections, self.keys().await?, database).await
    }

    /// Takes the next step. Returns the decision once there is nothing left to write.
    async fn step(&self, connections: &Connections, bind: bool) -> Result<Option<Now>, StoreError> {
        let keys = self.keys().await?;
        let sent = beats::now();
        let found = self.find_all(connections).await?;
        if !found.is_primary {
            self.layouts.refresh();
            let why = "REDIS_URL leads to a replica, not to a primary";
            return Err(StoreError::Unavailable(Server::Redis, why.into()));
        }
        // After Redis: the row is written before the key, so it is never older than the key.
        let row = self.sql.bound_redis().await?;
        let has_stock = bind || row.is_some() || self.sql.has_home(Home::Redis).await?;
        let next = next_step(&found, row.as_ref(), has_stock);
        // The row may be of a binding, or of a beat, that was written since.
        if !matches!(next, Step::Use | Step::Nothing) {
            let again = self.find_all(connections).await?;
            if (&again.key, &again.marks) != (&found.key, &found.marks) {
                return Ok(None);
            }
        }
        let Some(row) = row else {
            return Ok(match next {
                Step::Refuse(why) => Some(Now::Refused(why)),
                Step::Nothing => Some(Now::Nothing),
                _ => {
                    self.sql.bind_redis(None, &found.first_row(None)).await?;
                    None
                }
            });
        };
        match next {
            Step::Use => {
                self.state().runs.clone_from(&found.runs);
                self.state().beats.read(&row, sent);
                if !bind || self.may_sell(&self.state()) {
                    return Ok(Some(Now::Bound(row)));
                }
                self.write_beat(connections, &row, &found).await?;
            }
            Step::Refuse(why) => return self.recover(connections, why, &row, &found).await,
            Step::Follow => {
                if !self.has_seen_latest(&row, &found)
                    && let Err(why) = self.is_abandoned(&row, &found)
                {
                    return Ok(Some(Now::Refused(why)));
                }
                server::check_no_slot_moves(connections, keys).await?;
                let next = found.compared_row(&row);
                self.sql.bind_redis(Some(&row), &next).await?;
            }
            Step::Compare => {
                // After the row was written, so that no entry of the earlier run is applied later. Before it
                // says that this run is used.
                server::check_no_slot_moves(connections, keys).await?;
                if found.needs_merge(&row) {
                    self.merge(connections, &row).await?;
                }
                server::end_loads(connections, keys).await?;
                rollback::drop_older(&*self.sql, connections, keys).await?;
                let next = found.next_row(&row);
                if self.sql.bind_redis(Some(&row), &next).await? {
                    server::write(connections, keys, &next, Some(&found)).await?;
                }
            }
            Step::Begin => {
                let next = found.next_row(&row);
                self.sql.bind_redis(Some(&row), &next).await?;
            }
            Step::Rebind => {
                // Those that it still has may be of a time before SQL refused their entries. No level is
                // loaded while there is no key.
                self.delete_all(connections, &keys.levels_pattern()).await?;
                let new = found.first_row(Some(&row));
                if self.sql.bind_redis(Some(&row), &new).await? {
                    tracing::warn!("Redis has lost its data; the stock is loaded from SQL");
                }
            }
            Step::WriteKey => server::write(connections, keys, &row, Some(&found)).await?,
            Step::Replace | Step::Insert | Step::Nothing => {
                let new = found.first_row(Some(&row));
                self.sql.bind_redis(Some(&row), &new).await?;
            }
        }
        Ok(None)
    }

    /// Refuses, or adopts the Redis if the configuration says so and no replica uses another one.
    async fn recover(
        &self,
        connections: &Connections,
        why: Refusal,
        row: &BoundRedis,
        found: &Found,
    ) -> Result<Option<Now>, StoreError> {
        let is_lost = matches!(why, Refusal::LostData | Refusal::OtherRedis);
        if self.on_loss == OnRedisLoss::Refuse || !is_lost {
            return Ok(Some(Now::Refused(why)));
        }
        if let Err(in_use) = self.is_abandoned(row, found) {
            return Ok(Some(Now::Refused(in_use)));
        }
        let new = found.first_row(Some(row));
        if self.take(connections, Some(row), new).await? {
            tracing::warn!("{why}; ON_REDIS_LOSS=reload: the stock is loaded from SQL");
        }
        Ok(None)
    }

    /// Binds the ledger to the Redis of the connection, unless the row has changed. Levels that are in
    /// it are loaded again, from the journal or from SQL, whichever is later.
    async fn take(
        &self,
        connections: &Connections,
        row: Option<&BoundRedis>,
        new: BoundRedis,
    ) -> Result<bool, StoreError> {
        let keys = self.keys().await?;
        // Before the row: if this process ends after it has written the row, another one may write a
        // missing key, and then uses the levels that it finds. To load a level again is always safe.
        self.delete_all(connections, &keys.levels_pattern()).await?;
        // Before the key, so that replicas with another Redis stop to sell.
        if !self.sql.bind_redis(row, &new).await? {
            return Ok(false);
        }
        // Replicas that had used this Redis may have loaded levels until they found the new row, and may
        // have read mirrors from before it.
        server::end_loads(connections, keys).await?;
        self.delete_all(connections, &keys.levels_pattern()).await?;
        server::write(connections, keys, &new, None).await?;
        Ok(true)
    }

    /// Binds the ledger to this Redis because an operator says so. Returns whether it was bound to
    /// another one.
    pub(in crate::redis) async fn adopt(self: &Arc<Self>) -> Result<bool, StoreError> {
        let connections = self.connect().await?;
        for _ in 0..MAX_STEPS {
            let found = self.find_all(&connections).await?;
            let row = self.sql.bound_redis().await?;
            if next_step(&found, row.as_ref(), true) == Step::Use {
                return Ok(false);
            }
            let new = found.first_row(row.as_ref());
            if self.take(&connections, row.as_ref(), new).await? {
                self.check().await?;
                return Ok(true);
            }
        }
        let why = "other replicas bind the ledger at the same time";
        Err(StoreError::Aborted(why.into()))
    }

    /// Whether this process has used the Redis in the row, and has seen the latest beat of the key.
    /// Only for a key with the id of the row: a missing key has no beat.
    fn has_seen_latest(&self, row: &BoundRedis, found: &Found) -> bool {
        let is_older = found.run_id != row.run_id && found.beat <= row.beat;
        let has_seen =
            |last: &BoundRedis| last.is_same(row) && (last.beat >= found.beat || is_older);
        self.state().last.as_ref().is_some_and(has_seen)
    }

    /// Whether no other replica uses the Redis in the row, or the one that was found, with another
    /// database: for [`ABANDONED_AFTER`], neither the row nor the key has changed.
    fn is_abandoned(&self, row: &BoundRedis, found: &Found) -> Result<(), Refusal> {
        let mut state = self.state();
        let seen = (row.clone(), found.beat);
        let unchanged_since = match &state.watched {
            Some((watched, since)) if *watched == seen => Some(*since),
            Some(_) => {
                state.in_use = true;
                None
            }
            None => None,
        };
        match unchanged_since {
            Some(since) if since.elapsed() >= ABANDONED_AFTER => return Ok(()),
            Some(_) => {}
            None => state.watched = Some((seen, Instant::now())),
        }
        Err(if !state.in_use {
            Refusal::NotYetKnown
        } else if found.id.as_ref() == Some(&row.id) && found.beat > row.beat {
            Refusal::DatabaseIsOlder
        } else {
            Refusal::InUse
        })
    }

    fn set(&self, now: Now) {
        let mut state = self.state();
        let current = match &now {
            Now::Bound(bound) => {
                let is_last = |last: &BoundRedis| last.is_same(bound);
                if !state.last.as_ref().is_some_and(is_last) {
                    state.bindings += 1;
                }
                state.last = Some(bound.clone());
                state.watched = None;
                state.in_use = false;
                if matches!(state.now, Now::Refused(_)) {
                    tracing::info!("Redis has the stock of this ledger; it is sold again");
                }
                state.bindings
            }
            Now::Refused(why) => {
                if state.now != now {
                    tracing::error!("stock in Redis is not sold: {why}");
                }
                0
            }
            Now::Unknown | Now::Nothing => 0,
        };
        self.current.store(current, Ordering::Release);
        state.decided = Some(Instant::now());
        state.now = now;
    }
}
