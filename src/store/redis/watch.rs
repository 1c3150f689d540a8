//! A deduction by `WATCH`, `MULTI` and `EXEC`: read, decide here, write if nobody else wrote.

use redis::aio::ConnectionLike;
use redis::{Pipeline, RedisResult, Value};

use super::connection::on;
use super::failure::{RedisFailure, bad_answer, is_of_the_connection, reading, writing};
use super::scripts::Answer;
use super::{RedisStore, Step, WatchOn};
use crate::store::StoreError;

impl RedisStore {
    /// One attempt; [`Answer::Stale`] where another was faster.
    pub(super) async fn watch(&self, step: &Step<'_>, units: i64) -> Result<Answer, StoreError> {
        if self.options.watch_on == WatchOn::Shared {
            let mut connection = self.shared.connection().await?;
            return deduct(&mut connection, step, units).await;
        }
        let mut taken = self.exclusive.take().await?;
        let answer = deduct(&mut taken.connection, step, units).await;
        match &answer {
            Ok(_) => taken.give_back(),
            // Not given back but closed: something may still be watched on it.
            Err(error) if speaks_for_all(error) => self.exclusive.suspect_all(),
            Err(_) => {}
        }
        answer
    }
}

/// Whether what broke this connection may have broken them all: they lead to one server.
fn speaks_for_all(error: &StoreError) -> bool {
    let (StoreError::ConnectionLost(source)
    | StoreError::OutcomeUnknown(source)
    | StoreError::Unavailable(source)) = error
    else {
        return false;
    };
    let failure = source.downcast_ref::<RedisFailure>();
    failure.is_some_and(|RedisFailure(error)| is_of_the_connection(error))
}

/// The answers to what is asked: the level's counters, entries, the memory, the time.
type Look = (Vec<Option<i64>>, i64, bool, (i64, i64));

/// What was read while it was watched.
struct Seen {
    /// `on_hand`, held, `backorder_limit`, version; nothing where there is no level.
    counters: Option<[i64; 4]>,
    /// When the level was loaded from SQL, if it was, by the same clock as `millis`.
    loaded: Option<i64>,
    /// Entries in the journal.
    waiting: i64,
    /// Whether the operation was executed before.
    remembered: bool,
    /// The server's clock, in milliseconds.
    millis: i64,
}

/// The level that follows from what was seen.
struct Next {
    on_hand: i64,
    held: i64,
    backorder_limit: i64,
    version: i64,
    millis: i64,
}

/// Two messages; whatever the answer, nothing is watched afterwards.
async fn deduct(
    connection: &mut impl ConnectionLike,
    step: &Step<'_>,
    units: i64,
) -> Result<Answer, StoreError> {
    let seen = look(connection, step).await?;
    let next = match decide(&seen, step, units) {
        Ok(next) => next,
        Err(settled) => {
            let unwatched: RedisResult<()> = on(connection, redis::pipe().cmd("UNWATCH")).await;
            unwatched.map_err(reading)?;
            return Ok(settled);
        }
    };
    // Nothing comes back where somebody wrote since: then nothing was executed.
    let executed: RedisResult<Option<Value>> = on(connection, &transaction(step, &next)).await;
    match executed.map_err(writing)? {
        Some(_) => Ok(Answer::Written {
            available: next.available(),
            version: next.version,
        }),
        None => Ok(Answer::Stale),
    }
}

async fn look(connection: &mut impl ConnectionLike, step: &Step<'_>) -> Result<Seen, StoreError> {
    let mut commands = redis::pipe();
    commands
        .cmd("WATCH")
        .arg(&step.keys[0])
        .arg(step.name())
        .ignore()
        .cmd("HMGET")
        .arg(&step.keys[0])
        .arg(&["on_hand", "held", "backorder_limit", "version", "loaded"])
        .cmd("XLEN")
        .arg(&step.keys[1])
        .cmd("EXISTS")
        .arg(step.name())
        .cmd("TIME");
    let read: RedisResult<Look> = on(connection, &commands).await;
    let (counters, waiting, remembered, (seconds, micros)) = read.map_err(reading)?;
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
    Ok(Seen {
        counters,
        loaded,
        waiting,
        remembered,
        millis: seconds * 1000 + micros / 1000,
    })
}

/// What to write, or what is settled without.
fn decide(seen: &Seen, step: &Step<'_>, units: i64) -> Result<Next, Answer> {
    if seen.remembered {
        return Err(Answer::Duplicate);
    }
    let Some([on_hand, held, backorder_limit, version]) = seen.counters else {
        return Err(Answer::Absent);
    };
    // As the function `is_unsure` of `scripts/prelude.lua` has it.
    let memory = i64::try_from(step.memory.as_millis()).unwrap_or(i64::MAX);
    if !step.sure
        && seen
            .loaded
            .is_some_and(|loaded| seen.millis < loaded + memory)
    {
        return Err(Answer::Unsure);
    }
    let available = on_hand - held + backorder_limit;
    if available < units {
        return Err(Answer::Short { available });
    }
    if seen.waiting >= i64::from(step.journal_limit) {
        return Err(Answer::Full);
    }
    Ok(Next {
        on_hand: on_hand - units,
        held,
        backorder_limit,
        version: version + 1,
        millis: seen.millis,
    })
}

/// The same as the function `write` of `scripts/prelude.lua` writes.
fn transaction(step: &Step<'_>, next: &Next) -> Pipeline {
    let mut commands = redis::pipe();
    commands.atomic();
    commands
        .cmd("HSET")
        .arg(&step.keys[0])
        .arg("on_hand")
        .arg(next.on_hand)
        .arg("version")
        .arg(next.version);
    commands
        .cmd("XADD")
        .arg(&step.keys[1])
        .arg("*")
        .arg("level")
        .arg(&step.keys[0])
        .arg("movement")
        .arg(&step.movement)
        .arg("on_hand")
        .arg(next.on_hand)
        .arg("held")
        .arg(next.held)
        .arg("backorder_limit")
        .arg(next.backorder_limit)
        .arg("version")
        .arg(next.version);
    // The entry's id is not known before `EXEC`; only its time is read from here.
    let memory = format!("{}-0 {} {}", next.millis, next.available(), step.movement);
    let kept = u64::try_from(step.memory.as_millis()).unwrap_or(u64::MAX);
    commands
        .cmd("SET")
        .arg(step.name())
        .arg(&memory)
        .arg("PX")
        .arg(kept);
    commands
}

impl Next {
    fn available(&self) -> i64 {
        self.on_hand - self.held + self.backorder_limit
    }
}
