//! A process of its own that waits for a lock and holds it: the package's example `hold`.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

/// The process; killed when this is dropped.
pub(crate) struct Holder {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Holder {
    /// Starts it, and returns when it asks for the lock.
    pub(crate) async fn start(url: &str, name: &str) -> Self {
        let mut child = Command::new(program())
            .args([url, name, "600"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the example `hold` runs: `cargo test` builds it with all targets");
        let stdout = child.stdout.take().expect("it is piped");
        let mut holder = Self {
            child,
            lines: BufReader::new(stdout).lines(),
        };
        assert_eq!(holder.line(Duration::from_secs(30)).await, "waiting");
        holder
    }

    /// Starts it, and returns when it holds the lock, with the token.
    pub(crate) async fn start_and_hold(url: &str, name: &str) -> (Self, i64) {
        let mut holder = Self::start(url, name).await;
        let line = holder.line(Duration::from_secs(30)).await;
        let token = line.strip_prefix("held ").expect("it holds the lock");
        let token = token.parse().expect("a number");
        (holder, token)
    }

    /// The next line that it writes.
    pub(crate) async fn line(&mut self, within: Duration) -> String {
        let line = timeout(within, self.lines.next_line()).await;
        line.expect("it says something")
            .unwrap()
            .expect("it still runs")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let id = self
            .child
            .id()
            .and_then(|id| Pid::from_raw(id.try_into().ok()?));
        kill_process(id.expect("it runs"), signal).unwrap();
    }
}

/// Beside the tests' own program.
fn program() -> PathBuf {
    let mut path = std::env::current_exe().expect("a program knows where it is");
    path.pop();
    path.pop();
    path.join("examples/hold")
}
