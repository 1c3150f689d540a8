//! A program that a test runs, terminates, kills or stops. It dies with its handle.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::{secrets, signals};

/// Upper bound for everything that a test waits for. An idle machine needs milliseconds.
const PATIENCE: Duration = Duration::from_mins(3);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A running program in an empty temporary directory. Its output goes to files there. Dropping this
/// kills the program (`SIGKILL`) and removes the directory. A test fails if the program has printed a secret.
#[derive(Debug)]
pub struct Process {
    command: Command,
    child: Guard,
    directory: TempDir,
}

/// Kills its process when it is dropped, and looks for secrets in its output.
#[derive(Debug)]
struct Guard {
    child: Child,
    output: PathBuf,
    passwords: Vec<String>,
    /// `stocklock keys create` prints a key.
    prints_key: bool,
}

impl Guard {
    fn start(command: &mut Command) -> Self {
        let child = command.spawn();
        let child = child.unwrap_or_else(|error| {
            panic!("cannot start {}: {error}", command.get_program().display())
        });
        Self {
            child,
            output: command.get_current_dir().expect("it has one").to_owned(),
            passwords: secrets::of(command),
            prints_key: command.get_args().any(|argument| argument == "create"),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Both fail if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            return;
        }
        for (name, may_have_key) in [("stderr", false), ("stdout", self.prints_key)] {
            let printed = fs::read(self.output.join(name)).unwrap_or_default();
            let leak = secrets::leaked(&String::from_utf8_lossy(&printed), &self.passwords)
                .map(str::to_owned)
                .filter(|_| !may_have_key);
            assert_eq!(leak, None, "a secret in {name}");
        }
    }
}

/// The output of a process that has ended.
#[derive(Debug)]
pub struct Ended {
    /// The working directory of the process.
    pub directory: TempDir,
    /// The exit code; `None` if a signal killed the process.
    pub code: Option<i32>,
    /// All that the process wrote to standard output.
    pub stdout: String,
    /// All that the process wrote to standard error.
    pub stderr: String,
}

impl Process {
    /// Starts the program at `path`. Its environment contains `variables` and nothing else.
    pub fn start(path: impl AsRef<Path>, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::start_with(path, arguments, variables, None)
    }

    /// The same. If there is a `stderr`, standard error goes there instead of to a file.
    pub fn start_with(
        path: impl AsRef<Path>,
        arguments: &[&str],
        variables: &[(&str, &str)],
        stderr: Option<Stdio>,
    ) -> Self {
        let directory = TempDir::with_prefix("stocklock-process-").expect("a directory");
        let output = |name| File::create(directory.path().join(name)).expect("a file");
        let errors = output("stderr");
        let mut command = Command::new(path.as_ref());
        command
            .args(arguments)
            .env_clear()
            .envs(variables.iter().copied())
            .current_dir(&directory)
            .stdin(Stdio::null())
            .stdout(output("stdout"))
            .stderr(stderr.unwrap_or_else(|| errors.into()));
        Self {
            child: Guard::start(&mut command),
            command,
            directory,
        }
    }

    /// Starts it again after [`Self::kill9`], in the same directory. Its output is appended to that of
    /// before.
    pub fn restart(&mut self) {
        self.child = Guard::start(&mut self.command);
    }

    /// Waits until `check` returns true.
    ///
    /// # Panics
    /// If the process ends first, or after three minutes.
    pub async fn wait_until(&mut self, mut check: impl AsyncFnMut() -> bool) {
        let begin = Instant::now();
        while !check().await {
            assert!(
                self.is_running() && begin.elapsed() < PATIENCE,
                "not ready: {}",
                self.stderr()
            );
            sleep(POLL_INTERVAL).await;
        }
    }

    /// All that it has written to standard output.
    pub fn stdout(&self) -> String {
        self.output("stdout")
    }

    /// All that it has written to standard error.
    pub fn stderr(&self) -> String {
        self.output("stderr")
    }

    /// Asks it to end (`SIGTERM`).
    pub fn terminate(&self) {
        kill_process(self.id(), Signal::TERM).expect("the process is running");
    }

    /// Kills it (`SIGKILL`), and returns once it is dead.
    pub fn kill9(&mut self) {
        self.child.child.kill().expect("the process is running");
        self.child
            .child
            .wait()
            .expect("it is a child of this process");
    }

    /// Stops it (`SIGSTOP`), and returns once none of its threads is running.
    pub async fn stop(&self) {
        signals::stop(self.id()).await;
    }

    /// Continues it after [`Self::stop`] (`SIGCONT`).
    pub fn resume(&self) {
        signals::resume(self.id());
    }

    /// Whether it has not ended; a stopped process counts as running.
    pub fn is_running(&mut self) -> bool {
        let status = self.child.child.try_wait();
        status.expect("it is a child of this process").is_none()
    }

    /// Its largest resident memory so far, in KiB.
    pub fn peak_memory(&self) -> u64 {
        self.status("VmHWM:")
    }

    /// How many threads it has.
    pub fn threads(&self) -> u64 {
        self.status("Threads:")
    }

    /// A number in the status of the process.
    fn status(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.child.id()));
        let status = status.expect("the process is running");
        let mut lines = status.lines();
        let number = lines.find_map(|line| line.strip_prefix(name)?.split_whitespace().next());
        let number = number.and_then(|number| number.parse().ok());
        number.unwrap_or_else(|| panic!("the status has no {name}"))
    }

    /// Waits until it ends, and returns its output.
    ///
    /// # Panics
    /// If it is still running after three minutes.
    pub async fn ended(mut self) -> Ended {
        let begin = Instant::now();
        let code = loop {
            let status = self.child.child.try_wait();
            if let Some(status) = status.expect("it is a child of this process") {
                break status.code();
            }
            assert!(
                begin.elapsed() < PATIENCE,
                "the process does not end: {}",
                self.stderr()
            );
            sleep(POLL_INTERVAL).await;
        };
        Ended {
            code,
            stdout: self.stdout(),
            stderr: self.stderr(),
            directory: self.directory,
        }
    }

    /// Its process id.
    pub fn id(&self) -> Pid {
        Pid::from_child(&self.child.child)
    }

    fn output(&self, name: &str) -> String {
        fs::read_to_string(self.directory.path().join(name)).expect("the output is UTF-8")
    }
}
