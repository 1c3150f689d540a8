//! Decides whether a Redis is the one that has the stock of a ledger, from what both servers say.

use uuid::Uuid;

use crate::sql::BoundRedis;

/// How far row and key may be apart, in microseconds: a failover of the database may lose the last
/// beats. Further apart, the database was restored, or is a copy.
const LOST_BEATS: u64 = 10_000_000;

/// What a Redis says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// The run of the server, its replication history, and the number of the database in it; or the same of
    /// all nodes of a cluster that have stock of the ledger.
    pub(super) run_id: String,
    /// The runs and histories of all servers.
    pub(super) runs: Vec<String>,
    /// Whether all accept writes.
    pub(super) is_primary: bool,
    /// The id in its key. `None` if there is no such key, or the mark of a shard is lost.
    pub(super) id: Option<String>,
    /// The beat in its key.
    pub(super) beat: i64,
    /// Its clock, in microseconds since 1970.
    pub(super) micros: i64,
    /// The text of the key. Empty if there is none.
    pub(super) key: String,
    /// The marks of the shards, each empty if there is none, or nothing if they were not read.
    pub(super) marks: Vec<String>,
}

impl Found {
    /// The row of the next beat. Its value is the time, so that two databases never have the same.
    pub(super) fn next_row(&self, row: &BoundRedis) -> BoundRedis {
        BoundRedis {
            run_id: self.run_id.clone(),
            beat: self.micros.max(row.beat + 1).max(self.beat + 1),
            beat_before: self.beat,
            ..row.clone()
        }
    }

    /// The row that binds the ledger to this Redis under a new id. It keeps the last beat, which shows that
    /// stock of this ledger was in a Redis before.
    pub(super) fn first_row(&self, before: Option<&BoundRedis>) -> BoundRedis {
        BoundRedis {
            id: Uuid::now_v7().simple().to_string(),
            run_id: self.run_id.clone(),
            beat: 0,
            beat_before: before.map_or(0, |row| row.beat.max(row.beat_before)),
        }
    }

    /// The row of a Redis whose levels are being compared with SQL. It is no run, so SQL takes no entries.
    ///
    /// If the key has the last beat of the row, this Redis has all that was written until then, and no other one has
    /// sold since. Otherwise its journals may have entries from before another Redis sold, and are merged.
    pub(super) fn compared_row(&self, row: &BoundRedis) -> BoundRedis {
        let how = if self.beat == row.beat {
            COMPARING
        } else {
            MERGING
        };
        BoundRedis {
            run_id: self.comparison(how),
            ..self.next_row(row)
        }
    }

    /// Whether the row says that the journals must be merged before the levels are compared.
    pub(super) fn needs_merge(&self, row: &BoundRedis) -> bool {
        row.run_id == self.comparison(MERGING)
    }

    fn is_compared(&self, row: &BoundRedis) -> bool {
        self.needs_merge(row) || row.run_id == self.comparison(COMPARING)
    }

    fn comparison(&self, how: &str) -> String {
        format!("{how} {}", self.run_id)
    }
}

