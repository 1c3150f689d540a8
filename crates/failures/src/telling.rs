//! What happened when a story ran.

use std::fmt::{self, Write as _};

use serde::Serialize;

use crate::evidence::Values;
use crate::story::Story;

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

/// One step, as it happened.
#[derive(Debug, Clone, Serialize)]
pub struct Seen {
    /// Who acted.
    pub actor: &'static str,
    /// The command, with the answers that it contains.
    pub command: String,
    /// What came back, or `waits`.
    pub answer: String,
    /// What it means.
    pub sentence: &'static str,
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
        let mut text = format!("{}: {}\n{}\n", story.name, story.title, story.summary);
        for (title, told) in [
            ("What goes wrong", &self.naive),
            ("The right way", &self.right),
        ] {
            // Writing to a text cannot fail.
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
