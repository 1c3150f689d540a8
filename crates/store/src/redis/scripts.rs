//! The Lua scripts, each of which Redis executes atomically, and their answers.

use std::sync::LazyLock;

use redis::{Script, Value};

use super::errors::{bad_answer, refused};
use super::idempotency::BUCKETS;
use super::streams::PER_ENTRY;
use crate::StoreError;
use crate::journal::VERSION;

const PRELUDE: &str = include_str!("scripts/prelude.lua");

/// Deducts units of one level for several operations.
pub(super) static DEDUCT: LazyLock<Script> =
    LazyLock::new(|| script(PRELUDE, include_str!("scripts/deduct.lua")));

/// Writes a level that was computed from an earlier read.
pub(super) static WRITE: LazyLock<Script> =
    LazyLock::new(|| script(PRELUDE, include_str!("scripts/write.lua")));

/// Creates a level from its mirror in SQL.
pub(super) static LOAD: LazyLock<Script> =
    LazyLock::new(|| script("", include_str!("scripts/load.lua")));

/// Takes the lease of a journal, and reads entries.
pub(super) static TAKE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/take.lua")));

/// Returns the id of the first entry of a journal, or nil. KEYS: the journal.
pub(super) static FIRST_ENTRY: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
        return first and first[1]",
    )
});

/// Renews a lease. KEYS: the lease. ARGV: its token, its length in milliseconds.
pub(super) static RENEW: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if redis.call('GET', KEYS[1]) == ARGV[1] then
            redis.call('PEXPIRE', KEYS[1], ARGV[2])
        end",
    )
});

/// Removes entries that are in SQL, sets aside those that SQL refuses, and ends the lease.
pub(super) static ACK: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/ack.lua")));

/// Reads levels and the id of their journal's last entry in one snapshot.
pub(super) static SNAPSHOT: LazyLock<Script> =
    LazyLock::new(|| script("", include_str!("scripts/snapshot.lua")));

/// Deletes a level that is older than its mirror, or gives it another version. Its first line must stay the
/// first.
pub(super) static DROP_OLDER: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/drop_older.lua")));

/// Takes units from a level that are sold in SQL.
pub(super) static REPAIR: LazyLock<Script> =
    LazyLock::new(|| script("", include_str!("scripts/repair.lua")));

/// Writes the id of the binding. Its first line must stay the first.
pub(super) static BIND: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/bind.lua")));

/// Writes something, also if Redis is out of memory. KEYS: a key that expires soon.
pub(super) static MARK: LazyLock<Script> = LazyLock::new(|| {
    Script::new("#!lua flags=allow-oom\nreturn redis.call('SET', KEYS[1], '', 'PX', 1000)")
});

/// A script with the constants that Lua and Rust share.
fn script(prelude: &str, code: &str) -> Script {
    Script::new(&format!(
        "local JOURNAL_VERSION, PER_ENTRY, BUCKETS = {VERSION}, {PER_ENTRY}, {BUCKETS}\n{prelude}{code}"
    ))
}

/// The answer of a script that changes a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// The level, its journal entry and its dedup entry are written.
    Written { available: i64 },
    /// The operation has a dedup entry: it was executed before.
    Duplicate,
    /// Fewer units are available than requested.
    Insufficient { available: i64 },
    /// A level has another version than expected.
    Conflict,
    /// A later holder of the lock has written.
    Fenced,
    /// The key has no dedup entry, but the level was loaded recently, so Redis may have lost the
    /// entry. SQL must be asked.
    KeyMayBeLost {
        /// When the level was loaded, in microseconds since 1970.
        loaded: i64,
    },
    /// Redis does not have the level.
    Absent,
    /// The journal has reached its limit of movements.
    Full,
}

/// Whether this is [`Answer::Written`].
pub(super) fn is_written(answer: &Value) -> bool {
    matches!(answer, Value::Int(_))
}

impl Answer {
    pub(super) fn parse(answer: &Value) -> Result<Self, StoreError> {
        match answer {
            Value::Int(available) => Ok(Self::Written {
                available: *available,
            }),
            Value::BulkString(text) => Self::parse_text(&String::from_utf8_lossy(text)),
            _ => Err(bad_answer(answer)),
        }
    }

    fn parse_text(answer: &str) -> Result<Self, StoreError> {
        if let Some(error) = answer.strip_prefix("refused ") {
            return Err(refused(error));
        }
        let number = |text: &str| text.parse().map_err(|_| bad_answer(answer));
        let words: Vec<&str> = answer.split(' ').collect();
        Ok(match words[..] {
            ["insufficient", available] => Self::Insufficient {
                available: number(available)?,
            },
            ["duplicate"] => Self::Duplicate,
            ["conflict"] => Self::Conflict,
            ["fenced"] => Self::Fenced,
            ["key_may_be_lost", loaded] => Self::KeyMayBeLost {
                loaded: number(loaded)?,
            },
            ["absent"] => Self::Absent,
            ["full"] => Self::Full,
            _ => return Err(bad_answer(answer)),
        })
    }
}
