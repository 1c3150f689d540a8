//! A process that waits for a lock and holds it: the package's example `hold`.

use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Signal, kill_process};
use stocklock_locks::Token;
use stocklock_testkit::eventually;
use stocklock_testkit::process::Process;

/// The lease and session timeout of the example.
pub(crate) const LEASE: Duration = Duration::from_secs(2);
const SOON: Duration = Duration::from_secs(30);

/// The process. Dropping this kills it.
pub(crate) struct Holder {
    process: Process,
    /// How many lines have been read.
    read: usize,
}

impl Holder {
    /// Starts it, and returns when it requests the lock.
    pub(crate) async fn start(url: &str, name: &str) -> Self {
        let process = Process::start(example("hold"), &[url, name, "600"], &[]);
        let mut holder = Self { process, read: 0 };
        assert_eq!(holder.line(SOON).await, "waiting");
        holder
    }

    /// Starts it, and returns when it holds the lock, with the token if there is one.
    pub(crate) async fn start_and_hold(url: &str, name: &str) -> (Self, Option<Token>) {
        let mut holder = Self::start(url, name).await;
        let line = holder.line(SOON).await;
        let token = line.strip_prefix("held").expect("it holds the lock");
        let token = token.strip_prefix(' ');
        let token = token.map(|token| Token::new(token.parse().expect("a number")));
        (holder, token)
    }

    pub(crate) async fn line(&mut self, within: Duration) -> String {
        let mut line = String::new();
        eventually("the holder writes a line", within, async || {
            let output = self.process.stdout();
            let next = output.split_inclusive('\n').nth(self.read);
            line = next.unwrap_or_default().into();
            line.ends_with('\n')
        })
        .await;
        self.read += 1;
        line.trim_end().to_owned()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.process.id(), signal).expect("it is running");
    }
}

/// The program of an example, which `cargo test` builds beside the program of the tests.
pub(crate) fn example(name: &str) -> PathBuf {
    let tests = std::env::current_exe().expect("the path of this program");
    let target = tests.parent().and_then(|deps| deps.parent());
    let examples = target.expect("a target directory").join("examples");
    examples.join(name)
}
