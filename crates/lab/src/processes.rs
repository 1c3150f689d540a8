//! Replicas as child processes.
//!
//! A replica prints its address as one line of JSON on standard output, and stops when its standard
//! input is closed. The operating system closes it even if this process is killed, so no replica
//! outlives the race.

use std::collections::VecDeque;
use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use crate::race::{InvalidTarget, Target};

/// The longest time from the start of a process until it prints its address.
const START_LIMIT: Duration = Duration::from_secs(30);

/// The longest wait for the rest of the log of a replica that has ended.
const OUTPUT_LIMIT: Duration = Duration::from_secs(1);

/// The number of last lines of standard error that are kept for an error message.
const LAST_LINES: usize = 10;

/// The line that a replica prints when it accepts connections.
#[derive(Deserialize)]
struct Announcement {
    listening: String,
}

/// A replica did not start.
#[derive(Debug, thiserror::Error)]
#[error("replica {number} {reason}")]
pub struct StartError {
    /// The number of the replica, from 1.
    pub number: u32,
    /// The exit code, if the process exited by itself.
    pub exit_code: Option<i32>,
    reason: String,
}

/// Running replicas. Dropping this value kills them.
#[derive(Debug)]
pub struct ReplicaProcesses {
    targets: Vec<Target>,
    replicas: Vec<Replica>,
}

#[derive(Debug)]
struct Replica {
    process: Child,
    output: JoinHandle<()>,
}

impl ReplicaProcesses {
    /// Starts `count` replicas at the same time and waits until all accept connections.
    /// `command` returns the command of the replica with the given number, from 1.
    ///
    /// # Errors
    /// If a replica exits, prints something else than its address, or exceeds the time limit. The
    /// other replicas are then killed.
    pub async fn start(count: u32, command: impl Fn(u32) -> Command) -> Result<Self, StartError> {
        let until = Instant::now() + START_LIMIT;
        let starting = (1..=count).map(|number| Starting::spawn(number, command(number)));
        let starting: Vec<_> = starting.collect::<Result<_, _>>()?;
        let mut targets = Vec::new();
        let mut replicas = Vec::new();
        for replica in starting {
            let (target, replica) = replica.listening(until).await?;
            targets.push(target);
            replicas.push(replica);
        }
        Ok(Self { targets, replicas })
    }

    /// The URLs of the replicas.
    #[must_use]
    pub fn targets(&self) -> &[Target] {
        &self.targets
    }

    /// Stops the replicas gracefully and kills those that need longer than `limit`. Returns one
    /// line for each replica that had ended before or that failed.
    pub async fn stop(mut self, limit: Duration) -> Vec<String> {
        let until = Instant::now() + limit;
        let mut problems = Vec::new();
        for (number, replica) in (1..).zip(&mut self.replicas) {
            match replica.process.try_wait() {
                Ok(Some(status)) => {
                    problems.push(format!("replica {number} ended during the race: {status}"));
                }
                // Standard input is a pipe: dropping this end closes it.
                _ => drop(replica.process.stdin.take()),
            }
        }
        for (number, mut replica) in (1..).zip(self.replicas) {
            match timeout_at(until, replica.process.wait()).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => problems.push(format!("replica {number}: {error}")),
                Err(_) => {
                    problems.push(format!("replica {number} did not stop and was killed"));
                    if let Err(error) = replica.process.kill().await {
                        problems.push(format!("replica {number} cannot be killed: {error}"));
                    }
                }
            }
            // The task ends with standard error, unless a process of the replica still holds it.
            let _ = timeout(OUTPUT_LIMIT, replica.output).await;
        }
        problems
    }
}

/// A process that has not printed its address yet.
struct Starting {
    number: u32,
    process: Child,
    errors: Lines<BufReader<ChildStderr>>,
    last_lines: VecDeque<String>,
}

impl Starting {
    fn spawn(number: u32, mut command: Command) -> Result<Self, StartError> {
        let spawned = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            // Ctrl-C in a terminal reaches the race only, and the race stops its replicas.
            .process_group(0)
            .spawn();
        let mut process = spawned.map_err(|error| StartError {
            number,
            exit_code: None,
            reason: format!("cannot be started: {error}"),
        })?;
        let errors = process.stderr.take().expect("standard error is a pipe");
        Ok(Self {
            number,
            process,
            errors: BufReader::new(errors).lines(),
            last_lines: VecDeque::new(),
        })
    }

