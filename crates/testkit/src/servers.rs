//! Real servers for the tests, and one empty database for each test.
//!
//! `TEST_MYSQL_URL`, `TEST_POSTGRES_URL`, `TEST_REDIS_URL` and `TEST_ZOOKEEPER_CONNECT` name servers
//! that the tests share. For each that is unset, the first test that needs the server starts a private
//! one for the whole process. A line on standard error says which server is used. A missing program is
//! an error that says what to install; nothing is skipped.

use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio::time::Instant;
use url::Url;

use crate::run::{announce, unique_name, variable};

mod private_server;
mod program;
mod redis;
mod sql;
mod supervisor;
mod zookeeper;

pub use private_server::PrivateServer;
pub use program::{Program, Settings, find};
use supervisor::{Supervisor, create_directory};

/// Upper bound on the removal of a test's database, which waits for open transactions.
const REMOVED_WITHIN: Duration = Duration::from_secs(10);

/// A kind of SQL database.
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
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Sqlite, Self::Mysql, Self::Postgres];
    /// The kinds with a server, which can be killed and whose connections can be cut.
    pub const SERVERS: [Self; 2] = [Self::Mysql, Self::Postgres];

    /// The message in which the driver sends `COMMIT`, for a trigger of [`crate::proxy::Proxy`]. The
    /// word alone also occurs in `READ COMMITTED`.
    pub fn commit_message(self) -> &'static [u8] {
        match self {
            Self::Sqlite => panic!("SQLite has no connection"),
            Self::Mysql => b"\x07\0\0\0\x03COMMIT",
            Self::Postgres => b"Q\0\0\0\x0bCOMMIT\0",
        }
    }

    /// The program of its server.
    fn program(self) -> Program {
        match self {
            Self::Sqlite => panic!("SQLite has no server"),
            Self::Mysql => Program::MariaDb,
            Self::Postgres => Program::Postgres,
        }
    }
}

