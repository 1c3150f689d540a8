//! Decides whether a Redis is the one that has the stock of a ledger, from what both servers say.

use crate::sql::BoundRedis;

/// By how many beats the database may be behind Redis: a failover of the database may lose the last
/// ones. A database that is further behind was restored, or is a copy.
const LOST_BEATS: i64 = 10;

/// What a Redis says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// The run of the server, and the number of the database in it.
    pub(super) run_id: String,
    /// Whether it accepts writes.
    pub(super) is_primary: bool,
    /// The id in its key. `None` if there is no such key.
    pub(super) id: Option<String>,
    /// The beat in its key.
    pub(super) beat: i64,
}

/// Why stock in a Redis is not sold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error(
        "the stock of this ledger is in another Redis: set REDIS_URL to that one, or run \
         `stocklock adopt` to use this one"
    )]
    OtherRedis,
    #[error(
        "Redis does not have the stock any more: set REDIS_URL to the Redis that has it, or restore \
         its data, or run `stocklock adopt` to load the stock from SQL"
    )]
    LostData,
    #[error(
        "the database is older than the stock in Redis, so it is a copy or was restored: set \
         DATABASE_URL and REDIS_URL to servers that belong together, or run `stocklock adopt`"
    )]
    DatabaseIsOlder,
    #[error(
        "other replicas sell this stock in another Redis: set REDIS_URL to that one, or run `stocklock \
         adopt` to use this one"
    )]
    InUse,
    #[error(
        "Redis was restarted or replaced; in a few seconds it is clear whether other replicas still \
         use the stock in another Redis"
    )]
    NotYetKnown,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// This is the Redis. Use it.
    Use,
    /// No stock was ever in a Redis, so there is nothing to bind.
    Nothing,
    /// Write the row: this is the first Redis of the ledger.
    Insert,
    /// Write the row again: no replica has used the Redis in it.
    Replace,
    /// Write the key: it was deleted, or not written yet.
    WriteKey,
    /// The key and the row are written: start to use this Redis.
    Begin,
    /// The same data in another run: a restart, a failover, or a copy.
    FollowRun,
    Refuse(Refusal),
}

/// `has_stock`: whether stock of the ledger is in Redis, or is about to be.
pub(super) fn next_step(found: &Found, row: Option<&BoundRedis>, has_stock: bool) -> Step {
    let Some(row) = row else {
        return match &found.id {
            Some(_) => Step::Refuse(Refusal::DatabaseIsOlder),
            None if has_stock => Step::Insert,
            None => Step::Nothing,
        };
    };
    let is_same_run = found.run_id == row.run_id;
    match &found.id {
        Some(id) if *id != row.id => Step::Refuse(Refusal::OtherRedis),
        Some(_) if found.beat > row.beat + LOST_BEATS => Step::Refuse(Refusal::DatabaseIsOlder),
        Some(_) if !is_same_run => Step::FollowRun,
        Some(_) if row.beat == 0 => Step::Begin,
        Some(_) => Step::Use,
        None if is_same_run => Step::WriteKey,
        None if row.beat == 0 => Step::Replace,
        None => Step::Refuse(Refusal::LostData),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(run_id: &str, id: Option<&str>, beat: i64) -> Found {
        Found {
            run_id: run_id.to_owned(),
            is_primary: true,
            id: id.map(str::to_owned),
            beat,
        }
    }

    fn row(beat: i64) -> BoundRedis {
        BoundRedis {
            id: "a".to_owned(),
            run_id: "run-1".to_owned(),
            beat,
        }
    }

    #[test]
    fn redis_is_used_only_if_it_belongs_to_the_ledger() {
        for (found, row, step) in [
            (found("run-1", Some("a"), 7), row(7), Step::Use),
            (found("run-1", Some("a"), 17), row(7), Step::Use),
            (
                found("run-1", Some("a"), 18),
                row(7),
                Step::Refuse(Refusal::DatabaseIsOlder),
            ),
            (found("run-2", Some("a"), 7), row(7), Step::FollowRun),
            (
                found("run-1", Some("b"), 7),
                row(7),
                Step::Refuse(Refusal::OtherRedis),
            ),
            (
                found("run-2", Some("b"), 7),
                row(0),
                Step::Refuse(Refusal::OtherRedis),
            ),
            (found("run-1", None, 0), row(7), Step::WriteKey),
            (
                found("run-2", None, 0),
                row(7),
                Step::Refuse(Refusal::LostData),
            ),
        ] {
            assert_eq!(next_step(&found, Some(&row), true), step, "{found:?}");
        }
    }

    /// The process ended between two writes.
    #[test]
    fn binding_that_was_interrupted_is_completed() {
        let steps = [
            (found("run-1", None, 0), Step::WriteKey),
            (found("run-1", Some("a"), 0), Step::Begin),
            (found("run-2", Some("a"), 0), Step::FollowRun),
            (found("run-2", None, 0), Step::Replace),
        ];
        for (found, step) in steps {
            assert_eq!(next_step(&found, Some(&row(0)), true), step, "{found:?}");
        }
    }

    #[test]
    fn ledger_without_stock_in_redis_is_bound_to_none() {
        let empty = found("run-1", None, 0);
        assert_eq!(next_step(&empty, None, false), Step::Nothing);
        assert_eq!(next_step(&empty, None, true), Step::Insert);
        let used = found("run-1", Some("a"), 3);
        let older = Step::Refuse(Refusal::DatabaseIsOlder);
        assert_eq!(next_step(&used, None, true), older);
    }
}
