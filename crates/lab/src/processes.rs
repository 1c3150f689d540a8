//! Replicas as child processes.
//!
//! A replica prints its address as one line of JSON on standard output, and stops when its standard
//! input is closed. The operating system closes it even if this process is killed, so no replica
//! outlives the race.

use std::process::Stdio;
use std::time::Duration;

use futures_util::future::try_join_all;
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, BufReader, Split};
use tokio::process::{Child, ChildStderr, Command};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use crate::race::Target;

/// The longest time from the start of a process until it prints its address.
const START_LIMIT: Duration = Duration::from_secs(30);

/// The longest wait for the rest of the log of a replica that has ended.
const OUTPUT_LIMIT: Duration = Duration::from_secs(1);

/// The number of last lines of standard error in an error message.
const LAST_LINES: usize = 10;

/// A replica did not start.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct StartError {
    /// The exit code, if the process exited by itself.
    pub exit_code: Option<i32>,
    message: String,
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
    /// `command` returns the command of the replica with the given number, from 1. Each line that a
    /// replica writes to standard error goes to `log`, which must not wait.
    ///
    /// # Errors
    /// If a replica exits, prints something else than its address, or exceeds the time limit. The
    /// other replicas are then killed.
    pub async fn start(
        count: u32,
        command: impl Fn(u32) -> Command,
        log: fn(&str),
    ) -> Result<Self, StartError> {
        let starting = (1..=count).map(|number| start_replica(number, command(number), log));
        let started = try_join_all(starting).await?;
        let (targets, replicas) = started.into_iter().unzip();
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
        let mut ended = Vec::new();
        for replica in &mut self.replicas {
            ended.push(matches!(replica.process.try_wait(), Ok(Some(_))));
            // Standard input is a pipe: dropping this end closes it.
            drop(replica.process.stdin.take());
        }
        let mut problems = Vec::new();
        for ((number, mut replica), ended) in (1..).zip(self.replicas).zip(ended) {
            match timeout_at(until, replica.process.wait()).await {
                Ok(Ok(status)) if ended => {
                    problems.push(format!("replica {number} ended during the race: {status}"));
                }
                Ok(Ok(status)) if status.success() => {}
                Ok(Ok(status)) => {
                    problems.push(format!(
                        "replica {number} failed while it stopped: {status}"
                    ));
                }
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

/// Starts a replica and waits until it prints its address.
async fn start_replica(
    number: u32,
    mut command: Command,
    log: fn(&str),
) -> Result<(Target, Replica), StartError> {
    let failed = |exit_code, reason| StartError {
        exit_code,
        message: format!("replica {number} {reason}"),
    };
    let spawned = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        // Ctrl-C in a terminal reaches the race only, and the race stops its replicas.
        .process_group(0)
        .spawn();
    let spawned = spawned.map_err(|error| failed(None, format!("cannot be started: {error}")));
    let mut process = spawned?;
    let output = process.stdout.take().expect("standard output is a pipe");
    let mut output = BufReader::new(output).lines();
    let errors = process.stderr.take().expect("standard error is a pipe");
    let mut errors = BufReader::new(errors).split(b'\n');
    let mut lines = Vec::new();
    let mut exit_code = None;
    let first_line = async {
        loop {
            tokio::select! {
                line = output.next_line() => return line,
                Some(line) = next_line(&mut errors) => lines.push(line),
            }
        }
    };
    let until = Instant::now() + START_LIMIT;
    let reason = match timeout_at(until, first_line).await {
        Ok(Ok(Some(line))) => match parse(&line) {
            Ok(target) => {
                let output = tokio::spawn(async move {
                    for line in lines {
                        log(&line);
                    }
                    while let Some(line) = next_line(&mut errors).await {
                        log(&line);
                    }
                });
                return Ok((target, Replica { process, output }));
            }
            Err(error) => format!("printed `{line}` instead of its address: {error}"),
        },
        Ok(Ok(None)) => {
            let exited = async {
                while let Some(line) = next_line(&mut errors).await {
                    lines.push(line);
                }
                process.wait().await
            };
            match timeout_at(until, exited).await {
                Ok(Ok(status)) => {
                    exit_code = status.code();
                    let code = exit_code.map(|code| format!("exit code {code}"));
                    let code = code.unwrap_or_else(|| status.to_string());
                    format!("did not start ({code})")
                }
                _ => "closed its standard output".to_owned(),
            }
        }
        Ok(Err(error)) => format!("cannot be read: {error}"),
        Err(_) => format!("did not start within {} s", START_LIMIT.as_secs()),
    };
    let reason = match &lines[lines.len().saturating_sub(LAST_LINES)..] {
        [] => reason,
        [line] => format!("{reason}: {}", line.trim_start_matches("stocklock: ")),
        lines => format!("{reason}:\n  {}", lines.join("\n  ")),
    };
    Err(failed(exit_code, reason))
}

/// The next line of a replica's standard error. Cancel safe.
async fn next_line(errors: &mut Split<BufReader<ChildStderr>>) -> Option<String> {
    match errors.next_segment().await {
        Ok(line) => line.map(|line| String::from_utf8_lossy(&line).into_owned()),
        Err(error) => {
            tracing::warn!(%error, "cannot read the log of a replica");
            None
        }
    }
}

/// Parses the line that a replica prints when it accepts connections.
fn parse(line: &str) -> Result<Target, String> {
    #[derive(Deserialize)]
    struct Announcement {
        listening: String,
    }
    let announcement: Result<Announcement, _> = serde_json::from_str(line);
    let announcement = announcement.map_err(|error| error.to_string())?;
    announcement.listening.parse()
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
    async fn failed_start_reports_exit_code_and_stderr() {
        for (script, exit_code, reason) in [
            (
                "echo 'stocklock: LOG: bad' >&2; exit 2",
                Some(2),
                "did not start (exit code 2): LOG: bad",
            ),
            (
                "echo one >&2; echo two >&2; exit 1",
                Some(1),
                "did not start (exit code 1):\n  one\n  two",
            ),
            ("kill -9 $$", None, "did not start (signal: 9 (SIGKILL))"),
            (
                "echo hello; cat",
                None,
                "printed `hello` instead of its address: expected value at line 1 column 1",
            ),
        ] {
            let started = ReplicaProcesses::start(1, shell(script), |_| {}).await;
            let error = started.unwrap_err();
            assert_eq!(error.to_string(), format!("replica 1 {reason}"));
            assert_eq!(error.exit_code, exit_code);
        }
    }

    #[tokio::test]
    async fn replica_that_ends_or_hangs_is_reported() {
        let announce = r#"echo '{"listening":"http://127.0.0.1:4000"}'"#;
        let script =
            format!("{announce}; case $1 in 1) exit 3;; 2) cat; exit 4;; esac; exec sleep 60");
        let started = ReplicaProcesses::start(3, shell(&script), |_| {}).await;
        let mut replicas = started.unwrap();
        replicas.replicas[0].process.wait().await.unwrap();
        let problems = replicas.stop(Duration::from_secs(1)).await;
        let expected = [
            "replica 1 ended during the race: exit status: 3",
            "replica 2 failed while it stopped: exit status: 4",
            "replica 3 did not stop and was killed",
        ];
        assert_eq!(problems, expected);
    }
}
