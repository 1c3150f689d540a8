//! Real servers for the tests, started once for the run, and databases of a test's own on them.
//!
//! A server is the one that `TEST_MYSQL_URL` or `TEST_POSTGRES_URL` names, or else one that is
//! started here, on loopback, in a temporary directory, and that ends with this process. Which it
//! is stands on stderr. Nothing is skipped: a missing program is a panic that says what to run.

use std::io::Write;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Context, Result};
use reqwest::Url;
use tokio::sync::OnceCell;
use tokio::time::Instant;

mod engine;
mod private_server;
mod supervisor;

use engine::Engine;
pub(crate) use private_server::PrivateServer;
use supervisor::{Supervisor, create_directory};

/// How long the removal of a database may wait for those who still use it.
const REMOVED_WITHIN: Duration = Duration::from_secs(10);

/// A database that the service can store its stock in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backend {
    Sqlite,
    Mysql,
    Postgres,
}

impl Backend {
    /// All of them.
    pub(crate) const ALL: [Self; 3] = [Self::Sqlite, Self::Mysql, Self::Postgres];
    /// Those that are a server behind a connection, which can be killed or cut.
    pub(crate) const SERVERS: [Self; 2] = [Self::Mysql, Self::Postgres];

    /// The message in which the driver sends `COMMIT`, for the triggers of
    /// [`super::proxy::Proxy`]. The bare word would also be found in `READ COMMITTED`.
    pub(crate) fn commit_message(self) -> &'static [u8] {
        match self {
            Self::Sqlite => panic!("SQLite has no connection to find a message on"),
            Self::Mysql => b"\x07\0\0\0\x03COMMIT",
            Self::Postgres => b"Q\0\0\0\x0bCOMMIT\0",
        }
    }

    fn engine(self) -> Option<Engine> {
        match self {
            Self::Sqlite => None,
            Self::Mysql => Some(Engine::MariaDb),
            Self::Postgres => Some(Engine::PostgreSql),
        }
    }
}

/// A database server, ours or somebody else's.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    engine: Engine,
    /// The URL of a database that is always there.
    url: String,
    /// Whether it stays when the tests have ended, and so must be left as it was.
    stays: bool,
}

impl Server {
    /// The server behind a URL that allows to create databases; it stays when the tests end.
    pub(crate) fn behind(backend: Backend, url: &str) -> Self {
        Self {
            engine: backend.engine().expect("SQLite has no server"),
            url: url.to_owned(),
            stays: true,
        }
    }

    /// The URL of one of its databases.
    pub(crate) fn url(&self, database: &str) -> String {
        let mut url = Url::parse(&self.url).expect("the server's URL is one");
        url.set_path(database);
        url.into()
    }

    /// Creates an empty database for one test.
    ///
    /// # Panics
    /// When the server refuses.
    pub(crate) async fn fresh_database(&self) -> TestDatabase {
        let name = random_name();
        self.create_database(&name)
            .await
            .expect("a database can be created");
        TestDatabase {
            url: self.url(&name),
            remains: if self.stays {
                Remains::Database {
                    server: self.clone(),
                    name,
                }
            } else {
                Remains::Nothing
            },
        }
    }

    async fn create_database(&self, name: &str) -> Result<(), sqlx::Error> {
        let statement = format!("CREATE DATABASE {name}");
        self.engine.execute(&self.url, statement).await
    }

    fn remove_database(&self, name: &str) -> Result<()> {
        let statement = self.engine.drop_database(name);
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(async {
                // A transaction that a test left open would keep it waiting.
                let removal = self.engine.execute(&self.url, statement);
                Ok(tokio::time::timeout(REMOVED_WITHIN, removal).await??)
            })
    }
}

/// The MariaDB (or MySQL) that the tests share.
///
/// # Panics
/// When there is none, and none can be started.
pub(crate) async fn mysql() -> &'static Server {
    static SHARED: Shared = Shared::const_new();
    shared(&SHARED, Engine::MariaDb).await
}

