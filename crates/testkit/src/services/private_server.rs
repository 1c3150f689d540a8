//! A server process of our own, which a test may kill and start again.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use tokio::time::{Instant, sleep, timeout};

use super::program::Program;
use super::redis::Redis;
use super::supervisor::Supervisor;
use super::zookeeper::ZooKeeper;
use super::{Backend, Server};
use crate::ports::free_port;
use crate::signals;

/// How long a server may take until it answers; it takes well under a second on an idle machine.
const READY_WITHIN: Duration = Duration::from_mins(1);
/// How often a server that was killed is started, if it ends by itself.
const STARTS: usize = 3;
/// How often it is asked meanwhile.
const ASK_EVERY: Duration = Duration::from_millis(10);
/// The database that [`PrivateServer::url`] names.
const DATABASE: &str = "stocklock";

/// A server of one test's own; it ends, and its data go, when this is dropped.
#[derive(Debug)]
pub struct PrivateServer {
    program: Box<dyn Program>,
    supervisor: Supervisor,
    url: String,
}

impl PrivateServer {
    /// Starts a database server with one empty database.
    ///
    /// # Panics
    /// When it does not start; [`Backend::Sqlite`] has no server.
    pub async fn start(backend: Backend) -> Self {
        let engine = backend.engine().expect("SQLite has no server");
        let mut started = Self::of(engine).await;
        let server = Server::ours(engine, &started.url);
        let created = server.create_database(DATABASE).await;
        created.expect("a database can be created");
        started.url = server.url(DATABASE);
        started
    }

    /// Starts an empty Redis that keeps nothing on disk, unless these arguments of `redis-server`
    /// say otherwise: they come after our own.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn redis(arguments: &[&str]) -> Self {
        Self::of(Redis::with(arguments)).await
    }

    /// Starts an empty ZooKeeper.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn zookeeper() -> Self {
        Self::of(ZooKeeper).await
    }

    async fn of(program: impl Program + 'static) -> Self {
        let name = program.name();
        let started = Self::try_start(program).await;
        started.unwrap_or_else(|error| panic!("a private {name}: {error:#}"))
    }

    pub(super) async fn try_start(program: impl Program + 'static) -> Result<Self> {
        let mut program: Box<dyn Program> = Box::new(program);
        // Between our looking at a port and the server's binding it another program may take it.
        for _ in 0..3 {
            let port = free_port();
            let mut started = Self {
                supervisor: program.prepare(port).await?,
                url: program.url(port),
                program,
            };
            started.supervisor.start()?;
            if started.becomes_ready().await? {
                return Ok(started);
            }
            if !started.supervisor.log_tail().contains("in use") {
                bail!("it ended at once:\n{}", started.supervisor.log_tail());
            }
            program = started.program;
        }
        bail!("three ports in a row were taken by other programs")
    }

    /// Where it is: the URL of a database server's one database, of Redis' first, or a connect
    /// string for ZooKeeper.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The process that clients are connected to, for signals of a test's own.
    pub fn process(&self) -> rustix::process::Pid {
        self.supervisor
            .server()
            .and_then(|id| rustix::process::Pid::from_raw(id.cast_signed()))
            .expect("the server has been killed and not restarted")
    }

    /// Stops that process as it is (`SIGSTOP`), and returns when nothing of it runs any more. A
    /// PostgreSQL has a process of its own for each connection, and those go on.
    pub async fn stop(&self) {
        signals::stop(self.process()).await;
    }

    /// Lets it go on after [`Self::stop`] (`SIGCONT`).
    pub fn resume(&self) {
        signals::resume(self.process());
    }

    /// Kills the server with all of its processes, and returns once they are dead.
    pub fn kill9(&mut self) {
        self.supervisor
            .kill9()
            .expect("the supervisor takes orders");
    }

    /// Starts it again after [`Self::kill9`], on the same port and data; returns when it answers. As
    /// what supervises servers does, it starts once more what breaks while it recovers: seen of
    /// MariaDB 10.11.19, once in hundreds of kills.
    pub async fn restart(&mut self) {
        for _ in 0..STARTS {
            self.supervisor
                .start()
                .expect("the supervisor takes orders");
            let ready = self.becomes_ready().await;
            if ready.unwrap_or_else(|error| panic!("{error:#}")) {
                return;
            }
            eprintln!("it ended as it started:\n{}", self.supervisor.log_tail());
            self.kill9();
        }
        panic!("it ended {STARTS} times as it started");
    }

    /// Waits until the server answers; `false` if it ended instead.
    async fn becomes_ready(&self) -> Result<bool> {
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            // Asked for its data directory, since another server could be behind the port.
            let answer = timeout(
                Duration::from_secs(5),
                self.program.data_directory(&self.url),
            );
            match answer.await {
                Ok(Ok(data)) if data.starts_with(self.supervisor.directory()) => {
                    return Ok(true);
                }
                _ if self.supervisor.has_ended() => return Ok(false),
                not_yet => ensure!(
                    Instant::now() < deadline,
                    "not ready after {READY_WITHIN:?}: {not_yet:?}\n{}",
                    self.supervisor.log_tail()
                ),
            }
            sleep(ASK_EVERY).await;
        }
    }
}