/// Sends `question` to the server at `address` (`host:port`), and returns everything that it answers
/// until it closes the connection: ZooKeeper after a four-letter word, Redis after `QUIT`.
pub async fn ask(address: &str, question: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(question.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// The same URL with the name of another database.
fn with_path(url: &str, database: &str) -> String {
    let mut url = Url::parse(url).expect("a server that answered has a valid URL");
    url.set_path(database);
    url.into()
}

/// A server that the tests of this process share.
#[derive(Debug)]
struct Shared {
    url: String,
    /// A private server, which ends when this is dropped; `None` if a variable names the server.
    private: Option<PrivateServer>,
}

impl Shared {
    /// The server of a program. It is found or started at the first call.
    ///
    /// # Panics
    /// If there is none and none can be started. Later calls panic at once, with the same message.
    async fn server(program: Program) -> &'static Self {
        type Cell = OnceCell<Result<Shared, String>>;
        static CELLS: [Cell; 4] = [const { Cell::const_new() }; 4];
        let found = CELLS[program as usize].get_or_init(async || {
            let found = Self::find_or_start(program).await;
            found.map_err(|error| format!("no {} for the tests: {error:#}", program.name()))
        });
        let found = found.await.as_ref();
        found.unwrap_or_else(|message| panic!("{message}"))
    }

    async fn find_or_start(program: Program) -> Result<Self> {
        let begin = Instant::now();
        let (found, origin) = if let Some(url) = variable(program.variable()) {
            let origin = format!("the server that {} names", program.variable());
            (Self { url, private: None }, origin)
        } else {
            let private = PrivateServer::launch(program, &Settings::Test, &[]).await?;
            let url = private.url().to_owned();
            let private = Some(private);
            let origin = format!("a private server, ready in {:.1?}", begin.elapsed());
            (Self { url, private }, origin)
        };
        let probe = program.probe(&found.url).await;
        let version = probe
            .with_context(|| format!("cannot use {origin}"))?
            .version;
        announce(format_args!(
            "the tests use {} {version}: {origin}",
            program.name()
        ));
        Ok(found)
    }

    /// Whether the server outlives the tests, which must then remove what they created.
    fn stays(&self) -> bool {
        self.private.is_none()
    }
}

/// What must be removed after a test.
#[derive(Debug)]
enum Remains {
    /// Nothing: the server is private and removes its data when it ends.
    Nothing,
    /// The directory of a SQLite file.
    Directory(PathBuf),
    /// A database on the server of the URL.
    Database {
        program: Program,
        server: String,
        name: String,
    },
    /// A claimed database of the Redis of the URL.
    RedisDatabase { server: String, number: u32 },
    /// A node of the ZooKeeper of the connect string.
    ZooKeeperNode { server: String, path: String },
}

impl Remains {
    async fn remove(&self) -> Result<()> {
        match self {
            Self::Nothing => Ok(()),
            Self::Directory(directory) => Ok(std::fs::remove_dir_all(directory)?),
            Self::Database {
                program,
                server,
                name,
            } => sql::drop_database(*program, server, name).await,
            Self::RedisDatabase { server, number } => redis::empty(server, *number).await,
            Self::ZooKeeperNode { server, path } => zookeeper::remove(server, path).await,
        }
    }
}

impl Drop for Remains {
    fn drop(&mut self) {
        if matches!(self, Self::Nothing) {
            return;
        }
        // Drop is not async, and may run inside a runtime: use a thread with its own runtime.
        let remove = || {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?
                .block_on(async { tokio::time::timeout(REMOVED_WITHIN, self.remove()).await? })
        };
        let removed = std::thread::scope(|scope| scope.spawn(remove).join());
        match removed {
            Ok(Ok(())) => {}
            failure => announce(format_args!("cannot remove {self:?}: {failure:?}")),
        }
    }
}

/// An empty database for one test. Dropping this removes it.
#[derive(Debug)]
pub struct TestDatabase {
    /// Its URL, as in `DATABASE_URL`.
    pub url: String,
    _remains: Remains,
}

impl TestDatabase {
    /// Creates an empty database on the server of a URL. It is removed on drop if the server `stays`.
    pub async fn create(backend: Backend, server: &str, stays: bool) -> Result<Self> {
        let (program, name) = (backend.program(), unique_name());
        sql::execute(server, format!("CREATE DATABASE {name}")).await?;
        let server = server.to_owned();
        Ok(Self {
            url: with_path(&server, &name),
            _remains: if stays {
                Remains::Database {
                    program,
                    server,
                    name,
                }
            } else {
                Remains::Nothing
            },
        })
    }

    fn sqlite() -> Result<Self> {
        static FILES: LazyLock<Supervisor> = LazyLock::new(|| {
            create_directory("sqlite")
                .and_then(|directory| Supervisor::new(directory, "KILL", None))
                .unwrap_or_else(|error| panic!("no directory for SQLite: {error:#}"))
        });
        let directory = FILES.directory().join(unique_name());
        std::fs::create_dir(&directory)?;
        // An empty file is an empty database, even for a client that does not create files.
        let file = directory.join("stocklock.db");
        std::fs::File::create_new(&file)?;
        Ok(Self {
            url: format!("sqlite://{}", file.display()),
            _remains: Remains::Directory(directory),
        })
    }
}

/// Creates an empty database for one test.
///
/// # Panics
/// If there is no server and none can be started.
pub async fn fresh_database(backend: Backend) -> TestDatabase {
    let created = if backend == Backend::Sqlite {
        TestDatabase::sqlite()
    } else {
        let server = Shared::server(backend.program()).await;
        TestDatabase::create(backend, &server.url, server.stays()).await
    };
    created.unwrap_or_else(|error| panic!("no {backend:?} database: {error:#}"))
}

/// An empty Redis database for one test. Dropping this empties it.
///
/// Other tests use the same server. A test that needs `FLUSHALL`, `SCRIPT FLUSH`, channels or settings
/// needs a [`PrivateServer::redis`].
#[derive(Debug)]
pub struct TestRedis {
    /// Its URL, as in `REDIS_URL`.
    pub url: String,
    _remains: Remains,
}

/// Reserves an empty Redis database for one test.
///
/// # Panics
/// If there is no server and none can be started.
pub async fn fresh_redis() -> TestRedis {
    let server = Shared::server(Program::Redis).await.url.clone();
    let number = redis::claim(&server).await;
    let number = number.unwrap_or_else(|error| panic!("no Redis database: {error:#}"));
    TestRedis {
        url: with_path(&server, &number.to_string()),
        _remains: Remains::RedisDatabase { server, number },
    }
}

/// An empty ZooKeeper root for one test. Dropping this removes it.
#[derive(Debug)]
pub struct TestZooKeeper {
    /// Its connect string, as in `ZOOKEEPER_CONNECT`: `host:port/root`.
    pub connect: String,
    _remains: Remains,
}

impl TestZooKeeper {
    /// Creates an empty root on the server of a connect string. It is removed on drop if the server
    /// `stays`.
    pub async fn create(server: &str, stays: bool) -> Result<Self> {
        let path = format!("/{}", unique_name());
        zookeeper::create(server, &path).await?;
        let connect = format!("{server}{path}");
        let server = server.to_owned();
        Ok(Self {
            connect,
            _remains: if stays {
                Remains::ZooKeeperNode { server, path }
            } else {
                Remains::Nothing
            },
        })
    }
}

/// Creates an empty ZooKeeper root for one test.
///
/// # Panics
/// If there is no server and none can be started.
pub async fn fresh_zookeeper() -> TestZooKeeper {
    let server = Shared::server(Program::ZooKeeper).await;
    let created = TestZooKeeper::create(&server.url, server.stays()).await;
    created.unwrap_or_else(|error| panic!("no ZooKeeper root: {error:#}"))
}
