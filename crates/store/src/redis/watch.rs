//! A deduction by `WATCH`, `MULTI` and `EXEC`: read, decide here, write if nobody else wrote.

use redis::aio::ConnectionLike;
use redis::{Pipeline, RedisResult, Value};

use super::connection::on;
use super::entries::waiting_movements;
use super::failure::{RedisFailure, bad_answer, is_of_the_connection, reading, writing};
use super::scripts::Answer;
use super::step::{Step, Taking};
use super::{RedisStore, WatchOn};
use crate::StoreError;
use crate::journal::line;

impl RedisStore {
    /// One attempt; [`Answer::Stale`] where another was faster.
    pub(super) async fn watch(&self, taking: &Taking) -> Result<Answer, StoreError> {
        let most_waiting = i64::from(self.options.journal_limit);
        if self.options.watch_on == WatchOn::Shared {
            let mut connection = self.shared.connection().await?;
            return deduct(&mut connection, taking, most_waiting).await;
        }
        let mut taken = self.exclusive.take().await?;
        let answer = deduct(&mut taken.connection, taking, most_waiting).await;
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
    let (StoreError::ConnectionLost(_, source)
    | StoreError::OutcomeUnknown(source)
    | StoreError::Unavailable(_, source)) = error
    else {
        return false;
    };
    let failure = source.downcast_ref::<RedisFailure>();
    failure.is_some_and(|RedisFailure(error)| is_of_the_connection(error))
}

/// The answers to what is asked: the level's counters, the journal's entries and tally, the memory,
/// the time.
type Look = (Vec<Option<i64>>, i64, Option<String>, bool, (i64, i64));

/// What was read while it was watched.
struct Seen {
    /// `on_hand`, held, `backorder_limit`, version; nothing where there is no level.
    counters: Option<[i64; 4]>,
    /// When the level was loaded from SQL, if it was, by the same clock as `millis`.
    loaded: Option<i64>,
    /// Movements in the journal.
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
}

/// Two messages; whatever the answer, nothing is watched afterwards.
async fn deduct(
    connection: &mut impl ConnectionLike,
    taking: &Taking,
    most_waiting: i64,
) -> Result<Answer, StoreError> {
    let step = &taking.step;
    let seen = look(connection, step).await?;
    let next = match decide(&seen, taking, most_waiting) {
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

async fn look(connection: &mut impl ConnectionLike, step: &Step) -> Result<Seen, StoreError> {
    let mut commands = redis::pipe();
    commands
        .cmd("WATCH")
        .arg(&*step.level)
        .arg(&step.name)
        .ignore()
        .cmd("HMGET")
        .arg(&*step.level)
        .arg(&["on_hand", "held", "backorder_limit", "version", "loaded"])
        .cmd("XLEN")
        .arg(&step.journal)
        .cmd("HGET")
        .arg(&step.tally)
        .arg("waiting")
        .cmd("EXISTS")
        .arg(&step.name)
        .cmd("TIME");
    let read: RedisResult<Look> = on(connection, &commands).await;
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
    Ok(Seen {
        counters,
        loaded,
        waiting: waiting_movements(entries, counted.as_deref()),
        remembered,
        millis: seconds * 1000 + micros / 1000,
    })
}

/// What to write, or what is settled without.
fn decide(seen: &Seen, taking: &Taking, most_waiting: i64) -> Result<Next, Answer> {
    let Taking { step, units, sure } = taking;
    if seen.remembered {
        return Err(Answer::Duplicate);
    }
    let Some([on_hand, held, backorder_limit, version]) = seen.counters else {
        return Err(Answer::Absent);
    };
    // As the function `is_unsure` of `scripts/prelude.lua` has it.
    let memory = i64::try_from(step.memory.as_millis()).unwrap_or(i64::MAX);
    if !sure
        && seen
            .loaded
            .is_some_and(|loaded| seen.millis < loaded + memory)
    {
        return Err(Answer::Unsure);
    }
    let available = on_hand - held + backorder_limit;
    if available < *units {
        return Err(Answer::Short { available });
    }
    if seen.waiting >= most_waiting {
        return Err(Answer::Full);
    }
    Ok(Next {
        on_hand: on_hand - units,
        held,
        backorder_limit,
        version: version + 1,
    })
}

/// The same as the function `commit` of `scripts/prelude.lua` writes.
fn transaction(step: &Step, next: &Next) -> Pipeline {
    let line = line(next.available(), &step.movement);
    let mut commands = redis::pipe();
    commands.atomic();
    commands
        .cmd("HSET")
        .arg(&*step.level)
        .arg("on_hand")
        .arg(next.on_hand)
        .arg("version")
        .arg(next.version);
    commands
        .cmd("SET")
        .arg(&step.name)
        .arg(&line)
        .arg("PX")
        .arg(step.kept());
    commands
        .cmd("XADD")
        .arg(&step.journal)
        .arg("*")
        .arg("level")
        .arg(&*step.level)
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
        .arg(&step.tally)
        .arg("waiting")
        .arg(1);
    commands
}

impl Next {
    fn available(&self) -> i64 {
        self.on_hand - self.held + self.backorder_limit
    }
}
