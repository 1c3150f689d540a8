//! Deducts with `WATCH`, `MULTI` and `EXEC`: reads the level, decides here, and writes if no other
//! client wrote in between.

use std::sync::Arc;

use deadpool::managed::{Object, PoolError};
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, Pipeline, RedisError, RedisResult, Value, from_redis_value};
use stocklock_core::ports::{self, Expiry};
use tokio::time::Instant;

use super::errors::{connecting, is_lost, is_redirected, reading, writing};
use super::idempotency::BUCKETS;
use super::keys::{Shard, last_state};
use super::levels::{Counters, level, read_level};
use super::nodes::Server;
use super::scripts::Answer;
use super::streams::waiting_movements;
use super::update::WriteRequest;
use super::writer::Writer;
use super::{RedisStore, WatchOn};
use crate::StoreError;
use crate::journal::{self, dedup_entry, journal_line};
use stocklock_core::stock::StockLevel;

impl RedisStore {
    /// Makes one attempt, for a caller who is answered by `deadline`. Returns [`Answer::Conflict`] if
    /// another client wrote in between, or the attempt has expired.
    pub(super) async fn watch(
        &self,
        request: &WriteRequest,
        deadline: Instant,
    ) -> Result<Answer, StoreError> {
        let keys = self.keys().await?;
        let attempt = keys.attempt(Shard::for_sku(&request.row.sku), &request.field);
        let watch = |server: Arc<Server>| {
            let key = attempt.clone();
            async move { self.watch_on(&server, &key, request, deadline).await }
        };
        self.nodes.on(request.keys.slot, watch).await
    }

    async fn watch_on(
        &self,
        server: &Server,
        key: &str,
        request: &WriteRequest,
        deadline: Instant,
    ) -> Result<Answer, StoreError> {
        let attempt = Attempt {
            request,
            key,
            expiry: server.shared.expiry(deadline).await?,
            journal_limit: u64::from(self.capacity.movements()),
            writer: &self.writer,
        };
        if self.options.watch_on == WatchOn::Shared {
            let (mut connection, _) = server.shared.get().await.map_err(connecting)?;
            return attempt.make(&mut connection).await;
        }
        let mut taken = server.exclusive.get().await.map_err(no_connection)?;
        taken.in_use = true;
        let answer = attempt.make(&mut taken.connection).await;
        match &answer {
            Ok(_) => taken.in_use = false,
            // A slot that moves refuses many attempts, and all of them use these connections.
            Err(error) if is_redirected(error) => {
                let unwatch = redis::cmd("UNWATCH");
                let unwatched = unwatch.exec_async(&mut taken.connection).await;
                taken.in_use = unwatched.is_err();
            }
            Err(error) => {
                // Close the connection, because it may still have a `WATCH`.
                drop(Object::take(taken));
                if is_lost(error) {
                    server.exclusive.retain(|_, _| false);
                }
            }
        }
        answer
    }
}

fn no_connection(error: PoolError<RedisError>) -> StoreError {
    match error {
        PoolError::Timeout(_) => StoreError::RedisExhausted,
        PoolError::Backend(error) => connecting(error),
        closed => StoreError::Unavailable(ports::Server::Redis, closed.into()),
    }
}

/// The replies: to `WATCH`, the level, when it was loaded, the journal's number of entries and its
/// counter `waiting`, whether the attempt has not expired, and the time.
type WatchReply = (
    (),
    Counters,
    Option<i64>,
    u64,
    Option<String>,
    bool,
    (i64, i64),
);

/// What was read under `WATCH`.
struct Watched {
    level: Option<StockLevel>,
    /// When the level was loaded from SQL, by the same clock as `millis`, but in microseconds. `None` if it was
    /// not.
    loaded: Option<i64>,
    /// The number of movements in the journal.
    waiting: u64,
    /// Whether the operation has a dedup entry.
    remembered: bool,
    /// Whether the attempt had not expired when the `WATCH` began.
    in_time: bool,
    /// Why the server refuses to write.
    refused: Option<RedisError>,
    /// The server's clock, in milliseconds.
    millis: i64,
}

/// One attempt at a deduction.
struct Attempt<'a> {
    request: &'a WriteRequest,
    /// The key that exists until the attempt expires. Attempts with the same idempotency key share it, and
    /// each deletes it, as do the scripts, so that only one of them succeeds, also if they are for different
    /// warehouses. A `WATCH` of the buckets would end when another SKU of the shard is sold.
    key: &'a str,
    expiry: Expiry,
    journal_limit: u64,
    writer: &'a Writer,
}

