//! Deducts with `WATCH`, `MULTI` and `EXEC`: reads the level, decides here, and writes if no other
//! client wrote in between.

use std::error::Error;

use deadpool::managed::{Object, PoolError};
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, RedisError, RedisResult, Value, from_redis_value};
use stocklock_core::ports::{Expiry, Server};
use tokio::time::Instant;

use super::errors::{RedisFailure, connecting, is_connection_error, reading, writing};
use super::levels::{Counters, level, read_level};
use super::scripts::Answer;
use super::streams::waiting_movements;
use super::update::WriteRequest;
use super::{RedisStore, WatchOn};
use crate::StoreError;
use crate::journal::{self, format_line};
use stocklock_core::stock::StockLevel;

impl RedisStore {
    /// Makes one attempt, for a caller who is answered by `deadline`. Returns [`Answer::Conflict`] if
    /// another client wrote in between, or the attempt has expired.
    pub(super) async fn watch(
        &self,
        request: &WriteRequest,
        deadline: Instant,
    ) -> Result<Answer, StoreError> {
        let expiry = self.shared.expiry(deadline).await?;
        let limit = u64::from(self.capacity.movements());
        if self.options.watch_on == WatchOn::Shared {
            let (mut connection, _) = self.shared.get().await.map_err(connecting)?;
            return watch_and_deduct(&mut connection, request, expiry, limit).await;
        }
        let mut taken = self.exclusive.get().await.map_err(no_connection)?;
        taken.in_use = true;
        let answer = watch_and_deduct(&mut taken.connection, request, expiry, limit).await;
        match &answer {
            Ok(_) => taken.in_use = false,
            Err(error) => {
                // Close the connection, because it may still have a `WATCH`.
                drop(Object::take(taken));
                if affects_all_connections(error) {
                    self.exclusive.retain(|_, _| false);
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
        closed => StoreError::Unavailable(Server::Redis, closed.into()),
    }
}

/// Whether the error may affect all connections, because they lead to the same server.
fn affects_all_connections(error: &StoreError) -> bool {
    let failure = error.source().and_then(|source| source.downcast_ref());
    failure.is_some_and(|RedisFailure(error)| is_connection_error(error))
}

/// The replies: to `WATCH`, the level, when it was loaded, the journal's number of entries and its
/// counter `waiting`, whether there is a dedup entry, whether the attempt has not expired, and the time.
type WatchReply = (
    (),
    Counters,
    Option<i64>,
    u64,
    Option<String>,
    bool,
    bool,
    (i64, i64),
);

/// What was read under `WATCH`.
struct Watched {
    level: Option<StockLevel>,
    /// When the level was loaded from SQL, by the same clock as `millis`. `None` if it was not.
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

/// Sends two messages. The second one, `EXEC` or `UNWATCH`, ends the `WATCH`.
async fn watch_and_deduct(
    connection: &mut MultiplexedConnection,
    request: &WriteRequest,
    expiry: Expiry,
    journal_limit: u64,
) -> Result<Answer, StoreError> {
    let mut watched = watch_and_read(connection, request, expiry).await?;
    let refused = watched.refused.take();
    let next = match (decide(watched, request, journal_limit), refused) {
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
    let transaction = transaction(request, &next);
    let executed: RedisResult<Option<Value>> = transaction.query_async(connection).await;
    Ok(
        match executed.map_err(|error| writing(error).expiring(expiry))? {
            Some(_) => Answer::Written {
                available: next.available(),
                version: next.version,
            },
            None => Answer::Conflict,
        },
    )
}

async fn watch_and_read(
    connection: &mut MultiplexedConnection,
    request: &WriteRequest,
    expiry: Expiry,
) -> Result<Watched, StoreError> {
    let mut commands = redis::pipe();
    commands
        .cmd("SET")
        .arg(&request.attempt)
        .arg("")
        .arg("PXAT")
        .arg(expiry.at)
        .cmd("WATCH")
        .arg(&[&*request.level, &request.dedup_key, &request.attempt])
        .add_command(read_level(&request.level))
        .hget(&*request.level, "loaded")
        .xlen(&request.journal)
        .hget(&request.counters, "waiting")
        .exists(&request.dedup_key)
        .exists(&request.attempt)
        .cmd("TIME")
        .ignore_errors();
    let replies: RedisResult<Vec<Value>> = commands.query_async(connection).await;
    let mut replies = replies.map_err(reading)?.into_iter();
    let refused = replies.next().and_then(|set| set.extract_error().err());
    let read = Value::Array(replies.collect()).extract_error();
    let read = read.and_then(|read| Ok(from_redis_value::<WatchReply>(read)?));
    let ((), counters, loaded, entries, counted, remembered, in_time, (seconds, micros)) =
        read.map_err(reading)?;
    Ok(Watched {
        level: level(&request.row.sku, &request.row.warehouse, counters)?,
        loaded,
        waiting: waiting_movements(entries, counted.as_deref()),
        remembered,
        in_time,
        refused,
        millis: seconds * 1000 + micros / 1000,
    })
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
    let may_be_lost = |loaded| watched.millis < loaded + request.dedup_millis;
    if !request.key_checked && watched.loaded.is_some_and(may_be_lost) {
        return Err(Answer::KeyMayBeLost);
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

/// Writes the same as the function `commit` of `scripts/prelude.lua`.
fn transaction(request: &WriteRequest, next: &StockLevel) -> Pipeline {
    let line = format_line(next.available(), &request.movement);
    let mut commands = redis::pipe();
    commands
        .atomic()
        .cmd("HSET")
        .arg(&*request.level)
        .arg(&[("on_hand", next.on_hand), ("version", next.version)])
        .cmd("SET")
        .arg(&request.dedup_key)
        .arg(&line)
        .arg("PX")
        .arg(request.dedup_millis)
        .cmd("XADD")
        .arg(&request.journal)
        .arg("*")
        .arg("v")
        .arg(journal::VERSION)
        .arg("level")
        .arg(&*request.level)
        .arg("movements")
        .arg(&line)
        .arg(&[
            ("on_hand", next.on_hand),
            ("held", next.held),
            ("backorder_limit", next.backorder_limit),
            ("version", next.version),
        ])
        .hincr(&request.counters, "waiting", 1);
    commands
}
