//! The service as a process of its own: the built program, ended when its guard is dropped.

use std::fs::{self, File};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use reqwest::{Client, Method, RequestBuilder};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::ports::free_port;
use super::signals;

/// How long a process may take to do what a test waits for; on an idle machine it is a moment.
const PATIENCE: Duration = Duration::from_mins(1);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A running `stocklock`, in an empty directory and an empty environment of its own.
pub(crate) struct Process {
    child: Guard,
    directory: TempDir,
    port: u16,
    /// Opens a connection for each request.
    client: Client,
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
        let client = Client::builder().no_proxy().pool_max_idle_per_host(0);
        Self {
            child: Guard(child),
            directory,
            port,
            client: client.build().expect("a client without TLS can be built"),
        }
    }

    /// Starts it, and waits until it is ready to serve.
    pub(crate) async fn serving(words: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut process = Self::start(words, variables);
        process.is_ready().await;
        process
    }

    /// Starts a replica in lab mode on a database, with what else its environment is to say, such
    /// as `REDIS_URL`, and waits until it is ready to serve.
    pub(crate) async fn lab(database_url: &str, variables: &[(&str, &str)]) -> Self {
        let mut all = vec![("DATABASE_URL", database_url)];
        all.extend(variables);
        Self::serving(&["lab"], &all).await
    }

    /// Runs it to its end.
    pub(crate) async fn run(words: &[&str], variables: &[(&str, &str)]) -> Ended {
        Self::start(words, variables).ended().await
    }

    /// Waits until it is ready to serve.
    pub(crate) async fn is_ready(&mut self) {
        let begin = Instant::now();
        loop {
            let answer = self.request(Method::GET, "/readyz").send().await;
            if answer.is_ok_and(|answer| answer.status() == 200) {
                return;
            }
            assert!(
                self.is_running() && begin.elapsed() < PATIENCE,
                "not ready: {}",
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

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, self.url(path))
    }

    /// Sets the level of a SKU that it does not know yet.
    pub(crate) async fn set_level(&self, sku: &str, on_hand: i64) {
        let request = self.request(Method::PUT, &format!("/stock/{sku}"));
        let answer = request.json(&json!({ "on_hand": on_hand })).send().await;
        assert_eq!(answer.expect("it answers").status(), 201);
    }

    /// What its counters say whose name and labels begin so, in sum.
    pub(crate) async fn counted(&self, series: &str) -> u64 {
        let answer = self.request(Method::GET, "/metrics").send().await;
        let text = answer.expect("it answers").text().await;
        let counted = |line: &str| {
            let (_, value) = line.strip_prefix(series)?.rsplit_once(' ')?;
            value.parse::<u64>().ok()
        };
        let text = text.expect("its metrics are text");
        text.lines().filter_map(counted).sum()
    }

    /// What it has said so far.
    pub(crate) fn stderr(&self) -> String {
        self.output("stderr")
    }

    /// Asks it to end, as an orchestrator does.
    pub(crate) fn terminate(&self) {
        kill_process(self.id(), Signal::TERM).expect("it runs");
    }

    /// Ends it at once, in the middle of whatever it does (`SIGKILL`).
    pub(crate) fn kill9(&mut self) {
        self.child.0.kill().expect("it runs");
        self.child.0.wait().expect("it is our child");
    }

    /// Stops it as it is (`SIGSTOP`), and returns when none of its threads runs any more.
    pub(crate) async fn stop(&self) {
        signals::stop(self.id()).await;
    }

    /// Lets it go on after [`Self::stop`] (`SIGCONT`).
    pub(crate) fn resume(&self) {
        signals::resume(self.id());
    }

    pub(crate) fn is_running(&mut self) -> bool {
        let ended = self.child.0.try_wait();
        ended.expect("the process can be asked").is_none()
    }

    /// The most memory that it ever had, in KiB.
    pub(crate) fn peak_memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.0.id()));
        let status = status.expect("the process lives");
        let peak = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
        peak.and_then(|kib| kib.parse().ok())
            .expect("its status tells its peak")
    }

    fn id(&self) -> Pid {
        Pid::from_child(&self.child.0)
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
