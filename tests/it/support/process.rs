//! The service as a process of its own: the built program, ended when its guard is dropped.

use std::fs::{self, File};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::ports::free_port;

/// How long a process may take to do what a test waits for; on an idle machine it is a moment.
const PATIENCE: Duration = Duration::from_mins(1);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A running `stocklock`, in an empty directory and an empty environment of its own.
pub(crate) struct Process {
    child: Guard,
    directory: TempDir,
    port: u16,
}

/// Ends its process when it is dropped.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a process left behind.
pub(crate) struct Ended {
    /// Its working directory.
    pub(crate) directory: TempDir,
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Process {
    /// Starts `stocklock` with these words and variables; `LISTEN` is a free port of loopback.
    pub(crate) fn start(words: &[&str], variables: &[(&str, &str)]) -> Self {
        let directory = TempDir::with_prefix("stocklock-process-").expect("a directory");
        let port = free_port();
        let output = |name| File::create(directory.path().join(name)).expect("a file");
        let child = Command::new(env!("CARGO_BIN_EXE_stocklock"))
            .args(words)
            .env_clear()
            .env("LISTEN", format!("127.0.0.1:{port}"))
            .envs(variables.iter().copied())
            .current_dir(&directory)
            .stdin(Stdio::null())
            .stdout(output("stdout"))
            .stderr(output("stderr"))
            .spawn()
            .expect("the program can be started");
        Self {
            child: Guard(child),
            directory,
            port,
        }
    }

    /// Starts it, and waits until it is ready to serve.
    pub(crate) async fn serving(words: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut process = Self::start(words, variables);
        process.is_ready().await;
        process
    }

    /// Runs it to its end.
    pub(crate) async fn run(words: &[&str], variables: &[(&str, &str)]) -> Ended {
        Self::start(words, variables).ended().await
    }

    /// Waits until it is ready to serve.
    pub(crate) async fn is_ready(&mut self) {
        let url = self.url("/readyz");
        let begin = Instant::now();
        loop {
            if let Ok(answer) = reqwest::get(&url).await
                && answer.status() == 200
            {
                return;
            }
            let ended = self.child.0.try_wait().expect("the process can be asked");
            assert!(
                ended.is_none() && begin.elapsed() < PATIENCE,
                "not ready ({ended:?}): {}",
                self.output("stderr")
            );
            sleep(LOOK_EVERY).await;
        }
    }

    /// `host:port`.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// Asks it to end.
    pub(crate) fn terminate(&self) {
        kill_process(Pid::from_child(&self.child.0), Signal::TERM).expect("it runs");
    }

    /// Waits for its end.
    pub(crate) async fn ended(mut self) -> Ended {
        let begin = Instant::now();
        let status: ExitStatus = loop {
            if let Some(status) = self.child.0.try_wait().expect("the process can be asked") {
                break status;
            }
            assert!(
                begin.elapsed() < PATIENCE,
                "it does not end: {}",
                self.output("stderr")
            );
            sleep(LOOK_EVERY).await;
        };
        Ended {
            code: status.code(),
            stdout: self.output("stdout"),
            stderr: self.output("stderr"),
            directory: self.directory,
        }
    }

    fn output(&self, name: &str) -> String {
        fs::read_to_string(self.directory.path().join(name)).expect("its output is text")
    }
}
