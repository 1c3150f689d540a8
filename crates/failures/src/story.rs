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

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use serde::Serialize;
use utoipa::ToSchema;

use crate::Failure;
use crate::evidence::Anomaly;
use crate::expect::{Answer, Expected, Named, WAITS};

/// One classic way to get stock wrong.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = StoryBody)]
pub struct Story {
    /// Its name.
    pub name: &'static str,
    /// A few words.
    pub title: &'static str,
    /// Stories of one group belong together.
    pub group: &'static str,
    /// What happens.
    pub summary: &'static str,
    /// Why it happens.
    pub why: &'static str,
    /// What to do instead.
    pub right_way: &'static str,
    /// Which strategies are affected.
    pub strategy: &'static str,
    /// The servers that it needs.
    pub servers: Vec<&'static str>,
    /// Who acts.
    pub actors: Vec<&'static str>,
    /// What goes wrong.
    pub naive: Variant,
    /// What does not.
    pub right: Variant,
    /// The actors that run in processes of their own, which can be stopped and killed.
    #[serde(skip)]
    pub(crate) processes: BTreeSet<&'static str>,
    /// The actors whose connections pass a proxy, which can hold and cut them.
    #[serde(skip)]
    pub(crate) proxied: BTreeSet<&'static str>,
    /// The actors to which nginx sends requests, in this order.
    #[serde(skip)]
    pub(crate) upstreams: Vec<&'static str>,
    /// The actors that use one connection. With `naive` in front, only in the naive variant.
    #[serde(skip)]
    pub(crate) sharing: BTreeSet<&'static str>,
    /// What to say about the evidence: `{name}` is a value.
    #[serde(skip)]
    finding: &'static str,
    #[serde(skip)]
    pub(crate) anomaly: Anomaly,
    #[serde(skip)]
    pub(crate) setup: Vec<&'static str>,
    /// Names and queries of the values that servers give after the last step.
    #[serde(skip)]
    pub(crate) evidence: Vec<(&'static str, &'static str)>,
}

/// One variant of a story.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
#[schema(as = VariantBody)]
pub struct Variant {
    /// What the servers have at the end, in words.
    pub finding: String,
    /// The steps, in order.
    pub steps: Vec<Seen>,
    #[serde(skip)]
    pub(crate) script: Vec<Step>,
    /// The values of the evidence, in its order.
    #[serde(skip)]
    pub(crate) values: Vec<i64>,
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

impl Story {
    /// Parses a story.
    ///
    /// # Errors
    /// The line that is wrong, and why.
    pub fn parse(name: &'static str, text: &'static str) -> Result<Self, Failure> {
        let parsed = Self::parsed(name, text);
        Ok(parsed.with_context(|| name.to_owned())?)
    }

    fn parsed(name: &'static str, text: &'static str) -> Result<Self> {
        let sections = text.split_once("\n[");
        let (head, rest) = sections.context("it has no sections")?;
        let field = |key: &str| {
            let mut lines = head.lines().filter_map(|line| line.split_once(": "));
            lines.find(|(found, _)| *found == key).map(|(_, it)| it)
        };
        let needed = |key: &str| field(key).with_context(|| format!("it has no `{key}`"));
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
            anomaly: Anomaly::parse(needed("anomaly")?)?,
            actors: Vec::new(),
            setup: Vec::new(),
            naive: Variant::default(),
            right: Variant::default(),
            evidence: Vec::new(),
        };
        for section in rest.split("\n[") {
            let (title, lines) = section.split_once("]\n").unwrap_or((section, ""));
            let lines = lines.lines().filter(|line| !line.trim().is_empty());
            for line in lines {
                let added = story.add(title, line);
                added.with_context(|| line.to_owned())?;
            }
        }
        let is_complete = !(story.servers.is_empty() || story.evidence.is_empty());
        ensure!(is_complete, "it needs servers and evidence");
        for step in story.naive.script.iter().chain(&story.right.script) {
            if !story.actors.contains(&step.actor) {
                story.actors.push(step.actor);
            }
        }
        story.naive.steps = written(&story.naive.script);
        story.right.steps = written(&story.right.script);
        story.naive.finding = story.found(&story.naive.values);
        story.right.finding = story.found(&story.right.values);
        Ok(story)
    }

    fn add(&mut self, section: &str, line: &'static str) -> Result<()> {
        if section == "setup" {
            self.setup.push(line.trim());
            return Ok(());
        }
        let parts: Vec<_> = line.split(" | ").map(str::trim).collect();
        let [first, second, third, fourth] = *parts.as_slice() else {
            bail!("it has not four parts");
        };
        let number = |text: &str| {
            let number = text.parse();
            number.map_err(|_| anyhow!("`{text}` is not a number"))
        };
        let step = || Step {
            actor: first,
            command: second,
            expected: Expected::parse(third),
            sentence: fourth,
        };
        match section {
            "naive" => self.naive.script.push(step()),
            "right" => self.right.script.push(step()),
            "evidence" => {
                self.evidence.push((first, second));
                self.naive.values.push(number(third)?);
                self.right.values.push(number(fourth)?);
            }
            other => bail!("unknown section {other}"),
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

    /// The steps of both variants.
    pub(crate) fn steps(&self) -> impl Iterator<Item = &Step> {
        self.naive.script.iter().chain(&self.right.script)
    }

    /// How many answers both variants get: one for each step and each value of the evidence.
    #[must_use]
    pub fn answers(&self) -> usize {
        self.steps().count() + 2 * self.evidence.len()
    }

    /// These values of the evidence in words.
    pub(crate) fn found(&self, values: &[i64]) -> String {
        let values = self.evidence.iter().zip(values);
        values.fold(self.finding.to_owned(), |text, ((name, _), value)| {
            text.replace(&format!("{{{name}}}"), &value.to_string())
        })
    }
}

/// What a variant shows, with the answers that the story expects. Each telling compares them with those of
/// the servers.
fn written(script: &[Step]) -> Vec<Seen> {
    let mut named = Named::default();
    let written = script.iter().map(|step| {
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
    });
    written.collect()
}