impl Attempt<'_> {
    /// Sends two messages, and perhaps `WAIT`. The second one, `EXEC` or `UNWATCH`, ends the `WATCH`.
    async fn make(&self, connection: &mut MultiplexedConnection) -> Result<Answer, StoreError> {
        let mut watched = self.watch_and_read(connection).await?;
        let (refused, now) = (watched.refused.take(), watched.millis);
        let next = match (decide(watched, self.request, self.journal_limit), refused) {
            (Ok(next), None) => next,
            // The movement that the server remembers can be read while it refuses to write.
            (Ok(_) | Err(Answer::Conflict), Some(refused)) => return Err(reading(refused)),
            (Err(answer), _) => {
                let unwatched = redis::cmd("UNWATCH").exec_async(connection).await;
                unwatched.map_err(reading)?;
                return Ok(answer);
            }
        };
        // The reply is nil if another client wrote in between, or if the key of the attempt has expired.
        // Then `EXEC` executed nothing.
        let transaction = self.transaction(&next, now);
        let executed: RedisResult<Option<Value>> = transaction.query_async(connection).await;
        let executed = executed.map_err(|error| writing(error).expiring(self.expiry))?;
        let written = Answer::Written {
            available: next.available(),
        };
        if executed.is_none() {
            return Ok(Answer::Conflict);
        }
        let waited = self.writer.wait(connection).await;
        waited.map_err(|failed| failed.writing().expiring(self.expiry))?;
        Ok(written)
    }

    async fn watch_and_read(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<Watched, StoreError> {
        let request = self.request;
        let mut commands = redis::pipe();
        commands
            .cmd("SET")
            .arg(self.key)
            .arg("")
            .arg("PXAT")
            .arg(self.expiry.at)
            .cmd("WATCH")
            .arg(&[&*request.keys.level, self.key])
            .add_command(read_level(&request.keys.level))
            .hget(&*request.keys.level, "loaded")
            .xlen(&request.keys.journal)
            .hget(&request.keys.counters, "waiting")
            .exists(self.key)
            .cmd("TIME");
        for bucket in &request.keys.buckets.keys {
            commands.hexists(bucket, &request.field);
        }
        let replies: RedisResult<Vec<Value>> =
            commands.ignore_errors().query_async(connection).await;
        let mut replies = replies.map_err(reading)?;
        let refused = replies.remove(0).extract_error().err();
        let in_buckets = replies.split_off(replies.len().saturating_sub(BUCKETS));
        let ((), counters, loaded, entries, counted, in_time, (seconds, micros)): WatchReply =
            parse_replies(replies)?;
        let in_buckets: Vec<bool> = parse_replies(in_buckets)?;
        Ok(Watched {
            level: level(&request.row.sku, &request.row.warehouse, counters)?,
            loaded,
            waiting: waiting_movements(entries, counted.as_deref()),
            remembered: in_buckets.contains(&true),
            in_time,
            refused,
            millis: seconds * 1000 + micros / 1000,
        })
    }

    /// Writes the same as the function `commit` of `scripts/prelude.lua`. `now` is the server's clock.
    fn transaction(&self, next: &StockLevel, now: i64) -> Pipeline {
        let (request, available) = (self.request, next.available());
        let key = request.row.idempotency_key.as_deref();
        let state = format!(
            "{} {} {} {} {}",
            journal::VERSION,
            next.on_hand,
            next.held,
            next.backorder_limit,
            next.version
        );
        let entry = dedup_entry(available, &request.common, &request.movement);
        let mut commands = redis::pipe();
        commands
            .atomic()
            .del(self.key)
            .cmd("HSET")
            .arg(&*request.keys.level)
            .arg(&[("units", next.on_hand), ("version", next.version)]);
        let (buckets, field) = (&request.keys.buckets, &request.field);
        buckets.remember(&mut commands, now, field, &entry);
        commands
            .cmd("XADD")
            .arg(&request.keys.journal)
            .arg("*")
            .arg("v")
            .arg(journal::VERSION)
            .arg("level")
            .arg(&*request.keys.level)
            .arg("common")
            .arg(&*request.common)
            .arg("movements")
            .arg(journal_line(key, available, &request.movement))
            .arg(&[
                ("on_hand", next.on_hand),
                ("held", next.held),
                ("backorder_limit", next.backorder_limit),
                ("version", next.version),
            ])
            .hincr(&request.keys.counters, "waiting", 1)
            .hset(
                &request.keys.counters,
                last_state(&request.keys.level),
                state,
            );
        commands
    }
}

/// Fails if one of the replies is an error.
fn parse_replies<T: FromRedisValue>(replies: Vec<Value>) -> Result<T, StoreError> {
    let replies = Value::Array(replies).extract_error();
    let parsed = replies.and_then(|replies| Ok(from_redis_value(replies)?));
    parsed.map_err(reading)
}

/// Returns the level to write, or the answer if there is nothing to write. The script `deduct.lua`
/// decides the same.
fn decide(
    watched: Watched,
    request: &WriteRequest,
    journal_limit: u64,
) -> Result<StockLevel, Answer> {
    if watched.remembered {
        return Err(Answer::Duplicate);
    }
    if !watched.in_time {
        return Err(Answer::Conflict);
    }
    let level = watched.level.ok_or(Answer::Absent)?;
    let lifetime = request.keys.buckets.lifetime();
    let may_be_lost = |&loaded: &i64| watched.millis < loaded / 1000 + lifetime;
    if let Some(loaded) = watched.loaded.filter(may_be_lost)
        && request.key_check.is_due(loaded)
    {
        return Err(Answer::KeyMayBeLost { loaded });
    }
    let available = level.available();
    if available + request.row.delta < 0 {
        return Err(Answer::Insufficient { available });
    }
    if watched.waiting >= journal_limit {
        return Err(Answer::Full);
    }
    Ok(StockLevel {
        on_hand: level.on_hand + request.row.delta,
        version: level.version + 1,
        ..level
    })
}
