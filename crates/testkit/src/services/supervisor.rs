//! A directory of the system's temp dir and at most one server in it, both gone when their owner is.
//!
//! Statics are not dropped in Rust, and a test process can be killed. So each server is the child
//! of a small shell that reads orders from a pipe: the pipe closes with the test process, whatever
//! ended it, and the shell then stops the server and removes the directory.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};

const SUPERVISE: &str = include_str!("supervise.sh");

/// Creates an empty directory that the server's user owns.
pub fn create_directory(name: &str) -> Result<PathBuf> {
    let directory = tempfile::Builder::new()
        .prefix(&format!("stocklock-{name}-"))
        .tempdir()
        .context("cannot create a temporary directory")?
        .keep();
    if let Some(user) = Unprivileged::needed() {
        chown(&directory, Some(user.id), Some(user.group))?;
    }
    Ok(directory.canonicalize()?)
}

/// The shell that owns a directory, and what it was told to run there.
#[derive(Debug)]
pub struct Supervisor {
    directory: PathBuf,
    shell: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    server: Option<u32>,
}

impl Supervisor {
    /// Takes `directory` over; `server` is the command to run there, `stop` the signal that ends it
    /// at last. Nothing runs before [`Self::start`].
    pub fn new(directory: PathBuf, stop: &str, server: &[OsString]) -> Result<Self> {
        let mut shell = Command::new("sh")
            .args(["-c", SUPERVISE, "supervise"])
            .arg(&directory)
            .arg(stop)
            .args(server)
            .current_dir(&directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // Ctrl-C in a terminal reaches the whole group of the tests; the shell must survive it
            // to clean up.
            .process_group(0)
            .spawn()
            .context("cannot run sh")?;
        let orders = shell.stdin.take();
        let answers = BufReader::new(shell.stdout.take().context("sh without an output")?);
        Ok(Self {
            directory,
            shell,
            orders,
            answers,
            server: None,
        })
    }

    /// The directory that it owns.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Starts the server.
    pub fn start(&mut self) -> Result<()> {
        let id = self.order("start")?;
        self.server = Some(id.parse().context("not a process id")?);
        Ok(())
    }

    /// Ends the server and all of its processes at once, as a loss of power would.
    pub fn kill9(&mut self) -> Result<()> {
        self.order("kill9")?;
        self.server = None;
        Ok(())
    }

    /// The id of the server's own process.
    pub fn server(&self) -> Option<u32> {
        self.server
    }

    /// Whether the server ended by itself; the shell has not reaped it yet.
    pub fn has_ended(&self) -> bool {
        self.server.is_some_and(|id| {
            // A zombie until the shell reaps it, which some shells do at once.
            fs::read_to_string(format!("/proc/{id}/status"))
                .map_or(true, |status| status.contains("State:\tZ"))
        })
    }

    /// The end of what the server has written.
    pub fn log_tail(&self) -> String {
        let log = fs::read(self.directory.join("log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(80)..].join("\n")
    }

    fn order(&mut self, order: &str) -> Result<String> {
        let orders = self.orders.as_mut().context("the supervisor is gone")?;
        writeln!(orders, "{order}").context("the supervisor is gone")?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        ensure!(!answer.is_empty(), "the supervisor ended");
        Ok(answer.trim_end().to_owned())
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.orders = None;
        // Waited for, so that the port is free and the directory gone once this returns.
        if let Err(error) = self.shell.wait() {
            eprintln!("the supervisor of {}: {error}", self.directory.display());
        }
    }
}

/// The user whom servers run as when the tests run as root, which MariaDB and PostgreSQL refuse.
#[derive(Debug, Clone, Copy)]
pub struct Unprivileged {
    id: u32,
    group: u32,
}

impl Unprivileged {
    /// Nobody, or nothing where the tests are unprivileged themselves.
    pub fn needed() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let users = fs::read_to_string("/etc/passwd").expect("/etc/passwd can be read");
        let field = |index: usize| {
            users
                .lines()
                .find(|line| line.starts_with("nobody:"))
                .and_then(|line| line.split(':').nth(index)?.parse().ok())
                .expect("/etc/passwd has the user nobody")
        };
        Some(Self {
            id: field(2),
            group: field(3),
        })
    }
}

/// The beginning of a command line that runs `program` without privileges.
pub fn unprivileged(program: PathBuf) -> Vec<OsString> {
    let mut line = Vec::new();
    if let Some(Unprivileged { id, group }) = Unprivileged::needed() {
        line.extend([
            "setpriv".into(),
            format!("--reuid={id}").into(),
            format!("--regid={group}").into(),
            "--clear-groups".into(),
            "--".into(),
        ]);
    }
    line.push(program.into());
    line
}

/// Runs a command line to its end, and tells what it said if it failed.
pub fn run(line: &[OsString], directory: &Path) -> Result<()> {
    let output = Command::new(&line[0])
        .args(&line[1..])
        .current_dir(directory)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", line[0].display()))?;
    ensure!(
        output.status.success(),
        "{line:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::time::Duration;

    use tokio::time::{Instant, sleep};

    use super::{Supervisor, create_directory};

    #[tokio::test]
    async fn a_server_that_ends_at_once_is_noticed_and_leaves_nothing() {
        let directory = create_directory("ends").unwrap();
        let server = ["sh", "-c", "echo 'address in use'; exit 1"].map(OsString::from);
        let mut supervisor = Supervisor::new(directory.clone(), "KILL", &server).unwrap();
        supervisor.start().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while !supervisor.has_ended() {
            assert!(Instant::now() < deadline);
            sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(supervisor.log_tail(), "address in use");
        drop(supervisor);
        assert!(!directory.exists());
    }
}
