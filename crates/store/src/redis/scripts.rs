//! The Lua scripts, each of which Redis executes atomically, and their answers.

use std::sync::LazyLock;

use super::failure::bad_answer;
use crate::StoreError;

/// A script's text and its SHA-1 hash for `EVALSHA`.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) code: String,
    pub(super) hash: String,
}

impl Script {
    fn new(code: String) -> Self {
        let hash = redis::Script::new(&code).get_hash().to_owned();
        Self { code, hash }
    }

    fn with_prelude(code: &str) -> Self {
        Self::new(format!("{}{code}", include_str!("scripts/prelude.lua")))
    }
}

/// Deducts units of one level for several operations.
pub(super) static DEDUCT: LazyLock<Script> =
    LazyLock::new(|| Script::with_prelude(include_str!("scripts/deduct.lua")));

/// Writes a level that was computed from an earlier read.
pub(super) static WRITE: LazyLock<Script> =
    LazyLock::new(|| Script::with_prelude(include_str!("scripts/write.lua")));

/// Creates a level from its mirror in SQL.
pub(super) static LOAD: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/load.lua").to_owned()));

/// Acknowledges and deletes entries that are in SQL.
pub(super) static ACK: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/ack.lua").to_owned()));

/// Deletes consumers that have ended.
pub(super) static RETIRE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/retire.lua").to_owned()));

/// Reads levels and the id of their journal's last entry in one snapshot.
pub(super) static SNAPSHOT: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/snapshot.lua").to_owned()));

/// The answer of a script that changes a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// The level, its journal entry and its dedup entry are written.
    Written { available: i64, version: i64 },
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
    KeyMayBeLost,
    /// Redis does not have the level.
    Absent,
    /// The journal has reached its limit of movements.
    Full,
}

impl Answer {
    pub(super) fn parse(answer: &str) -> Result<Self, StoreError> {
        let number = |text: &str| text.parse().map_err(|_| bad_answer(answer));
        let (what, numbers) = answer.split_once(' ').unwrap_or((answer, ""));
        Ok(match (what, numbers.split_once(' ')) {
            ("written", Some((available, version))) => Self::Written {
                available: number(available)?,
                version: number(version)?,
            },
            ("insufficient", None) => Self::Insufficient {
                available: number(numbers)?,
            },
            ("duplicate", None) => Self::Duplicate,
            ("conflict", None) => Self::Conflict,
            ("fenced", None) => Self::Fenced,
            ("key_may_be_lost", None) => Self::KeyMayBeLost,
            ("absent", None) => Self::Absent,
            ("full", None) => Self::Full,
            _ => return Err(bad_answer(answer)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::entries::PER_ENTRY;
    use crate::journal::VERSION;

    #[test]
    fn scripts_have_the_same_constants_as_rust() {
        let prelude = include_str!("scripts/prelude.lua");
        let load = include_str!("scripts/load.lua");
        let version = format!("local JOURNAL_VERSION = {VERSION}\n");
        assert!(prelude.contains(&format!("local PER_ENTRY = {PER_ENTRY}\n")));
        assert!(prelude.contains(&version));
        assert!(load.contains(&version));
    }
}
