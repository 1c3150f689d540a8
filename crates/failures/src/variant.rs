//! The step runner: one variant of a story, from an empty place on each server to its evidence.
//!
//! The next step starts when the one before has its answer, or is listed by its server as waiting.
//! No step waits for a fixed time: the runner asks the server until it lists a command as waiting, and repeats
//! that of a step with `until`. After 30 s the story fails.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use stocklock_servers::environment::unique_name;
use tokio::sync::oneshot;
use tokio::time::{Duration, Instant, sleep};

use crate::actor::{Line, PATIENCE, received};
use crate::evidence::Values;
use crate::expect::{Answer, Named, WAITS, matches};
use crate::mutexes::{Mutexes, Waiting};
use crate::networks::Networks;
use crate::places::{Ground, SHORT_SESSION, Servers};
use crate::process::ActorProcess;
use crate::session::Session;
use crate::story::{Seen, Step, Story};
use crate::telling::Told;
use crate::upstreams::Upstreams;

/// The pause between two questions to a server.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The command of a step that receives what its actor waits for.
const ARRIVES: &str = "(the answer arrives)";
/// What a falsified answer says. No story expects it.
const FALSE_ANSWER: &str = "777";

/// An answer that is replaced, to check that a story depends on it: the number of the answer, counted
/// over both variants, from 0. Each step and each value of the evidence is an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Falsified(pub usize);

/// Runs one variant.
pub(crate) async fn tell(
    story: &Story,
    servers: &Servers,
    is_naive: bool,
    falsified: &mut Option<Falsified>,
) -> Result<Told> {
    let mut run = Run {
        story,
        is_naive,
        servers,
        falsified: falsified.take(),
        pending: HashMap::new(),
        mutexes: Mutexes::default(),
        observers: HashMap::new(),
        lines: HashMap::new(),
        processes: HashMap::new(),
        networks: Networks::default(),
        upstreams: Upstreams::default(),
        named: Named::default(),
        grounds: HashMap::new(),
    };
    let told = run.tell().await;
    let cleaned = match run.grounds.get("redis") {
        Some(ground) => servers.remove_keys(ground, story).await,
        None => Ok(()),
    };
    *falsified = run.falsified.take();
    let done = told.and_then(|told| cleaned.map(|()| told));
    done.with_context(|| story.name.to_owned())
}

/// What an actor waits for.
enum Pending {
    Answer(oneshot::Receiver<String>),
    Mutex(Waiting),
}

/// A variant that runs. Connections end before the databases are removed.
struct Run<'a> {
    story: &'a Story,
    is_naive: bool,
    servers: &'a Servers,
    falsified: Option<Falsified>,
    pending: HashMap<&'static str, Pending>,
    mutexes: Mutexes,
    /// Connections that look at those of the actors.
    observers: HashMap<String, Session>,
    lines: HashMap<(&'static str, String), Line>,
    processes: HashMap<&'static str, ActorProcess>,
    networks: Networks,
    upstreams: Upstreams,
    named: Named,
    grounds: HashMap<String, Ground>,
}

