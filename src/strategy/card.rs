//! A strategy's card: what is known of it, for `GET /strategies`, the race and the page.
//!
//! The four texts are the lines at the head of the strategy's own file, so that what the code's
//! reader is told and what the service's user is told cannot drift apart.

use super::{Service, Tier};

/// What is known of a strategy.
#[derive(Debug)]
pub struct Card {
    /// The name at every edge, kebab-case.
    pub name: &'static str,
    /// What it promises.
    pub tier: Tier,
    /// Where the stock lives that it works on: `sql`, `redis`, or `either`.
    pub home: &'static str,
    /// The services it needs beside the SQL database.
    pub needs: &'static [Service],
    /// Whether it is still to come.
    pub planned: bool,
    /// The file, or the text, whose head has the four lines.
    pub(super) source: &'static str,
}

impl Card {
    /// What holds when it is used.
    #[must_use]
    pub fn guarantees(&self) -> &'static str {
        self.line("Guarantees")
    }

    /// What it costs: round trips, locks, waiting.
    #[must_use]
    pub fn costs(&self) -> &'static str {
        self.line("Costs")
    }

    /// When it does not do what one might hope.
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
        self.source
            .lines()
            .find_map(|line| {
                line.strip_prefix("//! *")?
                    .strip_prefix(heading)?
                    .strip_prefix("*: ")
            })
            .unwrap_or_default()
            .trim_end()
    }
}