/// What the row says of a run that is not used yet.
const COMPARING: &str = "comparing";
const MERGING: &str = "merging";

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
    /// Write the row again: no replica has used the Redis in it, and no other one was used before.
    Replace,
    /// Bind the ledger again, under another id: this Redis has lost its data.
    Rebind,
    /// Write the key: it was not written yet, or not with a beat.
    WriteKey,
    /// The key and the row are written: start to use this Redis.
    Begin,
    /// The same id, but not the expected run or beat: a restart, a failover, or a copy, of Redis or of
    /// the database. Compare it if no other replica uses it.
    Follow,
    /// The row says that the levels are being compared with SQL. Merge the journals, if it says that too, compare the
    /// levels, and then use this Redis.
    Compare,
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
    let is_same_beat = [row.beat, row.beat_before].contains(&found.beat);
    let is_compared = found.is_compared(row);
    let has_lost_beats = !is_same_run && found.beat < row.beat;
    match &found.id {
        // This Redis has lost its data, and then got a late message: a key that was never used.
        Some(id) if *id != row.id && is_same_run && (row.beat, found.beat) == (0, 0) => {
            Step::WriteKey
        }
        Some(id) if *id != row.id => Step::Refuse(Refusal::OtherRedis),
        Some(_) if is_same_run && is_same_beat && row.beat == 0 => Step::Begin,
        // No level is loaded while the key has no beat.
        Some(_) if is_same_run && is_same_beat && found.beat == 0 => Step::WriteKey,
        Some(_) if is_same_run && found.beat == 0 => Step::Rebind,
        Some(_) if is_same_run && is_same_beat => Step::Use,
        Some(_) if is_compared && is_same_beat => Step::Compare,
        Some(_) if is_same_beat || has_lost_beats => Step::Follow,
        Some(_) if found.beat.abs_diff(row.beat) <= LOST_BEATS => Step::Follow,
        Some(_) => Step::Refuse(Refusal::DatabaseIsOlder),
        None if is_compared || is_same_run && row.beat > 0 => Step::Rebind,
        None if is_same_run => Step::WriteKey,
        // The first binding of this ledger: a later one keeps the beat of the one before.
        None if (row.beat, row.beat_before) == (0, 0) => Step::Replace,
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
            micros: 0,
            runs: vec![run_id.to_owned()],
            key: String::new(),
            marks: Vec::new(),
        }
    }

    fn row(beat: i64, beat_before: i64) -> BoundRedis {
        BoundRedis {
            id: "a".to_owned(),
            run_id: "run-1".to_owned(),
            beat,
            beat_before,
        }
    }

    #[test]
    fn redis_is_used_only_if_it_belongs_to_the_ledger() {
        const BEAT: i64 = 1_000_000;
        let older = Step::Refuse(Refusal::DatabaseIsOlder);
        let lost = i64::try_from(LOST_BEATS).unwrap();
        for (run_id, id, beat, step) in [
            ("run-1", Some("a"), 50 * BEAT, Step::Use),
            ("run-1", Some("a"), 49 * BEAT, Step::Use),
            ("run-1", Some("a"), 48 * BEAT, Step::Follow),
            ("run-1", Some("a"), 50 * BEAT + lost, Step::Follow),
            ("run-1", Some("a"), 50 * BEAT + lost + 1, older),
            ("run-1", Some("a"), 50 * BEAT - lost - 1, older),
            ("run-2", Some("a"), 50 * BEAT, Step::Follow),
            ("run-2", Some("a"), 49 * BEAT, Step::Follow),
            ("run-2", Some("a"), BEAT, Step::Follow),
            ("run-2", Some("a"), 50 * BEAT + lost + 1, older),
            (
                "run-1",
                Some("b"),
                50 * BEAT,
                Step::Refuse(Refusal::OtherRedis),
            ),
            (
                "run-2",
                Some("b"),
                50 * BEAT,
                Step::Refuse(Refusal::OtherRedis),
            ),
            ("run-1", None, 0, Step::Rebind),
            ("run-1", Some("a"), 0, Step::Rebind),
            ("run-2", None, 0, Step::Refuse(Refusal::LostData)),
        ] {
            let (found, row) = (found(run_id, id, beat), row(50 * BEAT, 49 * BEAT));
            assert_eq!(next_step(&found, Some(&row), true), step, "{found:?}");
        }
    }

    /// The process ended between two writes.
    #[test]
    fn binding_that_was_interrupted_is_completed() {
        let steps = [
            (found("run-1", None, 0), Step::WriteKey),
            (found("run-1", Some("b"), 0), Step::WriteKey),
            (found("run-1", Some("a"), 0), Step::Begin),
            (found("run-2", Some("a"), 0), Step::Follow),
            (found("run-2", None, 0), Step::Replace),
        ];
        for (found, step) in steps {
            assert_eq!(next_step(&found, Some(&row(0, 0)), true), step, "{found:?}");
        }
        // A ledger that had stock in another Redis: only an operator says where it is now.
        let adopted = found("run-1", None, 0).first_row(Some(&row(40, 39)));
        assert_eq!((adopted.beat, adopted.beat_before), (0, 40));
        let again = found("run-1", None, 0).first_row(Some(&adopted));
        assert_eq!((again.beat, again.beat_before), (0, 40));
        let adopted = BoundRedis {
            id: "a".to_owned(),
            ..adopted
        };
        for (found, step) in [
            (found("run-1", None, 0), Step::WriteKey),
            (found("run-1", Some("a"), 0), Step::Begin),
            (found("run-2", Some("a"), 0), Step::Follow),
            (found("run-2", None, 0), Step::Refuse(Refusal::LostData)),
        ] {
            assert_eq!(next_step(&found, Some(&adopted), true), step, "{found:?}");
        }
        let begun = (found("run-1", Some("a"), 0), row(9, 0));
        assert_eq!(next_step(&begun.0, Some(&begun.1), true), Step::WriteKey);
    }

    /// Each replica can end the comparison that another one has begun.
    #[test]
    fn comparison_that_was_interrupted_is_completed() {
        let now = found("run-2", Some("a"), 49);
        let row = now.compared_row(&row(50, 49));
        let steps = [
            (now, Step::Compare),
            (found("run-2", Some("a"), row.beat), Step::Compare),
            (found("run-2", None, 0), Step::Rebind),
            (found("run-2", Some("a"), row.beat - 9), Step::Follow),
            (found("run-1", Some("a"), 50), Step::Follow),
            (found("run-3", Some("a"), 49), Step::Follow),
        ];
        for (found, step) in steps {
            assert_eq!(next_step(&found, Some(&row), true), step, "{found:?}");
        }
    }

    /// A Redis without the last beat may have been replaced, and the other one has sold.
    #[test]
    fn journals_are_merged_if_the_last_beat_is_missing() {
        let before = row(50, 49);
        for (run, beat, needs_merge) in [
            ("run-2", 50, false),
            ("run-1", 50, false),
            ("run-2", 49, true),
            ("run-1", 48, true),
        ] {
            let found = found(run, Some("a"), beat);
            let row = found.compared_row(&before);
            assert_eq!(found.needs_merge(&row), needs_merge, "{found:?}");
            assert_eq!(next_step(&found, Some(&row), true), Step::Compare);
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

    /// Otherwise a database and its copy could both have the beat of the key.
    #[test]
    fn next_beat_is_a_time_that_was_never_used() {
        let mut now = found("run-1", Some("a"), 7);
        for (micros, next) in [(100, 100), (8, 8), (3, 8)] {
            now.micros = micros;
            assert_eq!(now.next_row(&row(7, 6)), row(next, 7));
        }
    }
}
