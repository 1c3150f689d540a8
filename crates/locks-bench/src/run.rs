//! One run: what is measured, and its processes.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::servers::Servers;

/// How long each run takes.
pub(crate) const TIME: Duration = Duration::from_millis(1_500);
/// The tasks of all processes.
const TASKS: usize = 64;

/// A lock library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Implementation {
    /// `tokio::sync::Mutex`: the ideal, and only within one process.
    Mutex,
    Redis,
    /// In order of arrival.
    Fair,
    Rslock,
    ZooKeeper,
    ZooKeeperClient,
}

impl Implementation {
    pub(crate) const ALL: [Self; 6] = [
        Self::Mutex,
        Self::Redis,
        Self::Fair,
        Self::Rslock,
        Self::ZooKeeper,
        Self::ZooKeeperClient,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Mutex => "tokio Mutex",
            Self::Redis => "ours, Redis",
            Self::Fair => "ours, Redis, fair",
            Self::Rslock => "rslock",
            Self::ZooKeeper => "ours, ZooKeeper",
            Self::ZooKeeperClient => "zookeeper-client",
        }
    }

    /// The address that it uses.
    fn address(self, servers: &Servers) -> &str {
        match self {
            Self::Mutex => "",
            Self::Redis | Self::Fair | Self::Rslock => &servers.redis,
            Self::ZooKeeper | Self::ZooKeeperClient => &servers.zookeeper,
        }
    }

    pub(crate) fn parse(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|known| known.name() == name);
        found.with_context(|| format!("no implementation {name}"))
    }
}

/// How the lock is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scenario {
    /// One task acquires and releases.
    Uncontended,
    /// All tasks acquire and release, without work.
    Contended,
    /// All tasks hold the lock for 5 ms, and then do something else for 50 ms.
    HandOff,
}

pub(crate) const SCENARIOS: [Scenario; 3] = [
    Scenario::Uncontended,
    Scenario::Contended,
    Scenario::HandOff,
];

/// What is measured together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Run {
    pub(crate) scenario: Scenario,
    pub(crate) processes: usize,
    pub(crate) implementation: Implementation,
}

impl Scenario {
    pub(crate) fn runs(self) -> Vec<Run> {
        let processes: &[usize] = match self {
            Self::Uncontended => &[1],
            Self::Contended | Self::HandOff => &[1, 4],
        };
        let mut runs = Vec::new();
        for &processes in processes {
            for implementation in Implementation::ALL {
                if implementation != Implementation::Mutex || processes == 1 {
                    runs.push(Run {
                        scenario: self,
                        processes,
                        implementation,
                    });
                }
            }
        }
        runs
    }

    fn tasks(self) -> usize {
        if self == Self::Uncontended { 1 } else { TASKS }
    }

    /// How long a task holds the lock, and how long it then waits, in ms.
    fn pauses(self) -> (u64, u64) {
        if self == Self::HandOff {
            (5, 50)
        } else {
            (0, 0)
        }
    }
}

impl Run {
    /// Measures with a lock of this name, which no other run has used: releases per second, the 99th
    /// percentile of the waits, and those of the busiest and of the quietest task. A wait
    /// that had not ended counts.
    pub(crate) async fn measure(self, servers: &Servers, name: &str) -> Result<Value> {
        let mut workers = Vec::new();
        for _ in 0..self.processes {
            workers.push(Worker::start(self, servers, name)?);
        }
        for worker in &mut workers {
            ensure!(worker.line().await? == "ready", "a worker is not ready");
        }
        for worker in &mut workers {
            let input = worker.process.stdin.as_mut().context("no input")?;
            input.write_all(b"go\n").await?;
        }
        let (mut counts, mut waits) = (Vec::new(), Vec::new());
        for worker in &mut workers {
            let line = worker.line().await?;
            let result: Value = serde_json::from_str(&line).context("a result")?;
            counts.extend(numbers(&result["counts"])?);
            waits.extend(numbers(&result["waits"])?);
            ensure!(worker.process.wait().await?.success(), "a worker failed");
        }
        waits.sort_unstable();
        let total: u64 = counts.iter().sum();
        Ok(json!({
            "rate": total as f64 / TIME.as_secs_f64(),
            "p99_ms": waits[(waits.len() - 1) * 99 / 100] as f64 / 1_000.0,
            "busiest": counts.iter().max(),
            "quietest": counts.iter().min(),
        }))
    }
}

fn numbers(values: &Value) -> Result<Vec<u64>> {
    let values = values.as_array().context("no list")?.iter();
    let numbers: Option<Vec<u64>> = values.map(Value::as_u64).collect();
    numbers.context("not a number")
}

/// A process that uses the lock.
struct Worker {
    process: Child,
    output: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    fn start(run: Run, servers: &Servers, name: &str) -> Result<Self> {
        let (hold, think) = run.scenario.pauses();
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("worker").arg(run.implementation.name());
        command.arg(run.implementation.address(servers)).arg(name);
        let tasks = run.scenario.tasks() / run.processes;
        command.args([tasks.to_string(), hold.to_string(), think.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.kill_on_drop(true).spawn()?;
        let output = process.stdout.take().context("no output")?;
        Ok(Self {
            process,
            output: BufReader::new(output).lines(),
        })
    }

    async fn line(&mut self) -> Result<String> {
        match self.output.next_line().await? {
            Some(line) => Ok(line),
            None => bail!("a worker ended early"),
        }
    }
}
