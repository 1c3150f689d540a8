//! The scripts, each one atomic step, and what they answer.

use std::sync::LazyLock;

use super::failure::bad_answer;
use crate::StoreError;

/// A script's text and the hash that the server knows it by.
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

/// Takes units for several operations, if there are so many.
pub(super) static DEDUCT: LazyLock<Script> =
    LazyLock::new(|| Script::with_prelude(include_str!("scripts/deduct.lua")));

/// Writes a level that was computed from one read before.
pub(super) static WRITE: LazyLock<Script> =
    LazyLock::new(|| Script::with_prelude(include_str!("scripts/write.lua")));

/// Creates a level from its mirror.
pub(super) static LOAD: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/load.lua").to_owned()));

/// Removes entries that are in SQL.
pub(super) static DEPART: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/depart.lua").to_owned()));

/// Removes consumers that are gone.
pub(super) static RETIRE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/retire.lua").to_owned()));

/// Reads levels, and how far their journal is, at one instant.
pub(super) static SNAPSHOT: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/snapshot.lua").to_owned()));

/// What came of a script that changes a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// It is written, journaled and remembered.
    Written { available: i64, version: i64 },
    /// The operation, or its key, is remembered: it was executed before.
    Duplicate,
    /// Too few units; so many are available.
    Short { available: i64 },
    /// Another version than the one that was read.
    Stale,
    /// A later holder of the lock has written.
    Fenced,
    /// The key is not remembered, which says nothing so soon after the level was loaded.
    Unsure,
    /// Redis does not have the level.
    Absent,
    /// As many movements wait in the journal as may.
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
            ("short", None) => Self::Short {
                available: number(numbers)?,
            },
            ("duplicate", None) => Self::Duplicate,
            ("stale", None) => Self::Stale,
            ("fenced", None) => Self::Fenced,
            ("unsure", None) => Self::Unsure,
            ("absent", None) => Self::Absent,
            ("full", None) => Self::Full,
            _ => return Err(bad_answer(answer)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::entries::PER_ENTRY;

    #[test]
    fn both_sides_know_how_many_movements_an_entry_has() {
        let prelude = include_str!("scripts/prelude.lua");
        assert!(prelude.contains(&format!("local PER_ENTRY = {PER_ENTRY}\n")));
    }
}
