//! The servers of the stories, and an empty database, prefix or root for each variant.
//!
//! A server without a number may be one that the caller names. `redis-1` is always a private server,
//! empty, and only for one variant, because stories kill such servers.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use stocklock_servers::{
    Backend, Nginx, PrivateServer, Program, Settings, TestDatabase, TestZooKeeper,
};
use tempfile::TempDir;
use tokio::sync::Mutex;

use crate::Failure;
use crate::session::{Address, Kind, Session};
use crate::story::Story;

/// The timeout of a session with `ZooKeeper` that must not end while the machine is busy.
const LONG_SESSION: Duration = Duration::from_secs(30);
/// The timeout of a session that ends when its process is stopped.
pub(crate) const SHORT_SESSION: Duration = Duration::from_millis(600);

/// The servers that the caller names. A story starts a private one for each that is missing.
#[derive(Debug, Clone, Default)]
pub struct Places {
    /// The URL of a database of MariaDB, whose user may create databases.
    pub mariadb: Option<String>,
    /// The URL of a database of PostgreSQL, whose user may create databases.
    pub postgres: Option<String>,
    /// The URL of a Redis.
    pub redis: Option<String>,
    /// The connect string of a `ZooKeeper`, without a root.
    pub zookeeper: Option<String>,
    /// This program, for actors in processes of their own.
    pub program: PathBuf,
}

/// What a variant has on a server. Dropping this removes it.
#[derive(Debug)]
pub(crate) struct Ground {
    pub(crate) address: Address,
    /// A server that the variant may kill.
    pub(crate) server: Option<Arc<PrivateServer>>,
    _remains: Remains,
}

/// What must live as long as the variant.
#[derive(Debug)]
enum Remains {
    Directory { _directory: TempDir },
    Database { _database: TestDatabase },
    Root { _root: TestZooKeeper },
    Proxy { _nginx: Nginx },
    Nothing,
}

/// The servers that run.
#[derive(Debug)]
pub(crate) struct Servers {
    pub(crate) places: Places,
    private: Mutex<HashMap<Program, Arc<PrivateServer>>>,
}

impl Servers {
    pub(crate) fn new(places: Places) -> Self {
        Self {
            places,
            private: Mutex::default(),
        }
    }

    /// An empty place on a server. In Redis, that is the keys with this prefix. A new nginx sends
    /// requests to `upstreams`.
    pub(crate) async fn ground(
        &self,
        server: &str,
        story: &Story,
        prefix: &str,
        upstreams: &[String],
    ) -> Result<Ground, Failure> {
        let failed = |error: Failure| error.at(server);
        let kind = Kind::of(server)?;
        let (program, named) = match kind {
            Kind::Sqlite => return sqlite().map_err(failed),
            Kind::Nginx => return nginx(upstreams).await.map_err(failed),
            Kind::Mariadb => (Program::MariaDb, &self.places.mariadb),
            Kind::Postgres => (Program::Postgres, &self.places.postgres),
            Kind::Redis => (Program::Redis, &self.places.redis),
            Kind::Zookeeper => (Program::ZooKeeper, &self.places.zookeeper),
        };
        let (url, private) = if server.contains('-') {
            let started = start(program, &replication(server, story)).await;
            let started = started.map_err(failed)?;
            (started.url().to_owned(), Some(started))
        } else if let Some(url) = named {
            (url.clone(), None)
        } else {
            let mut private = self.private.lock().await;
            let started = match private.get(&program) {
                Some(started) => Arc::clone(started),
                None => start(program, &[]).await.map_err(failed)?,
            };
            private.insert(program, Arc::clone(&started));
            (started.url().to_owned(), None)
        };
        // What is on a private server ends with it.
        let stays = named.is_some();
        let mut address = Address {
            kind,
            url,
            prefix: prefix.to_owned(),
            session: LONG_SESSION,
        };
        let remains = match private {
            // It is empty, and what a story writes ends with it.
            Some(_) => Ok(Remains::Nothing),
            None => place(&mut address, stays).await,
        };
        Ok(Ground {
            _remains: remains.map_err(|error| failed(Failure::new(error)))?,
            address,
            server: private,
        })
    }
}

impl Servers {
    /// Deletes the keys of a story from a Redis that the caller has named.
    pub(crate) async fn remove_keys(&self, ground: &Ground, story: &Story) -> Result<(), Failure> {
        if self.places.redis.is_none() {
            return Ok(());
        }
        let steps = story.naive.iter().chain(&story.right);
        let commands = steps.map(|step| step.command).chain(story.setup.clone());
        let keys: Vec<_> = commands
            .flat_map(crate::redis_words::words)
            .filter(|word| word.starts_with('~'))
            .collect();
        if keys.is_empty() {
            return Ok(());
        }
        let mut session = Session::open(&ground.address).await?;
        let deleted = session.run(&format!("DEL {}", keys.join(" "))).await;
        match deleted.parse::<u64>() {
            Ok(_) => Ok(()),
            Err(_) => Err(Failure::new(format!("cannot delete its keys: {deleted}"))),
        }
    }
}

/// Creates an empty part of a server, and makes the address point to it.
async fn place(address: &mut Address, stays: bool) -> Result<Remains, String> {
    let failed = |error| format!("{error:#}");
    let backend = match address.kind {
        Kind::Sqlite | Kind::Redis | Kind::Nginx => return Ok(Remains::Nothing),
        Kind::Mariadb => Backend::Mysql,
        Kind::Postgres => Backend::Postgres,
        Kind::Zookeeper => {
            let root = TestZooKeeper::create(&address.url, stays).await;
            let root = root.map_err(failed)?;
            address.url.clone_from(&root.connect);
            return Ok(Remains::Root { _root: root });
        }
    };
    let database = TestDatabase::create(backend, &address.url, stays).await;
    let database = database.map_err(failed)?;
    address.url.clone_from(&database.url);
    Ok(Remains::Database {
        _database: database,
    })
}

/// The arguments with which a server can replicate another one of its story, or be replicated.
fn replication(server: &str, story: &Story) -> Vec<String> {
    if server.starts_with("mariadb-") && story.servers.contains(&"mariadb-2") {
        let id = server.trim_start_matches("mariadb-");
        return vec!["--log-bin=binlog".to_owned(), format!("--server-id={id}")];
    }
    Vec::new()
}

async fn start(program: Program, arguments: &[String]) -> Result<Arc<PrivateServer>, Failure> {
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let started = PrivateServer::launch(program, &Settings::Test, &arguments).await;
    let started = started.map_err(|error| Failure::new(format!("{error:#}")))?;
    Ok(Arc::new(started))
}

async fn nginx(upstreams: &[String]) -> Result<Ground, Failure> {
    let nginx = Nginx::before(upstreams).await;
    let nginx = nginx.map_err(|error| Failure::new(format!("{error:#}")))?;
    Ok(Ground {
        address: Address {
            kind: Kind::Nginx,
            url: nginx.address().to_owned(),
            prefix: String::new(),
            session: LONG_SESSION,
        },
        server: None,
        _remains: Remains::Proxy { _nginx: nginx },
    })
}

fn sqlite() -> Result<Ground, Failure> {
    let directory = TempDir::with_prefix("stocklock-failures-");
    let directory = directory.map_err(|error| Failure::new(error.to_string()))?;
    let file = directory.path().join("stock.db");
    Ok(Ground {
        address: Address {
            kind: Kind::Sqlite,
            url: format!("sqlite://{}?mode=rwc", file.display()),
            prefix: String::new(),
            session: LONG_SESSION,
        },
        server: None,
        _remains: Remains::Directory {
            _directory: directory,
        },
    })
}
