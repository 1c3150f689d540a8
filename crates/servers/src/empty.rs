//! An empty database for each test or story, removed when it is dropped.

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::Result;
use tokio::time::timeout;

use crate::environment::{announce, unique_name};
use crate::supervisor::{Supervisor, create_directory};
use crate::{Backend, Program, redis, sql, with_path, zookeeper};

/// Upper bound on the removal of a database, which waits for open transactions.
const REMOVED_WITHIN: Duration = Duration::from_secs(10);

/// What must be removed after a test.
#[derive(Debug)]
enum Remains {
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
            Self::Directory(directory) => Ok(fs::remove_dir_all(directory)?),
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
        // Drop is not async, and may run inside a runtime: use a thread with its own runtime.
        let remove = || {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?
                .block_on(async { timeout(REMOVED_WITHIN, self.remove()).await? })
        };
        let removed = std::thread::scope(|scope| scope.spawn(remove).join());
        match removed {
            Ok(Ok(())) => {}
            failure => announce(format_args!("cannot remove a test's database: {failure:?}")),
        }
    }
}

/// An empty database for one test. Dropping this removes it.
#[derive(Debug)]
pub struct TestDatabase {
    /// Its URL, as in `DATABASE_URL`.
    pub url: String,
    _remains: Option<Remains>,
}

impl TestDatabase {
    /// Creates an empty database on the server of a URL. It is removed on drop if the server `stays`.
    pub async fn create(backend: Backend, server: &str, stays: bool) -> Result<Self> {
        let (program, name) = (backend.program(), unique_name());
        sql::execute(server, format!("CREATE DATABASE {name}")).await?;
        let server = server.to_owned();
        Ok(Self {
            url: with_path(&server, &name),
            // Not `then_some`, which would create the value, and so remove the database, in any case.
            _remains: if stays {
                Some(Remains::Database {
                    program,
                    server,
                    name,
                })
            } else {
                None
            },
        })
    }

    /// Creates an empty file of SQLite.
    pub fn sqlite() -> Result<Self> {
        static FILES: LazyLock<Supervisor> = LazyLock::new(|| {
            create_directory("sqlite")
                .and_then(|directory| Supervisor::new(directory, "KILL", None))
                .unwrap_or_else(|error| panic!("no directory for SQLite: {error:#}"))
        });
        let directory = FILES.directory().join(unique_name());
        fs::create_dir(&directory)?;
        // An empty file is an empty database, even for a client that does not create files.
        let file = directory.join("stocklock.db");
        fs::File::create_new(&file)?;
        Ok(Self {
            url: format!("sqlite://{}", file.display()),
            _remains: Some(Remains::Directory(directory)),
        })
    }
}

/// An empty Redis database for one test. Dropping this empties it.
///
/// Other tests use the same server. A test that needs `FLUSHALL`, `SCRIPT FLUSH`, channels or settings
/// needs a [`crate::PrivateServer::redis`].
#[derive(Debug)]
pub struct TestRedis {
    /// Its URL, as in `REDIS_URL`.
    pub url: String,
    _claim: Remains,
}

impl TestRedis {
    /// Reserves an empty database on the server of a URL.
    pub async fn claim(server: &str) -> Result<Self> {
        let (server, number) = (server.to_owned(), redis::claim(server).await?);
        Ok(Self {
            url: with_path(&server, &number.to_string()),
            _claim: Remains::RedisDatabase { server, number },
        })
    }
}

/// An empty ZooKeeper root for one test. Dropping this removes it.
#[derive(Debug)]
pub struct TestZooKeeper {
    /// Its connect string, as in `ZOOKEEPER_CONNECT`: `host:port/root`.
    pub connect: String,
    _remains: Option<Remains>,
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
                Some(Remains::ZooKeeperNode { server, path })
            } else {
                None
            },
        })
    }
}
