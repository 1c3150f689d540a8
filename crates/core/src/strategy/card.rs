//! The facts about a strategy, for `GET /strategies`, the race and the page.
//!
//! The four texts are the lines at the head of the strategy's own file, so the documentation of the
//! code and of the API cannot differ.

use super::{Dependency, Tier};

/// The facts about a strategy.
#[derive(Debug)]
pub struct Card {
    /// The name in the API, kebab-case.
    pub name: &'static str,
    /// What it promises.
    pub tier: Tier,
    /// The servers that it needs beside the database.
    pub needs: &'static [Dependency],
    /// The text of its file, which starts with the four lines.
    pub(super) source: &'static str,
}

impl Card {
    /// The line at the head of its file with this heading: `Guarantees`, `Costs`, `Fails when` or
    /// `Use when`.
    #[must_use]
    pub fn line(&self, heading: &str) -> &'static str {
        let text = |line: &'static str| {
            let line = line.strip_prefix("//! *")?;
            line.strip_prefix(heading)?.strip_prefix("*: ")
        };
        let line = self.source.lines().find_map(text);
        line.unwrap_or_default().trim_end()
    }
}
