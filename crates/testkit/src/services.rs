//! Real servers for the tests, started once for the run, and places of a test's own on them.
//!
//! A server is the one that `TEST_MYSQL_URL`, `TEST_POSTGRES_URL`, `TEST_REDIS_URL` or
//! `TEST_ZOOKEEPER_CONNECT` names, or else one that is started here, on loopback, in a temporary
//! directory, and that ends with this process. Which it is stands on stderr. Nothing is skipped: a
//! missing program is a panic that says what to run.

use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::Result;
use url::Url;

mod engine;
mod private_server;
mod program;
mod redis;
mod shared;
pub mod supervisor;
mod zookeeper;

use engine::Engine;
pub use private_server::PrivateServer;
pub use program::find;
pub use redis::{TestRedis, fresh_redis};
use shared::{Cell, shared};
use supervisor::{Supervisor, create_directory};
pub use zookeeper::{TestZooKeeper, fresh_zookeeper};

/// How long the removal of a test's place may wait for those who still use it.
const REMOVED_WITHIN: Duration = Duration::from_secs(10);

/// A database that the service can store its stock in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// SQLite, a file.
    Sqlite,
    /// MariaDB or MySQL.
    Mysql,
    /// PostgreSQL.
    Postgres,
}

impl Backend {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Sqlite, Self::Mysql, Self::Postgres];
    /// Those that are a server behind a connection, which can be killed or cut.
    pub const SERVERS: [Self; 2] = [Self::Mysql, Self::Postgres];

    /// The message in which the driver sends `COMMIT`, for the triggers of
    /// [`super::proxy::Proxy`]. The bare word would also be found in `READ COMMITTED`.
    pub fn commit_message(self) -> &'static [u8] {
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
pub struct Server {
    engine: Engine,
    /// The URL of a database that is always there.
    url: String,
    /// Whether it stays when the tests have ended, and so must be left as it was.
    stays: bool,
}

impl Server {
    /// The server behind a URL that allows to create databases; it stays when the tests end.
    pub fn behind(backend: Backend, url: &str) -> Self {
        Self {
            engine: backend.engine().expect("SQLite has no server"),
            url: url.to_owned(),
            stays: true,
        }
    }

    /// A server that ends with this process.
    fn ours(engine: Engine, url: &str) -> Self {
        Self {
            engine,
            url: url.to_owned(),
            stays: false,
        }
    }

    async fn shared(cell: &'static Cell, engine: Engine) -> Self {
        let shared = shared(cell, engine).await;
        Self {
            engine,
            url: shared.url.clone(),
            stays: shared.stays(),
        }
    }

    /// The URL of one of its databases.
    pub fn url(&self, database: &str) -> String {
        let mut url = Url::parse(&self.url).expect("the server's URL is one");
        url.set_path(database);
        url.into()
    }

    /// Creates an empty database for one test.
    ///
    /// # Panics
    /// When the server refuses.
    pub async fn fresh_database(&self) -> TestDatabase {
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

    async fn remove_database(&self, name: &str) -> Result<()> {
        let statement = self.engine.drop_database(name);
        Ok(self.engine.execute(&self.url, statement).await?)
    }
}

/// The MariaDB (or MySQL) that the tests share.
///
/// # Panics
/// When there is none, and none can be started.
pub async fn mysql() -> Server {
    static SHARED: Cell = Cell::const_new();
    Server::shared(&SHARED, Engine::MariaDb).await
}

/// The PostgreSQL that the tests share.
///
/// # Panics
/// When there is none, and none can be started.
pub async fn postgres() -> Server {
    static SHARED: Cell = Cell::const_new();
    Server::shared(&SHARED, Engine::PostgreSql).await
}

/// A database of one test's own, empty at first; it goes when this is dropped.
#[derive(Debug)]
pub struct TestDatabase {
    /// Where it is, as `DATABASE_URL` would say.
    pub url: String,
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
pub async fn fresh_database(backend: Backend) -> TestDatabase {
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
            // A transaction that a test left open would keep it waiting.
            Remains::Database { server, name } => without_runtime(server.remove_database(name)),
            Remains::Nothing => Ok(()),
        };
        if let Err(error) = removed {
            eprintln!("a test's database stays behind: {error:#}");
        }
    }
}

/// Carries out what a drop has to, which is not asynchronous: on a thread with a runtime of its own.
fn without_runtime(removal: impl Future<Output = Result<()>> + Send) -> Result<()> {
    let carry_out = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(async { tokio::time::timeout(REMOVED_WITHIN, removal).await? })
    };
    std::thread::scope(|scope| {
        let removal = scope.spawn(carry_out);
        removal.join().expect("the removal does not panic")
    })
}

/// Reads a variable of the environment; one that is empty counts as unset.
#[expect(
    clippy::disallowed_methods,
    reason = "the tests are told by the environment which servers to use"
)]
fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
