//! The built service as a separate process. It dies when its handle is dropped.

use std::ops::{Deref, DerefMut};
use std::process::Stdio;

use reqwest::{Client, Method, RequestBuilder};
use serde_json::json;
use stocklock_testkit::eventually;
use stocklock_testkit::ports::free_port;
pub(crate) use stocklock_testkit::process::Ended;
use stocklock_testkit::process::Process as Child;
use stocklock_testkit::run::variable;

use super::app::{Answer, counted, send};
use super::client::built;
use crate::faults::SOON;

/// A running `stocklock` with an empty working directory and environment.
pub(crate) struct Process {
    child: Child,
    port: u16,
    /// Opens a connection for each request.
    client: Client,
}

/// The program under test: this build, or an optimised one that `TEST_BINARY` names.
pub(crate) fn this_build() -> String {
    variable("TEST_BINARY").unwrap_or_else(|| env!("CARGO_BIN_EXE_stocklock").to_owned())
}

impl Deref for Process {
    type Target = Child;

    fn deref(&self) -> &Self::Target {
        &self.child
    }
}

impl DerefMut for Process {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.child
    }
}

impl Process {
    /// Starts `stocklock` with these arguments and variables; `LISTEN` is a free port on loopback, and
    /// `serve` needs no keys, unless `AUTH` is given.
    pub(crate) fn start(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::start_program(&this_build(), arguments, variables)
    }

    /// The same, with another standard error than a file.
    pub(crate) fn start_logging_to(
        stderr: Stdio,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        Self::start_with(&this_build(), arguments, variables, Some(stderr))
    }

    /// Starts another build.
    pub(crate) fn start_program(
        program: &str,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        Self::start_with(program, arguments, variables, None)
    }

    fn start_with(
        program: &str,
        arguments: &[&str],
        variables: &[(&str, &str)],
        stderr: Option<Stdio>,
    ) -> Self {
        let port = free_port();
        let listen = format!("127.0.0.1:{port}");
        let mut environment = vec![("LISTEN", listen.as_str()), ("AUTH", "none")];
        environment.extend(variables);
        Self {
            child: Child::start_with(program, arguments, &environment, stderr),
            port,
            client: built(Client::builder().pool_max_idle_per_host(0)),
        }
    }

    /// Starts it, and waits until it is ready.
    pub(crate) async fn serving(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut process = Self::start(arguments, variables);
        process.is_ready().await;
        process
    }

    /// Starts a replica in lab mode with `DATABASE_URL` and these variables, and waits until it is
    /// ready.
    pub(crate) async fn lab(database_url: &str, variables: &[(&str, &str)]) -> Self {
        let mut all = vec![("DATABASE_URL", database_url)];
        all.extend(variables);
        Self::serving(&["lab"], &all).await
    }

    /// Starts another build as a replica in lab mode, and waits until it is ready.
    pub(crate) async fn lab_of(program: &str, database_url: &str) -> Self {
        let variables = [("DATABASE_URL", database_url)];
        let mut process = Self::start_program(program, &["lab"], &variables);
        process.is_ready().await;
        process
    }

    /// Runs it to its end.
    pub(crate) async fn run(arguments: &[&str], variables: &[(&str, &str)]) -> Ended {
        Self::start(arguments, variables).ended().await
    }

    pub(crate) async fn ended(self) -> Ended {
        self.child.ended().await
    }

    /// Starts it again after a kill, at the same port, and waits until it is ready.
    pub(crate) async fn restart(&mut self) {
        self.child.restart();
        self.is_ready().await;
    }

    /// Waits until `/readyz` answers 200.
    pub(crate) async fn is_ready(&mut self) {
        self.answers("/readyz").await;
    }

    /// Waits until this path answers 200.
    pub(crate) async fn answers(&mut self, path: &str) {
        let (client, url) = (self.client.clone(), self.url(path));
        let answers = async || {
            let answer = client.get(&url).send().await;
            answer.is_ok_and(|answer| answer.status() == 200)
        };
        self.child.wait_until(answers).await;
    }

    /// Its log, at least up to the line that says that it listens. A thread writes the log, so lines may come
    /// after an answer.
    pub(crate) async fn log(&self) -> String {
        let is_listening = async || self.stderr().contains("listening");
        eventually("it logs that it listens", SOON, is_listening).await;
        self.stderr()
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

    pub(crate) async fn get(&self, path: &str) -> Answer {
        send(self.request(Method::GET, path)).await
    }

    /// Sets the level of a new SKU.
    pub(crate) async fn set_level(&self, sku: &str, on_hand: i64) {
        let request = self.request(Method::PUT, &format!("/stock/{sku}"));
        let answer = request.json(&json!({ "on_hand": on_hand })).send().await;
        assert_eq!(answer.expect("it answers").status(), 201);
    }

    /// The sum of the counters whose name and labels start with `series`.
    pub(crate) async fn counted(&self, series: &str) -> u64 {
        counted(self.get("/metrics").await.text(), series)
    }
}
