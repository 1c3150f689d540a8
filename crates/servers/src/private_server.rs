//! A server that one test owns, and may kill, stop and restart.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use rustix::process::Pid;
use tokio::time::{Instant, sleep, timeout};

use crate::environment::{announce, variable};
use crate::ports::free_port;
use crate::program::{Program, Settings};
use crate::signals;
use crate::supervisor::{POLL_INTERVAL, READY_WITHIN, Supervisor};
use crate::{Backend, sql, with_path};

/// How many times [`PrivateServer::restart`] starts a server that crashes while it starts.
const STARTS: usize = 3;
/// The database that [`PrivateServer::url`] names.
const DATABASE: &str = "stocklock";
/// The file to which each crash appends a line. `make test` counts the lines.
const CRASHES_FILE: &str = "TEST_CRASHES_FILE";

/// A private server. Dropping this ends it and removes its data.
#[derive(Debug)]
pub struct PrivateServer {
    program: Program,
    supervisor: Supervisor,
    port: u16,
    url: String,
}

impl PrivateServer {
    /// Starts a database server with one empty database.
    ///
    /// # Panics
    /// If it does not start, or for [`Backend::Sqlite`], which has no server.
    pub async fn start(backend: Backend) -> Self {
        Self::expect(backend.program(), &[]).await
    }

    /// Starts an empty Redis that keeps nothing on disk. `arguments` of `redis-server` override that.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn redis(arguments: &[&str]) -> Self {
        Self::expect(Program::Redis, arguments).await
    }

    /// Starts an empty ZooKeeper with ticks of 100 ms, so that sessions can be as short as 200 ms.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn zookeeper() -> Self {
        Self::expect(Program::ZooKeeper, &[]).await
    }

    async fn expect(program: Program, arguments: &[&str]) -> Self {
        let started = Self::launch(program, &Settings::Test, arguments).await;
        started.unwrap_or_else(|error| panic!("no private {}: {error:#}", program.name()))
    }

    /// Starts a server, with `arguments` at the end of its command line. A database server has one
    /// empty database.
    pub async fn launch(program: Program, settings: &Settings, arguments: &[&str]) -> Result<Self> {
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.into()).collect();
        // Another program may take a free port before the server does.
        for _ in 0..3 {
            let port = free_port();
            let mut server = Self {
                program,
                supervisor: program.prepare(port, settings, &arguments).await?,
                port,
                url: program.url(port),
            };
            server.supervisor.start()?;
            if server.becomes_ready().await? {
                if matches!(program, Program::MariaDb | Program::Postgres) {
                    sql::execute(&server.url, format!("CREATE DATABASE {DATABASE}")).await?;
                    server.url = with_path(&server.url, DATABASE);
                }
                return Ok(server);
            }
            let log = server.supervisor.log_tail();
            ensure!(log.contains("in use"), "it ended at once:\n{log}");
        }
        bail!("other programs took three ports in a row")
    }

    /// The URL of the database; Redis: of database 0; ZooKeeper: the connect string.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The port at which it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address at which it listens, `host:port`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The directory that contains its data and its log.
    pub fn directory(&self) -> &Path {
        self.supervisor.directory()
    }

    /// The version that the server reports.
    pub async fn version(&self) -> Result<String> {
        Ok(self.program.probe(&self.url).await?.version)
    }

    /// The process to which clients connect.
    ///
    /// # Panics
    /// If the server was killed.
    pub fn process(&self) -> Pid {
        self.supervisor.server().expect("the server was started")
    }

    /// Stops that process (`SIGSTOP`), and returns once none of its threads is running. PostgreSQL
    /// serves each connection in another process, which is not stopped.
    pub async fn stop(&self) {
        signals::stop(self.process()).await;
    }

    /// Continues it after [`Self::stop`] (`SIGCONT`).
    pub fn resume(&self) {
        signals::resume(self.process());
    }

    /// Kills the server with all its processes, and returns once they are dead.
    pub fn kill9(&self) {
        let killed = self.supervisor.kill9();
        killed.expect("the supervisor is running");
    }

    /// Starts it again after [`Self::kill9`], on the same port and data. Returns when it answers.
    ///
    /// A server that crashes while it recovers is started again, as a service manager does: MariaDB
    /// 10.11.19 crashes once in hundreds of kills. Each crash is printed and counted.
    ///
    /// # Panics
    /// If it crashes three times.
    pub async fn restart(&self) {
        for _ in 0..STARTS {
            let started = self.supervisor.start();
            started.expect("the supervisor is running");
            let ready = self.becomes_ready().await;
            if ready.unwrap_or_else(|error| panic!("{error:#}")) {
                return;
            }
            self.report_crash();
            self.kill9();
        }
        panic!("it crashed {STARTS} times while it started");
    }

    fn report_crash(&self) {
        let (name, log) = (self.program.name(), self.supervisor.log_tail());
        announce(format_args!("{name} crashed while it started:\n{log}"));
        if let Some(file) = variable(CRASHES_FILE) {
            // One write for each line, because other test processes append to the same file.
            let file = OpenOptions::new().append(true).create(true).open(file);
            let written = file.and_then(|mut file| file.write_all(format!("{name}\n").as_bytes()));
            written.unwrap_or_else(|error| panic!("{CRASHES_FILE}: {error}"));
        }
    }

    /// Waits until the server answers. Returns false if it has ended.
    async fn becomes_ready(&self) -> Result<bool> {
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            // The data directory shows that no other server is listening on the port.
            let probe = timeout(Duration::from_secs(5), self.program.probe(&self.url)).await;
            match probe {
                Ok(Ok(probe)) if probe.data_directory.starts_with(self.directory()) => {
                    return Ok(true);
                }
                _ if self.supervisor.has_ended() => return Ok(false),
                answer => ensure!(
                    Instant::now() < deadline,
                    "not ready after {READY_WITHIN:?}: {answer:?}\n{}",
                    self.supervisor.log_tail()
                ),
            }
            sleep(POLL_INTERVAL).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::{CRASHES_FILE, PrivateServer, Program, Supervisor, free_port, variable};
    use crate::{redis, supervisor};
    use stocklock_testkit::alone::alone;

    /// A Redis that ends when it is started for the first time.
    fn crashing_redis() -> PrivateServer {
        let (program, port) = (Program::Redis, free_port());
        let directory = supervisor::create_directory("crash").unwrap();
        let redis = redis::command(directory.path(), port, None).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "mkdir crashed && exit 1; exec \"$@\"", "sh"]);
        command.arg(redis.get_program()).args(redis.get_args());
        PrivateServer {
            program,
            supervisor: Supervisor::new(directory, "KILL", Some(&command)).unwrap(),
            port,
            url: program.url(port),
        }
    }

    #[test]
    fn crash_while_a_server_restarts_is_counted() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let test = "private_server::tests::crash_while_a_server_restarts_is_counted";
        alone(test, &[(CRASHES_FILE, file.path())], || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(async { crashing_redis().restart().await });
            let crashes = fs::read_to_string(variable(CRASHES_FILE).unwrap());
            assert_eq!(crashes.unwrap(), "redis\n");
        });
    }
}
