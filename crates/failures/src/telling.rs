//! What happened when a story ran.

use std::fmt::{self, Write as _};

use serde::Serialize;

use crate::evidence::Values;
use crate::expect::WAITS;
use crate::story::{Seen, Story};

/// Words of steps that are not commands or names, and what they mean.
const WORDS: [(&str, &str); 4] = [
    (
        WAITS,
        "means that the server lists the connection as waiting, until `(the answer arrives)`.",
    ),
    ("machine", "changes processes, servers and the network."),
    ("clock", "lets time pass."),
    ("operator", "looks after the servers."),
];

/// Both variants of a story, as they happened.
#[derive(Debug, Clone, Serialize)]
pub struct Telling {
    /// The story.
    pub name: &'static str,
    /// What its naive variant did.
    pub naive: Told,
    /// What its right variant did.
    pub right: Told,
}

/// One variant, as it happened.
#[derive(Debug, Clone, Serialize)]
pub struct Told {
    /// Whether the evidence shows the anomaly.
    pub anomaly: bool,
    /// The evidence in words.
    pub finding: String,
    /// What the servers have at the end.
    pub evidence: Values,
    /// The steps.
    pub steps: Vec<Seen>,
}

impl Telling {
    /// Why the story did not come out as it must; `None` if it did.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let name = self.name;
        if !self.naive.anomaly {
            return Some(format!("{name}: the naive variant shows no anomaly"));
        }
        let problem = format!("{name}: the right variant shows the anomaly");
        self.right.anomaly.then_some(problem)
    }

    /// The telling for a terminal.
    #[must_use]
    pub fn text(&self, story: &Story) -> String {
        let (name, servers) = (story.name, story.servers.join(", "));
        let mut text = format!("{name}: {}\n{}\n", story.title, story.summary);
        // Writing to a text cannot fail.
        let _ = write!(text, "\nServers: {servers}\nBefore the first step:\n");
        for command in &story.setup {
            let _ = writeln!(text, "     {}", command.replace('~', ""));
        }
        let steps = || self.naive.steps.iter().chain(&self.right.steps);
        for (word, meaning) in WORDS {
            if steps().any(|step| [step.actor, &step.answer].contains(&word)) {
                let _ = writeln!(text, "`{word}` {meaning}");
            }
        }
        for (title, told) in [
            ("What goes wrong", &self.naive),
            ("The right way", &self.right),
        ] {
            let _ = write!(text, "\n{title}\n{told}");
        }
        let _ = write!(text, "\nWhy: {}\nInstead: {}\n", story.why, story.right_way);
        text
    }
}

impl fmt::Display for Told {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.steps.iter().map(|step| step.actor.len()).max();
        let width = width.unwrap_or_default();
        for (number, step) in (1..).zip(&self.steps) {
            let (actor, command, answer) = (step.actor, &step.command, &step.answer);
            writeln!(out, "{number:>3}. {actor:<width$}  {command}")?;
            writeln!(out, "     {:<width$}  → {answer}", "")?;
            if !step.sentence.is_empty() {
                writeln!(out, "     {:<width$}  {}", "", step.sentence)?;
            }
        }
        let verdict = if self.anomaly {
            "Anomaly"
        } else {
            "No anomaly"
        };
        writeln!(out, "  {verdict}: {}", self.finding)
    }
}
