//! The format of a story: `key: value` lines, then sections of steps.
//!
//! ```text
//! title: Two buyers read the same number
//! group: Lost updates
//! servers: sqlite              the first one is meant if a command names none
//! …
//! [setup]                      one command for each line
//! [naive]  [right]             actor | command | answer | sentence
//! [evidence]                   name | query | value in naive | value in right
//! ```
//!
//! A command may start with a server's name and `>`: `redis> GET ~stock`. `~` is the story's prefix of
//! keys in Redis. `{x}` and `{x-1}` are an answer that an earlier step has named (`10 as x`, or
//! `10, 1 as x, y`). The
//! expected answer is a text, `waits`, `until TEXT` (the command is repeated) or `*` (any). The command
//! `(the answer arrives)` receives what the actor waits for. `mutex> lock NAME` and `mutex> unlock NAME`
//! use a mutex in memory. `http> receive` and `http> answer STATUS TEXT` are what an upstream of nginx
//! does. Evidence `= {x} {y}` is a sum of named answers.

use std::collections::BTreeSet;

use serde::Serialize;
use utoipa::ToSchema;

use crate::Failure;
use crate::evidence::Anomaly;
use crate::expect::{Answer, Expected, Named, WAITS};

/// One classic way to get stock wrong, and the right way.
#[derive(Debug, Clone)]
pub struct Story {
    /// Its name on the command line.
    pub name: &'static str,
    /// A few words.
    pub title: &'static str,
    /// Stories of one group are listed together.
    pub group: &'static str,
    /// What happens, in one line.
    pub summary: &'static str,
    /// Why it happens.
    pub why: &'static str,
    /// What to do instead.
    pub right_way: &'static str,
    /// Which strategy of this service is affected, or why none is.
    pub strategy: &'static str,
    /// The servers that it needs; the first one is the default.
    pub servers: Vec<&'static str>,
    /// The actors that run in processes of their own, which can be stopped and killed.
    pub(crate) processes: BTreeSet<&'static str>,
    /// The actors whose connections pass a proxy, which can hold and cut them.
    pub(crate) proxied: BTreeSet<&'static str>,
    /// The actors to which nginx sends requests, in this order.
    pub(crate) upstreams: Vec<&'static str>,
    /// The actors that use one connection. With `naive` in front, only in the naive variant.
    pub(crate) sharing: BTreeSet<&'static str>,
    /// What to say about the evidence: `{name}` is a value.
    pub(crate) finding: &'static str,
    pub(crate) anomaly: Anomaly,
    pub(crate) setup: Vec<&'static str>,
    /// The steps that go wrong.
    pub(crate) naive: Vec<Step>,
    /// The steps that do not.
    pub(crate) right: Vec<Step>,
    pub(crate) evidence: Vec<Evidence>,
}

/// A variant of a story.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// It goes wrong.
    Naive,
    /// It does not.
    Right,
}

/// One step of a variant.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    /// Who acts. `machine` changes processes, servers and the network.
    pub(crate) actor: &'static str,
    /// The raw command.
    pub(crate) command: &'static str,
    /// What the step means.
    pub(crate) sentence: &'static str,
    pub(crate) expected: Expected,
}

/// One step, as it happened.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = StepBody)]
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

/// A value that a server gives after the last step.
#[derive(Debug, Clone)]
pub(crate) struct Evidence {
    pub(crate) name: &'static str,
    pub(crate) query: &'static str,
    pub(crate) naive: i64,
    pub(crate) right: i64,
}

impl Story {
    /// Parses a story.
    ///
    /// # Errors
    /// The line that is wrong, and why.
    pub fn parse(name: &'static str, text: &'static str) -> Result<Self, Failure> {
        let (head, rest) = text
            .split_once("\n[")
            .ok_or_else(|| Failure::new("it has no sections").at(name))?;
        let field = |key: &str| {
            let mut lines = head.lines().filter_map(|line| line.split_once(": "));
            lines.find(|(found, _)| *found == key).map(|(_, it)| it)
        };
        let needed = |key: &str| {
            field(key).ok_or_else(|| Failure::new(format!("it has no `{key}`")).at(name))
        };
        let words = |key: &str| field(key).unwrap_or_default().split_whitespace();
        let mut story = Self {
            name,
            title: needed("title")?,
            group: needed("group")?,
            summary: needed("summary")?,
            why: needed("why")?,
            right_way: needed("right")?,
            strategy: needed("strategy")?,
            servers: words("servers").collect(),
            processes: words("processes").collect(),
            proxied: words("proxied").collect(),
            upstreams: words("upstreams").collect(),
            sharing: words("sharing").collect(),
            finding: needed("finding")?,
            anomaly: Anomaly::parse(needed("anomaly")?).map_err(|error| error.at(name))?,
            setup: Vec::new(),
            naive: Vec::new(),
            right: Vec::new(),
            evidence: Vec::new(),
        };
        for section in rest.split("\n[") {
            let (title, lines) = section.split_once("]\n").unwrap_or((section, ""));
            let lines = lines.lines().filter(|line| !line.trim().is_empty());
            for line in lines {
                let added = story.add(title, line);
                added.map_err(|error| error.at(format!("{name}: {line}")))?;
            }
        }
        if story.servers.is_empty() || story.evidence.is_empty() {
            return Err(Failure::new("it needs servers and evidence").at(name));
        }
        Ok(story)
    }

