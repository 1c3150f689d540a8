//! The facts about a strategy, for `GET /strategies`, the race and the page.
//!
//! The four texts are the lines at the head of the strategy's own file, so the documentation of the
//! code and of the API cannot differ.

use super::{Dependency, Tier};
use crate::stock::Home;

/// The facts about a strategy.
#[derive(Debug)]
pub struct Card {
    /// The name in the API, kebab-case.
    pub name: &'static str,
    /// What it promises.
    pub tier: Tier,
    /// The homes of the stock that it works on.
    pub homes: Homes,
    /// The servers that it needs beside the database.
    pub needs: &'static [Dependency],
    /// The text of its file, which starts with the four lines.
    pub(super) source: &'static str,
}

/// The homes of the stock that a strategy works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Homes {
    /// SQL only.
    Sql,
    /// Redis only.
    Redis,
    /// SQL and Redis.
    Either,
}

impl Homes {
    /// Whether `home` is one of them.
    #[must_use]
    pub fn include(self, home: Home) -> bool {
        match self {
            Self::Sql => home == Home::Sql,
            Self::Redis => home == Home::Redis,
            Self::Either => true,
        }
    }

    /// The name in the API: `sql`, `redis` or `either`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sql => "sql",
            Self::Redis => "redis",
            Self::Either => "either",
        }
    }
}

impl Card {
    /// What holds if it is used.
    #[must_use]
    pub fn guarantees(&self) -> &'static str {
        self.line("Guarantees")
    }

    /// What it costs: round trips, locks, waiting.
    #[must_use]
    pub fn costs(&self) -> &'static str {
        self.line("Costs")
    }

    /// When it fails, and how.
    #[must_use]
    pub fn fails_when(&self) -> &'static str {
        self.line("Fails when")
    }

    /// When to choose it.
    #[must_use]
    pub fn use_when(&self) -> &'static str {
        self.line("Use when")
    }

    fn line(&self, heading: &str) -> &'static str {
        let text = |line: &'static str| {
            let line = line.strip_prefix("//! *")?;
            line.strip_prefix(heading)?.strip_prefix("*: ")
        };
        let line = self.source.lines().find_map(text);
        line.unwrap_or_default().trim_end()
    }
}