    /// Waits until the replica prints its address.
    async fn listening(mut self, until: Instant) -> Result<(Target, Replica), StartError> {
        let mut exit_code = None;
        let reason = match timeout_at(until, self.first_line()).await {
            Ok(Ok(Some(line))) => match parse(&line) {
                Ok(target) => {
                    let replica = Replica {
                        process: self.process,
                        output: tokio::spawn(pass_through(self.last_lines, self.errors)),
                    };
                    return Ok((target, replica));
                }
                Err(error) => format!("printed `{line}` instead of its address: {error}"),
            },
            Ok(Ok(None)) => match timeout_at(until, self.exited()).await {
                Ok(Ok(status)) => {
                    exit_code = status.code();
                    match exit_code {
                        Some(code) => format!("did not start (exit code {code})"),
                        None => format!("did not start ({status})"),
                    }
                }
                _ => "closed its standard output".to_owned(),
            },
            Ok(Err(error)) => format!("cannot be read: {error}"),
            Err(_) => format!("did not start within {} s", START_LIMIT.as_secs()),
        };
        let lines: Vec<String> = self.last_lines.into();
        let reason = match &lines[..] {
            [] => reason,
            [line] => format!("{reason}: {}", line.trim_start_matches("stocklock: ")),
            lines => format!("{reason}:\n  {}", lines.join("\n  ")),
        };
        Err(StartError {
            number: self.number,
            exit_code,
            reason,
        })
    }

    /// The first line of standard output. Keeps the last lines of standard error.
    async fn first_line(&mut self) -> io::Result<Option<String>> {
        let output = self.process.stdout.take();
        let mut output = BufReader::new(output.expect("standard output is a pipe")).lines();
        loop {
            tokio::select! {
                line = output.next_line() => return line,
                Ok(Some(line)) = self.errors.next_line() => self.keep(line),
            }
        }
    }

    /// Reads standard error to its end and waits for the exit.
    async fn exited(&mut self) -> io::Result<ExitStatus> {
        while let Ok(Some(line)) = self.errors.next_line().await {
            self.keep(line);
        }
        self.process.wait().await
    }

    fn keep(&mut self, line: String) {
        if self.last_lines.len() == LAST_LINES {
            self.last_lines.pop_front();
        }
        self.last_lines.push_back(line);
    }
}

fn parse(line: &str) -> Result<Target, String> {
    let announcement: Announcement =
        serde_json::from_str(line).map_err(|error| error.to_string())?;
    let target = announcement.listening.parse();
    target.map_err(|error: InvalidTarget| error.to_string())
}

/// Copies the lines of a replica's standard error to the standard error of this process.
async fn pass_through(first: VecDeque<String>, mut lines: Lines<BufReader<ChildStderr>>) {
    for line in first {
        eprintln!("{line}");
    }
    // Invalid UTF-8 is an error of one line only.
    loop {
        match lines.next_line().await {
            Ok(Some(line)) => eprintln!("{line}"),
            Ok(None) => return,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {}
            Err(error) => {
                tracing::warn!(%error, "cannot read the log of a replica");
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> impl Fn(u32) -> Command {
        move |number| {
            let mut command = Command::new("sh");
            command.args(["-c", script, "replica", &number.to_string()]);
            command
        }
    }

    #[tokio::test]
    async fn replicas_announce_their_address_and_stop_with_stdin() {
        let script = r#"echo "{\"listening\":\"http://127.0.0.1:400$1\"}"; cat"#;
        let replicas = ReplicaProcesses::start(2, shell(script)).await.unwrap();
        let targets: Vec<_> = replicas.targets().iter().map(ToString::to_string).collect();
        assert_eq!(targets, ["http://127.0.0.1:4001", "http://127.0.0.1:4002"]);
        assert_eq!(replicas.stop(START_LIMIT).await, [""; 0]);
    }

    #[tokio::test]
    async fn failed_start_reports_exit_code_and_stderr() {
        for (script, exit_code, message) in [
            (
                "echo 'stocklock: LOG: bad' >&2; exit 2",
                Some(2),
                "replica 1 did not start (exit code 2): LOG: bad",
            ),
            (
                "echo one >&2; echo two >&2; exit 1",
                Some(1),
                "replica 1 did not start (exit code 1):\n  one\n  two",
            ),
            (
                "kill -9 $$",
                None,
                "replica 1 did not start (signal: 9 (SIGKILL))",
            ),
        ] {
            let error = ReplicaProcesses::start(1, shell(script)).await.unwrap_err();
            assert_eq!(error.to_string(), message);
            assert_eq!(error.exit_code, exit_code);
        }
        let error = ReplicaProcesses::start(1, shell("echo hello; cat")).await;
        let error = error.unwrap_err().to_string();
        assert!(error.contains("printed `hello` instead of"), "{error}");
    }

    #[tokio::test]
    async fn replica_that_ends_or_hangs_is_reported() {
        let announce = r#"echo '{"listening":"http://127.0.0.1:4000"}'"#;
        let script = format!("{announce}; if [ $1 = 1 ]; then exit 3; fi; exec sleep 60");
        let mut replicas = ReplicaProcesses::start(2, shell(&script)).await.unwrap();
        replicas.replicas[0].process.wait().await.unwrap();
        let problems = replicas.stop(Duration::from_millis(10)).await;
        let expected = [
            "replica 1 ended during the race: exit status: 3",
            "replica 2 did not stop and was killed",
        ];
        assert_eq!(problems, expected);
    }
}
