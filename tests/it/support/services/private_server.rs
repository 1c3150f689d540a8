//! A server process of our own, which a test may kill and start again.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep, timeout};

use super::engine::Engine;
use super::supervisor::{Supervisor, create_directory, run, unprivileged};
use super::{Backend, Server};
use crate::support::ports::free_port;

/// How long a server may take until it answers; it takes well under a second on an idle machine.
const READY_WITHIN: Duration = Duration::from_mins(1);
/// How often it is asked meanwhile.
const ASK_EVERY: Duration = Duration::from_millis(10);
/// The database that [`PrivateServer::url`] names.
const DATABASE: &str = "stocklock";

/// A database server of one test's own; it ends, and its data go, when this is dropped.
#[derive(Debug)]
pub(crate) struct PrivateServer {
    server: Server,
    supervisor: Supervisor,
    url: String,
}

impl PrivateServer {
    /// Starts a server with one empty database.
    ///
    /// # Panics
    /// When it does not start; [`Backend::Sqlite`] has no server.
    pub(crate) async fn start(backend: Backend) -> Self {
        let engine = backend.engine().expect("SQLite has no server");
        let started = async {
            let started = Self::try_start(engine).await?;
            started.server.create_database(DATABASE).await?;
            Ok::<_, anyhow::Error>(started)
        };
        started
            .await
            .unwrap_or_else(|error| panic!("a private {}: {error:#}", engine.name()))
    }

    pub(super) async fn try_start(engine: Engine) -> Result<Self> {
        let template = template(engine).await?;
        // Between our looking at a port and the server's binding it another program may take it.
        for _ in 0..3 {
            let port = free_port();
            let supervisor =
                tokio::task::spawn_blocking(move || prepare(engine, template, port)).await??;
            let server = Server {
                engine,
                url: engine.url(port, engine.built_in_database()),
                stays: false,
            };
            let mut started = Self {
                url: engine.url(port, DATABASE),
                server,
                supervisor,
            };
            started.supervisor.start()?;
            if started.becomes_ready().await? {
                return Ok(started);
            }
            if !started.supervisor.log_tail().contains("in use") {
                bail!("it ended at once:\n{}", started.supervisor.log_tail());
            }
        }
        bail!("three ports in a row were taken by other programs")
    }

    /// The URL of its empty database.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The process that clients are connected to, for signals of a test's own.
    pub(crate) fn process(&self) -> rustix::process::Pid {
        self.supervisor
            .server()
            .and_then(|id| rustix::process::Pid::from_raw(id.cast_signed()))
            .expect("the server has been killed and not restarted")
    }

    /// Kills the server with all of its processes, and returns once they are dead.
    pub(crate) fn kill9(&mut self) {
        self.supervisor
            .kill9()
            .expect("the supervisor takes orders");
    }

    /// Starts it again after [`Self::kill9`], on the same port and data; returns when it answers.
    pub(crate) async fn restart(&mut self) {
        self.supervisor
            .start()
            .expect("the supervisor takes orders");
        let ready = self
            .becomes_ready()
            .await
            .unwrap_or_else(|e| panic!("{e:#}"));
        assert!(ready, "it ended:\n{}", self.supervisor.log_tail());
    }

    pub(super) fn server(&self) -> &Server {
        &self.server
    }

    /// Waits until the server answers; `false` if it ended instead.
    async fn becomes_ready(&self) -> Result<bool> {
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            // Asked for its data directory, since another server could be behind the port.
            let answer = timeout(
                Duration::from_secs(5),
                self.server.engine.data_directory(&self.server.url),
            );
            match answer.await {
                Ok(Ok(directory)) if directory == self.supervisor.directory().join("data") => {
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

/// A directory with a copy of the template's data, and a supervisor that will serve it.
fn prepare(engine: Engine, template: &Path, port: u16) -> Result<Supervisor> {
    let directory = create_directory(engine.name())?;
    let command = engine.serve(&directory, port)?;
    let supervisor = Supervisor::new(directory, engine.stop_signal(), &command)?;
    let mut copy = unprivileged("cp".into());
    copy.extend(["-a".into(), "--reflink=auto".into(), "--".into()]);
    copy.push(template.join("data").into());
    copy.push(supervisor.directory().into());
    run(&copy, supervisor.directory())?;
    Ok(supervisor)
}

/// The directory whose `data` every server of this run starts with; initialised once.
async fn template(engine: Engine) -> Result<&'static Path> {
    static MARIADB: OnceCell<Result<Supervisor, String>> = OnceCell::const_new();
    static POSTGRESQL: OnceCell<Result<Supervisor, String>> = OnceCell::const_new();
    let cell = match engine {
        Engine::MariaDb => &MARIADB,
        Engine::PostgreSql => &POSTGRESQL,
    };
    let initialise = move || -> Result<Supervisor> {
        let name = format!("{}-template", engine.name());
        let owner = Supervisor::new(create_directory(&name)?, "KILL", &[])?;
        engine.initialise(owner.directory())?;
        Ok(owner)
    };
    cell.get_or_init(|| async {
        tokio::task::spawn_blocking(initialise)
            .await
            .context("the initialisation panicked")
            .flatten()
            .map_err(|error| format!("{error:#}"))
    })
    .await
    .as_ref()
    .map(Supervisor::directory)
    .map_err(|message| anyhow::anyhow!("{message}"))
}