    fn add(&mut self, section: &str, line: &'static str) -> Result<(), Failure> {
        match section {
            "setup" => self.setup.push(line.trim()),
            "naive" => self.naive.push(step(line)?),
            "right" => self.right.push(step(line)?),
            "evidence" => self.evidence.push(evidence(line)?),
            other => return Err(Failure::new(format!("unknown section {other}"))),
        }
        Ok(())
    }

    /// The command without the server in front of it, and the server.
    pub(crate) fn place_of<'a>(&self, command: &'a str) -> (&'a str, &'a str) {
        match command.split_once("> ") {
            Some((server, command))
                if ["mutex", "http"].contains(&server) || self.servers.contains(&server) =>
            {
                (server, command)
            }
            _ => (self.servers[0], command),
        }
    }

    /// The steps of a variant, with the answers that the story expects.
    pub(crate) fn steps(&self, variant: Variant) -> &[Step] {
        match variant {
            Variant::Naive => &self.naive,
            Variant::Right => &self.right,
        }
    }

    /// What a variant shows, with the answers that the story expects. Each telling compares them with
    /// those of the servers.
    #[must_use]
    pub fn written(&self, variant: Variant) -> Vec<Seen> {
        let mut named = Named::default();
        let steps = self.steps(variant).iter();
        steps
            .map(|step| {
                let (_, command) = named.fill(step.command);
                let name = step.expected.name;
                let answer = match step.expected.answer {
                    Answer::Text(text) | Answer::Until(text) => named.fill(text).1,
                    Answer::Waits => WAITS.to_owned(),
                    Answer::Any => name.map_or("ok".to_owned(), |name| format!("<{name}>")),
                };
                if let Some(name) = name {
                    named.insert(name, &answer, &answer);
                }
                Seen {
                    actor: step.actor,
                    command: command.replace('~', ""),
                    answer,
                    sentence: step.sentence,
                }
            })
            .collect()
    }

    /// How many answers both variants get: one for each step and each value of the evidence.
    #[must_use]
    pub fn answers(&self) -> usize {
        self.naive.len() + self.right.len() + 2 * self.evidence.len()
    }

    /// The evidence of a variant in words, with the values that the story expects.
    #[must_use]
    pub fn finding(&self, variant: Variant) -> String {
        let values = self.evidence.iter().map(|evidence| {
            let value = match variant {
                Variant::Naive => evidence.naive,
                Variant::Right => evidence.right,
            };
            (evidence.name, value)
        });
        self.found(values)
    }

    /// The evidence in words.
    pub(crate) fn found<'a>(&self, values: impl Iterator<Item = (&'a str, i64)>) -> String {
        values.fold(self.finding.to_owned(), |text, (name, value)| {
            text.replace(&format!("{{{name}}}"), &value.to_string())
        })
    }

    /// Everyone who acts, in the order of the first step of each.
    #[must_use]
    pub fn actors(&self) -> Vec<&'static str> {
        let mut actors = Vec::new();
        for step in self.naive.iter().chain(&self.right) {
            if !actors.contains(&step.actor) {
                actors.push(step.actor);
            }
        }
        actors
    }
}

/// The four parts of a line, which are separated by ` | `.
fn parts(line: &'static str) -> Result<[&'static str; 4], Failure> {
    let parts: Vec<_> = line.split(" | ").map(str::trim).collect();
    <[_; 4]>::try_from(parts).map_err(|_| Failure::new("it has not four parts"))
}

fn step(line: &'static str) -> Result<Step, Failure> {
    let [actor, command, answer, sentence] = parts(line)?;
    Ok(Step {
        actor,
        command,
        sentence,
        expected: Expected::parse(answer),
    })
}

fn evidence(line: &'static str) -> Result<Evidence, Failure> {
    let [name, query, naive, right] = parts(line)?;
    let number = |text: &str| {
        let number = text.parse();
        number.map_err(|_| Failure::new(format!("`{text}` is not a number")))
    };
    Ok(Evidence {
        name,
        query,
        naive: number(naive)?,
        right: number(right)?,
    })
}
