//! A temporary directory with at most one server in it. Both end with the process that owns them.
//!
//! Rust does not drop statics, and a test process can be killed. So each server is the child of a
//! shell that reads commands from a pipe. The pipe closes when the test process ends for any reason;
//! the shell then stops the server and removes the directory.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Pid;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use crate::environment::announce;
use crate::signals;

/// Upper bound on the time until a server answers. An idle machine needs well under a second.
pub const READY_WITHIN: Duration = Duration::from_mins(1);
/// The pause between two looks at a server that starts.
pub const POLL_INTERVAL: Duration = Duration::from_millis(10);

const SUPERVISE: &str = include_str!("supervise.sh");

/// The shell that owns a directory, and the server that it can start there.
#[derive(Debug)]
pub struct Supervisor {
    directory: PathBuf,
    shell: Mutex<Shell>,
}

#[derive(Debug)]
struct Shell {
    process: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    server: Option<Pid>,
}

impl Supervisor {
    /// Takes ownership of `directory`. `server` is the command to run there, which [`Self::start`]
    /// starts; `stop` is the signal that ends it when this is dropped.
    pub fn new(directory: TempDir, stop: &str, server: Option<&Command>) -> Result<Self> {
        let mut process = Command::new("sh");
        process.args(["-c", SUPERVISE, "supervise"]);
        process.arg(directory.path()).arg(stop);
        if let Some(server) = server {
            process.arg(server.get_program()).args(server.get_args());
        }
        // Ctrl-C in a terminal reaches the process group of the tests. The shell must survive it.
        process.process_group(0).current_dir(directory.path());
        process.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = process
            .stderr(Stdio::null())
            .spawn()
            .context("cannot run sh")?;
        let answers = process.stdout.take().context("sh has no output")?;
        Ok(Self {
            directory: directory.keep(),
            shell: Mutex::new(Shell {
                commands: process.stdin.take(),
                answers: BufReader::new(answers),
                process,
                server: None,
            }),
        })
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Starts the server.
    pub fn start(&self) -> Result<()> {
        let mut shell = self.shell();
        let id = shell.send("start")?.parse().ok().and_then(Pid::from_raw);
        shell.server = Some(id.context("not a process id")?);
        Ok(())
    }

    /// Kills the server and all its processes (`SIGKILL`), and returns once they are dead.
    pub fn kill9(&self) -> Result<()> {
        let mut shell = self.shell();
        shell.server = None;
        shell.send("kill9").map(drop)
    }

    /// Stops the server and all its processes (`SIGSTOP`), like a machine that is suspended. Returns once no
    /// thread of them is running.
    pub async fn freeze(&self) -> Result<()> {
        let frozen = self.shell().send("freeze")?;
        let ids: Result<Vec<i32>, _> = frozen.split(' ').map(str::parse).collect();
        for id in ids? {
            let id = Pid::from_raw(id).context("not a process id")?;
            signals::stop(id).await;
        }
        Ok(())
    }

    /// Continues them after [`Self::freeze`] (`SIGCONT`).
    pub fn thaw(&self) -> Result<()> {
        self.shell().send("thaw").map(drop)
    }

    /// The process of the server, if it was started and not killed.
    pub fn server(&self) -> Option<Pid> {
        self.shell().server
    }

    /// Whether the server has ended by itself.
    pub fn has_ended(&self) -> bool {
        self.server().is_some_and(|id| {
            // A zombie until the shell reaps it.
            fs::read_to_string(format!("/proc/{}/status", id.as_raw_nonzero()))
                .map_or(true, |status| status.contains("State:\tZ"))
        })
    }

    /// Waits until the server accepts connections at this port. Fails if it ends first.
    pub async fn listens_at(&self, port: u16) -> Result<()> {
        let deadline = Instant::now() + READY_WITHIN;
        while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            let log = self.log_tail();
            ensure!(!self.has_ended(), "it ended:\n{log}");
            ensure!(Instant::now() < deadline, "it is not ready:\n{log}");
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// The last 80 lines of the server's output.
    pub fn log_tail(&self) -> String {
        let log = fs::read(self.directory.join("log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(80)..].join("\n")
    }

    fn shell(&self) -> MutexGuard<'_, Shell> {
        self.shell.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shell {
    /// Sends a command, and returns the answer.
    fn send(&mut self, command: &str) -> Result<String> {
        let commands = self.commands.as_mut().context("the supervisor has ended")?;
        writeln!(commands, "{command}").context("the supervisor has ended")?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        ensure!(!answer.is_empty(), "the supervisor has ended");
        Ok(answer.trim_end().to_owned())
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        let mut shell = self.shell();
        shell.commands = None;
        // After this the port is free and the directory is removed.
        if let Err(error) = shell.process.wait() {
            announce(format_args!("{}: {error}", self.directory.display()));
        }
    }
}

/// The ids of the user and group that run servers if this process is root: MariaDB and PostgreSQL
/// refuse to run as root.
fn unprivileged_user() -> Result<Option<(u32, u32)>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd")?;
    let nobody = users.lines().find(|line| line.starts_with("nobody:"));
    let fields: Vec<&str> = nobody.context("no user `nobody`")?.split(':').collect();
    Ok(Some((fields[2].parse()?, fields[3].parse()?)))
}

/// A command that runs `program` without privileges.
pub fn unprivileged(program: &Path) -> Result<Command> {
    let Some((user, group)) = unprivileged_user()? else {
        return Ok(Command::new(program));
    };
    let mut command = Command::new("setpriv");
    command
        .arg(format!("--reuid={user}"))
        .arg(format!("--regid={group}"));
    command.args([
        "--clear-groups".as_ref(),
        "--".as_ref(),
        program.as_os_str(),
    ]);
    Ok(command)
}

/// Makes a file or directory readable for servers.
pub fn give_to_server(path: &Path) -> Result<()> {
    if let Some((user, group)) = unprivileged_user()? {
        chown(path, Some(user), Some(group))?;
    }
    Ok(())
}

/// Creates an empty temporary directory for a server, with an absolute path without symbolic links.
pub fn create_directory(name: &str) -> Result<TempDir> {
    let parent = std::env::temp_dir().canonicalize();
    let directory =
        parent.and_then(|parent| TempDir::with_prefix_in(format!("stocklock-{name}-"), parent));
    let directory = directory.context("cannot create a temporary directory")?;
    give_to_server(directory.path())?;
    Ok(directory)
}

/// Writes a file that a server reads.
pub fn write_file(directory: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let path = directory.join(name);
    fs::write(&path, text)?;
    give_to_server(&path)?;
    Ok(path)
}

/// Writes a configuration file of `deploy/` with what is different for this server. Fails if the file does not
/// contain a text that is to be replaced.
pub fn write_deployed(
    directory: &Path,
    deployed: &Path,
    replacements: &[(impl AsRef<str>, impl AsRef<str>)],
) -> Result<PathBuf> {
    let text = fs::read_to_string(deployed);
    let mut text = text.with_context(|| format!("cannot read {}", deployed.display()))?;
    for (from, to) in replacements {
        let (from, to) = (from.as_ref(), to.as_ref());
        ensure!(text.contains(from), "{} lacks {from}", deployed.display());
        text = text.replace(from, to);
    }
    let name = deployed.file_name().and_then(OsStr::to_str);
    write_file(directory, name.context("not a file")?, &text)
}

/// Runs a command to its end. An error contains its output.
pub fn run(command: &mut Command, directory: &Path) -> Result<()> {
    let output = command.current_dir(directory).stdin(Stdio::null()).output();
    let output =
        output.with_context(|| format!("cannot run {}", command.get_program().display()))?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let arguments: Vec<&OsStr> = command.get_args().collect();
    ensure!(
        output.status.success(),
        "{arguments:?}: {}\n{stdout}{stderr}",
        output.status
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use super::{Supervisor, create_directory};
    use crate::eventually;

    #[tokio::test]
    async fn server_that_ends_at_once_is_noticed_and_removed() {
        let directory = create_directory("ends").unwrap();
        let mut server = Command::new("sh");
        server.args(["-c", "echo 'address in use'; exit 1"]);
        let supervisor = Supervisor::new(directory, "KILL", Some(&server)).unwrap();
        let directory = supervisor.directory().to_owned();
        supervisor.start().unwrap();
        let soon = Duration::from_secs(20);
        eventually("it ends", soon, async || supervisor.has_ended()).await;
        assert_eq!(supervisor.log_tail(), "address in use");
        drop(supervisor);
        assert!(!directory.exists());
    }
}
