//! Deducts with `WATCH`, `MULTI` and `EXEC`: reads the level, decides here, and writes if no other
//! client wrote in between.

use redis::aio::ConnectionLike;
use redis::{Pipeline, RedisResult, Value};

use super::connection::query;
use super::entries::waiting_movements;
use super::failure::{RedisFailure, bad_answer, is_connection_error, reading, writing};
use super::scripts::Answer;
use super::write_request::{DeductRequest, KeyCheck, WriteRequest};
use super::{RedisStore, WatchOn};
use crate::StoreError;
use crate::journal::{self, format_line};

impl RedisStore {
    /// Makes one attempt. Returns [`Answer::Conflict`] if another client wrote in between.
    pub(super) async fn watch(&self, deduct: &DeductRequest) -> Result<Answer, StoreError> {
        let most_waiting = i64::from(self.options.journal_limit);
        if self.options.watch_on == WatchOn::Shared {
            let mut connection = self.shared.connection().await?;
            return watch_and_deduct(&mut connection, deduct, most_waiting).await;
        }
        let mut taken = self.exclusive.acquire().await?;
        let answer = watch_and_deduct(&mut taken.connection, deduct, most_waiting).await;
        match &answer {
            Ok(_) => taken.release(),
            // Close the connection instead, because it may still have a `WATCH`.
            Err(error) if affects_all_connections(error) => self.exclusive.discard_idle(),
            Err(_) => {}
        }
        answer
    }
}

/// Whether the error may affect all connections, because they lead to the same server.
fn affects_all_connections(error: &StoreError) -> bool {
    let (StoreError::ConnectionLost(_, source)
    | StoreError::OutcomeUnknown(source)
    | StoreError::Unavailable(_, source)) = error
    else {
        return false;
    };
    let failure = source.downcast_ref::<RedisFailure>();
    failure.is_some_and(|RedisFailure(error)| is_connection_error(error))
}

/// The replies: the level, the journal's number of entries and its counter `waiting`, whether there is
/// a dedup entry, and the time.
type WatchReply = (Vec<Option<i64>>, i64, Option<String>, bool, (i64, i64));

/// What was read under `WATCH`.
struct Watched {
    /// `on_hand`, `held`, `backorder_limit`, `version`, if Redis has the level.
    counters: Option<[i64; 4]>,
    /// When the level was loaded from SQL, by the same clock as `millis`. `None` if it was not.
    loaded: Option<i64>,
    /// The number of movements in the journal.
    waiting: i64,
    /// Whether the operation has a dedup entry.
    remembered: bool,
    /// The server's clock, in milliseconds.
    millis: i64,
}

/// The level that follows from what was watched.
struct Next {
    on_hand: i64,
    held: i64,
    backorder_limit: i64,
    version: i64,
}

/// Sends two messages. The second one, `EXEC` or `UNWATCH`, ends the `WATCH`.
async fn watch_and_deduct(
    connection: &mut impl ConnectionLike,
    deduct: &DeductRequest,
    most_waiting: i64,
) -> Result<Answer, StoreError> {
    let request = &deduct.write;
    let watched = watch_and_read(connection, request).await?;
    let next = match decide(&watched, deduct, most_waiting) {
        Ok(next) => next,
        Err(answer) => {
            let unwatched: RedisResult<()> = query(connection, redis::pipe().cmd("UNWATCH")).await;
            unwatched.map_err(reading)?;
            return Ok(answer);
        }
    };
    // The reply is nil if another client wrote in between. Then `EXEC` executed nothing.
    let executed: RedisResult<Option<Value>> =
        query(connection, &transaction(request, &next)).await;
    match executed.map_err(writing)? {
        Some(_) => Ok(Answer::Written {
            available: next.available(),
            version: next.version,
        }),
        None => Ok(Answer::Conflict),
    }
}

async fn watch_and_read(
    connection: &mut impl ConnectionLike,
    request: &WriteRequest,
) -> Result<Watched, StoreError> {
    let mut commands = redis::pipe();
    commands
        .cmd("WATCH")
        .arg(&*request.level)
        .arg(&request.dedup_key)
        .ignore()
        .cmd("HMGET")
        .arg(&*request.level)
        .arg(&["on_hand", "held", "backorder_limit", "version", "loaded"])
        .cmd("XLEN")
        .arg(&request.journal)
        .cmd("HGET")
        .arg(&request.counters)
        .arg("waiting")
        .cmd("EXISTS")
        .arg(&request.dedup_key)
        .cmd("TIME");
    let read: RedisResult<WatchReply> = query(connection, &commands).await;
    let (counters, entries, counted, remembered, (seconds, micros)) = read.map_err(reading)?;
    let (counters, loaded) = match counters[..] {
        [
            Some(on_hand),
            Some(held),
            Some(limit),
            Some(version),
            loaded,
        ] => (Some([on_hand, held, limit, version]), loaded),
        [None, None, None, None, _] => (None, None),
        _ => return Err(bad_answer(counters)),
    };
    Ok(Watched {
        counters,
        loaded,
        waiting: waiting_movements(entries, counted.as_deref()),
        remembered,
        millis: seconds * 1000 + micros / 1000,
    })
}

/// Returns the level to write, or the answer if there is nothing to write.
fn decide(watched: &Watched, deduct: &DeductRequest, most_waiting: i64) -> Result<Next, Answer> {
    let DeductRequest {
        write: request,
        units,
        key_check,
    } = deduct;
    if watched.remembered {
        return Err(Answer::Duplicate);
    }
    let Some([on_hand, held, backorder_limit, version]) = watched.counters else {
        return Err(Answer::Absent);
    };
    // The function `key_may_be_lost` of `scripts/prelude.lua` does the same.
    let dedup_ttl = i64::try_from(request.dedup_ttl.as_millis()).unwrap_or(i64::MAX);
    if *key_check == KeyCheck::Needed
        && watched
            .loaded
            .is_some_and(|loaded| watched.millis < loaded + dedup_ttl)
    {
        return Err(Answer::KeyMayBeLost);
    }
    let available = on_hand - held + backorder_limit;
    if available < *units {
        return Err(Answer::Insufficient { available });
    }
    if watched.waiting >= most_waiting {
        return Err(Answer::Full);
    }
    Ok(Next {
        on_hand: on_hand - units,
        held,
        backorder_limit,
        version: version + 1,
    })
}

/// Writes the same as the function `commit` of `scripts/prelude.lua`.
fn transaction(request: &WriteRequest, next: &Next) -> Pipeline {
    let line = format_line(next.available(), &request.movement);
    let mut commands = redis::pipe();
    commands.atomic();
    commands
        .cmd("HSET")
        .arg(&*request.level)
        .arg("on_hand")
        .arg(next.on_hand)
        .arg("version")
        .arg(next.version);
    commands
        .cmd("SET")
        .arg(&request.dedup_key)
        .arg(&line)
        .arg("PX")
        .arg(request.dedup_ttl_millis());
    commands
        .cmd("XADD")
        .arg(&request.journal)
        .arg("*")
        .arg("v")
        .arg(journal::VERSION)
        .arg("level")
        .arg(&*request.level)
        .arg("movements")
        .arg(&line)
        .arg("on_hand")
        .arg(next.on_hand)
        .arg("held")
        .arg(next.held)
        .arg("backorder_limit")
        .arg(next.backorder_limit)
        .arg("version")
        .arg(next.version);
    commands
        .cmd("HINCRBY")
        .arg(&request.counters)
        .arg("waiting")
        .arg(1);
    commands
}

impl Next {
    fn available(&self) -> i64 {
        self.on_hand - self.held + self.backorder_limit
    }
}