impl Run<'_> {
    async fn tell(&mut self) -> Result<Told> {
        let (title, variant) = if self.is_naive {
            ("Naive", &self.story.naive)
        } else {
            ("Right", &self.story.right)
        };
        // One for all servers, because a replica has the keys of its primary.
        let prefix = format!("stocklock-failures:{}:", unique_name());
        let mut upstreams = Vec::new();
        for actor in &self.story.upstreams {
            upstreams.push(self.upstreams.listen(actor).await?);
        }
        for server in &self.story.servers {
            let ground = self.servers.ground(server, self.story, &prefix, &upstreams);
            let ground = ground.await.with_context(|| (*server).to_owned())?;
            if let Some(private) = &ground.server {
                let name = format!("port-of-{server}");
                let shown = format!("<{name}>");
                self.named
                    .insert(&name, &private.port().to_string(), &shown);
            }
            self.grounds.insert((*server).to_owned(), ground);
        }
        let default = self.story.servers[0];
        for actor in self.story.proxied.iter().copied() {
            let ground = &self.grounds[default];
            self.networks.place(actor, &ground.address).await;
        }
        for command in &self.story.setup {
            let (command, _) = self.named.fill(command);
            let answer = self.ask("setup", &command).await?;
            let is_error = answer.starts_with("error");
            ensure!(!is_error, "setup: {command}: {answer}");
        }
        let mut seen = Vec::new();
        for (number, step) in (1..).zip(&variant.script) {
            let done = self.step(step).await;
            let Step { actor, command, .. } = step;
            seen.push(done.with_context(|| format!("{title}, step {number}, {actor}: {command}"))?);
        }
        let mut evidence = Values::new();
        for ((name, query), expected) in self.story.evidence.iter().zip(&variant.values) {
            let (query, _) = self.named.fill(query);
            let answer = match query.strip_prefix("= ") {
                Some(answers) => sum(answers)?,
                None => self.ask("check", &query).await?,
            };
            let answer = self.perhaps_false(answer);
            let found = || format!("{title}: the evidence `{name}` is {answer}");
            let value: i64 = answer
                .parse()
                .map_err(|_| anyhow!("{}, not a number", found()))?;
            ensure!(value == *expected, "{}, not {expected}", found());
            evidence.insert((*name).to_owned(), value);
        }
        Ok(Told {
            anomaly: self.story.anomaly.holds(&evidence)?,
            finding: self.story.found(&variant.values),
            evidence,
            steps: seen,
        })
    }

    async fn step(&mut self, step: &Step) -> Result<Seen> {
        let (command, shown) = self.named.fill(step.command);
        let actor = step.actor;
        let answer = match (actor, step.expected.answer) {
            ("machine", _) => self.machine(&command).await?,
            (_, Answer::Waits) => self.waits(actor, &command).await?,
            _ if command == ARRIVES => self.finish(actor).await?,
            (_, Answer::Until(expected)) => self.repeat(actor, &command, expected).await?,
            (_, Answer::Text(_) | Answer::Any) => self.ask(actor, &command).await?,
        };
        let answer = self.perhaps_false(answer);
        let is_expected = match step.expected.answer {
            Answer::Text(expected) | Answer::Until(expected) => {
                matches(&self.named.fill(expected).0, &answer)
            }
            Answer::Waits => answer == WAITS,
            Answer::Any => !answer.starts_with("error"),
        };
        let expected = step.expected.answer;
        ensure!(is_expected, "answered `{answer}`, not {expected}");
        let is_any = step.expected.answer == Answer::Any;
        let shown_answer = match step.expected.name {
            Some(name) if is_any => format!("<{name}>"),
            _ => answer.clone(),
        };
        if let Some(name) = step.expected.name {
            self.named.insert(name, &answer, &shown_answer);
        }
        Ok(Seen {
            actor,
            command: shown.replace('~', ""),
            answer: shown_answer,
            sentence: step.sentence,
        })
    }

    /// Replaces the answer whose turn it is.
    fn perhaps_false(&mut self, answer: String) -> String {
        let Some(Falsified(number)) = self.falsified else {
            return answer;
        };
        self.falsified = number.checked_sub(1).map(Falsified);
        match number {
            0 => FALSE_ANSWER.to_owned(),
            _ => answer,
        }
    }

    /// Sends a command and receives the answer.
    async fn ask(&mut self, actor: &'static str, command: &str) -> Result<String> {
        let (server, command) = self.story.place_of(command);
        match server {
            "mutex" => return self.mutexes.run(command),
            "http" => return self.upstreams.run(actor, command).await,
            _ => {}
        }
        self.line(actor, server).await?.answer(command).await
    }

    /// Sends a command until it answers what is expected.
    async fn repeat(
        &mut self,
        actor: &'static str,
        command: &str,
        expected: &str,
    ) -> Result<String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = self.ask(actor, command).await?;
            if matches(expected, &answer) {
                return Ok(answer);
            }
            // A data exception of PostgreSQL: the command contains a value that cannot be right.
            let is_final = answer.starts_with("error 22");
            let is_over = is_final || Instant::now() > deadline;
            ensure!(!is_over, "still answers `{answer}`");
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Sends a command, and returns when its server lists the connection as waiting.
    async fn waits(&mut self, actor: &'static str, command: &str) -> Result<String> {
        let (server, command) = self.story.place_of(command);
        if server == "mutex" {
            let waiting = self.mutexes.wait(command)?;
            self.pending.insert(actor, Pending::Mutex(waiting));
            return Ok(WAITS.to_owned());
        }
        let line = self.line(actor, server).await?;
        let (kind, id) = (line.address.kind, line.id.clone());
        let mut answer = line.send(command).await;
        let deadline = Instant::now() + PATIENCE;
        let observer = self.observer(server).await?;
        while !observer.lists_as_waiting(kind, &id).await {
            if let Ok(answer) = answer.try_recv() {
                bail!("did not wait, but answered `{answer}`");
            }
            let is_over = Instant::now() > deadline;
            ensure!(!is_over, "the server does not list it as waiting");
            sleep(POLL_INTERVAL).await;
        }
        self.pending.insert(actor, Pending::Answer(answer));
        Ok(WAITS.to_owned())
    }

    /// Receives what the actor waits for.
    async fn finish(&mut self, actor: &'static str) -> Result<String> {
        match self.pending.remove(actor) {
            Some(Pending::Answer(answer)) => received(answer).await,
            Some(Pending::Mutex(waiting)) => self.mutexes.finish(waiting).await,
            None => bail!("the actor waits for nothing"),
        }
    }

    /// A command of the actor `machine`.
    async fn machine(&mut self, command: &str) -> Result<String> {
        let (word, name) = command.split_once(' ').unwrap_or((command, ""));
        let server = self.grounds.get(name).and_then(|it| it.server.clone());
        match (word, server, self.processes.get_mut(name)) {
            ("kill", Some(server), _) => server.kill9(),
            ("start", Some(server), _) => {
                server.restart().await;
                self.lines.retain(|(_, at), _| at != name);
                self.observers.remove(name);
            }
            ("pause", None, Some(process)) => process.stop().await?,
            ("resume", None, Some(process)) => process.resume()?,
            ("kill", None, Some(process)) => process.kill().await?,
            ("disconnect", None, None) => {
                self.upstreams.disconnect(name);
                self.lines.retain(|(actor, _), _| *actor != name);
            }
            _ => {
                let is_known = self.networks.run(command).await?;
                ensure!(is_known, "the machine cannot do this");
            }
        }
        Ok("ok".to_owned())
    }

    /// The connection of an actor to a server; opened at the first call.
    async fn line(&mut self, actor: &'static str, server: &str) -> Result<&Line> {
        let sharing = &self.story.sharing;
        let is_shared = !sharing.contains("naive") || self.is_naive;
        let owner = if is_shared && sharing.contains(actor) {
            "shared"
        } else {
            actor
        };
        let key = (owner, server.to_owned());
        if !self.lines.contains_key(&key) {
            let mut address = self.ground(server)?.address.clone();
            if self.story.proxied.contains(actor) && server == self.story.servers[0] {
                address = self.networks.through(actor, &address)?;
            }
            let line = if self.story.processes.contains(actor) {
                address.session = SHORT_SESSION;
                let process = match self.processes.entry(actor) {
                    Entry::Occupied(running) => running.into_mut(),
                    Entry::Vacant(place) => {
                        place.insert(ActorProcess::start(&self.servers.places.program)?)
                    }
                };
                process.line(&address).await?
            } else {
                Line::open(&address).await?
            };
            self.lines.insert(key.clone(), line);
        }
        Ok(&self.lines[&key])
    }

    async fn observer(&mut self, server: &str) -> Result<&mut Session> {
        let address = self.ground(server)?.address.clone();
        Ok(match self.observers.entry(server.to_owned()) {
            Entry::Occupied(observer) => observer.into_mut(),
            Entry::Vacant(place) => place.insert(Session::open(&address).await?),
        })
    }

    fn ground(&self, server: &str) -> Result<&Ground> {
        let ground = self.grounds.get(server);
        ground.with_context(|| format!("the story has no server {server}"))
    }
}

/// The sum of answers that are separated by spaces.
fn sum(answers: &str) -> Result<String> {
    let numbers = answers.split(' ').map(str::parse::<i64>);
    let sum: Option<i64> = numbers.map(Result::ok).sum();
    let sum = sum.with_context(|| format!("not all answers are numbers: {answers}"))?;
    Ok(sum.to_string())
}
