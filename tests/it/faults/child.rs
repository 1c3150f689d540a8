//! The program itself in lab mode, as a process of its own.

use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use reqwest::{Client, Method, RequestBuilder};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{SOON, send, until};
use crate::support::ports::free_port;

/// A replica in a process that ends, abruptly if need be, with its test.
pub(super) struct Lab {
    process: Child,
    base: String,
    /// Opens a connection for each request.
    client: Client,
}

impl Drop for Lab {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Lab {
    /// Starts it on a database, and returns when it is ready.
    pub(super) async fn start(database: &str, settings: &[(&str, &str)]) -> Self {
        let address = format!("127.0.0.1:{}", free_port());
        let process = Command::new(env!("CARGO_BIN_EXE_stocklock"))
            .arg("lab")
            .env_clear()
            .env("DATABASE_URL", database)
            .env("LISTEN", &address)
            .envs(settings.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let client = Client::builder().no_proxy().pool_max_idle_per_host(0);
        let lab = Self {
            process: process.expect("the program runs"),
            base: format!("http://{address}"),
            client: client.build().expect("a client without TLS can be built"),
        };
        until("the replica is ready", SOON, || async {
            let answer = send(lab.request(Method::GET, "/readyz")).await;
            answer.is_ok_and(|answer| answer.status == 200)
        })
        .await;
        lab
    }

    pub(super) fn base(&self) -> &str {
        &self.base
    }

    pub(super) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.base))
    }

    pub(super) async fn set_level(&self, sku: &str, on_hand: i64) {
        let request = self.request(Method::PUT, &format!("/stock/{sku}"));
        let answer = send(request.json(&json!({ "on_hand": on_hand }))).await;
        assert_eq!(answer.expect("it answers").status, 201);
    }

    /// The most memory that it ever had, in KiB.
    pub(super) fn peak_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id()));
        let status = status.expect("the process lives");
        let peak = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
        peak.and_then(|kib| kib.parse().ok())
            .expect("its status tells its peak")
    }

    /// Asks it to end, as an orchestrator does.
    pub(super) fn terminate(&self) {
        kill_process(Pid::from_child(&self.process), Signal::TERM).expect("it lives");
    }

    /// How it ended, if it has.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().expect("it is our child")
    }

    /// Waits for it to end by itself, and answers how it did.
    pub(super) async fn end(&mut self) -> ExitStatus {
        let deadline = Instant::now() + SOON;
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            assert!(Instant::now() < deadline, "it does not end");
            sleep(Duration::from_millis(10)).await;
        }
    }
}