/// The PostgreSQL that the tests share.
///
/// # Panics
/// When there is none, and none can be started.
pub(crate) async fn postgres() -> &'static Server {
    static SHARED: Shared = Shared::const_new();
    shared(&SHARED, Engine::PostgreSql).await
}

/// The failure is kept too, so that each test says why at once instead of trying again.
type Shared = OnceCell<Result<(Server, Option<PrivateServer>), String>>;

async fn shared(cell: &'static Shared, engine: Engine) -> &'static Server {
    let found = cell
        .get_or_init(|| async {
            find_or_start(engine)
                .await
                .map_err(|error| format!("{error:#}"))
        })
        .await;
    match found {
        Ok((server, _)) => server,
        Err(message) => panic!("no {} for the tests: {message}", engine.name()),
    }
}

async fn find_or_start(engine: Engine) -> Result<(Server, Option<PrivateServer>)> {
    let begin = Instant::now();
    let (server, process, origin) = if let Some(url) = environment(engine.variable()) {
        let origin = format!("the server that {} names", engine.variable());
        let server = Server {
            engine,
            url,
            stays: true,
        };
        (server, None, origin)
    } else {
        let started = PrivateServer::try_start(engine).await?;
        let origin = format!("a server of their own, up in {:.1?}", begin.elapsed());
        (started.server().clone(), Some(started), origin)
    };
    let version = engine
        .version(&server.url)
        .await
        .with_context(|| format!("{origin} cannot be used"))?;
    // Written past the test harness, which keeps what `eprintln!` says of a test that passes.
    writeln!(
        std::io::stderr(),
        "the tests use {} {version}: {origin}",
        engine.name()
    )?;
    Ok((server, process))
}

/// A database of one test's own, empty at first; it goes when this is dropped.
#[derive(Debug)]
pub(crate) struct TestDatabase {
    /// Where it is, as `DATABASE_URL` would say.
    pub(crate) url: String,
    remains: Remains,
}

/// What a [`TestDatabase`] leaves behind.
#[derive(Debug)]
enum Remains {
    /// A directory of its own.
    Directory(PathBuf),
    /// A database on a server that stays.
    Database { server: Server, name: String },
    /// A database on a server that ends, with its data, as this process does.
    Nothing,
}

/// Creates an empty database for one test.
///
/// # Panics
/// When that cannot be done.
pub(crate) async fn fresh_database(backend: Backend) -> TestDatabase {
    match backend {
        Backend::Sqlite => sqlite_database().expect("a temporary file can be created"),
        Backend::Mysql => mysql().await.fresh_database().await,
        Backend::Postgres => postgres().await.fresh_database().await,
    }
}

fn sqlite_database() -> Result<TestDatabase> {
    static HOME: LazyLock<Supervisor> = LazyLock::new(|| {
        create_directory("sqlite")
            .and_then(|directory| Supervisor::new(directory, "KILL", &[]))
            .unwrap_or_else(|error| panic!("no place for SQLite's files: {error:#}"))
    });
    let directory = HOME.directory().join(random_name());
    std::fs::create_dir(&directory)?;
    // An empty file is an empty database, also to a client that would not create one.
    let file = directory.join("stocklock.db");
    std::fs::File::create_new(&file)?;
    Ok(TestDatabase {
        url: format!("sqlite://{}", file.display()),
        remains: Remains::Directory(directory),
    })
}

fn random_name() -> String {
    format!("t_{:016x}", fastrand::u64(..))
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let removed = match &self.remains {
            Remains::Directory(directory) => {
                std::fs::remove_dir_all(directory).map_err(anyhow::Error::from)
            }
            Remains::Database { server, name } => std::thread::scope(|scope| {
                // A thread with a runtime of its own: dropping is not asynchronous.
                let removal = scope.spawn(|| server.remove_database(name));
                removal.join().expect("the removal does not panic")
            }),
            Remains::Nothing => Ok(()),
        };
        if let Err(error) = removed {
            eprintln!("a test's database stays behind: {error:#}");
        }
    }
}

/// Reads a variable of the environment; one that is empty counts as unset.
#[expect(
    clippy::disallowed_methods,
    reason = "the tests are told by the environment which servers to use"
)]
fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
