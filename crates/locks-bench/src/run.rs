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
/// The libraries. `tokio::sync::Mutex` is the ideal, and only within one process; `fair` is in order of arrival.
const LIBRARIES: [&str; 6] = [
    "tokio Mutex",
    "ours, Redis",
    "ours, Redis, fair",
    "rslock",
    "ours, ZooKeeper",
    "zookeeper-client",
];

/// How the lock is used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    processes: &'static [usize],
    /// Of all processes.
    tasks: usize,
    /// How long a task holds the lock, and how long it then does something else, in ms.
    pauses: [u64; 2],
}

const SCENARIOS: [Scenario; 3] = [
    Scenario {
        name: "Uncontended",
        processes: &[1],
        tasks: 1,
        pauses: [0, 0],
    },
    Scenario {
        name: "Contended",
        processes: &[1, 4],
        tasks: 64,
        pauses: [0, 0],
    },
    Scenario {
        name: "HandOff",
        processes: &[1, 4],
        tasks: 64,
        pauses: [5, 50],
    },
];

/// What is measured together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    pub(crate) scenario: Scenario,
    pub(crate) processes: usize,
    pub(crate) library: &'static str,
}

/// All runs of one round.
pub(crate) fn runs() -> Vec<Run> {
    let mut runs = Vec::new();
    for scenario in SCENARIOS {
        for &processes in scenario.processes {
            let libraries = LIBRARIES.into_iter().skip(usize::from(processes > 1));
            runs.extend(libraries.map(|library| Run {
                scenario,
                processes,
                library,
            }));
        }
    }
    runs
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
        let mut command = Command::new(std::env::current_exe()?);
        command.args([
            "worker",
            run.library,
            &servers.redis,
            &servers.zookeeper,
            name,
        ]);
        command.arg((run.scenario.tasks / run.processes).to_string());
        command.args(run.scenario.pauses.map(|pause| pause.to_string()));
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
