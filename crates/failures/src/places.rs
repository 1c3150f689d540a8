//! The servers of the stories, and an empty database, prefix or root for each variant.
//!
//! A server without a number may be one that the caller names. `redis-1` is always a private server,
//! empty, and only for one variant, because stories kill such servers.

use std::any::Any;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use stocklock_servers::{
    Backend, Nginx, PrivateServer, Program, Settings, TestDatabase, TestZooKeeper,
};
use tempfile::TempDir;
use tokio::sync::Mutex;

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
pub(crate) struct Ground {
    pub(crate) address: Address,
    /// A server that the variant may kill.
    pub(crate) server: Option<Arc<PrivateServer>>,
    _remains: Remains,
}

/// What must live as long as the variant.
type Remains = Option<Box<dyn Any + Send + Sync>>;

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
    ) -> Result<Ground> {
        let kind = Kind::of(server)?;
        let ground = |url: &str, remains: Remains| Ground {
            address: Address {
                kind,
                url: url.to_owned(),
                prefix: prefix.to_owned(),
                session: LONG_SESSION,
            },
            server: None,
            _remains: remains,
        };
        let (program, named) = match kind {
            Kind::Sqlite => {
                let directory = TempDir::with_prefix("stocklock-failures-")?;
                let file = directory.path().join("stock.db");
                let url = format!("sqlite://{}?mode=rwc", file.display());
                return Ok(ground(&url, Some(Box::new(directory))));
            }
            Kind::Nginx => {
                let nginx = Nginx::before(upstreams).await?;
                let address = nginx.address().to_owned();
                return Ok(ground(&address, Some(Box::new(nginx))));
            }
            Kind::Mariadb => (Program::MariaDb, &self.places.mariadb),
            Kind::Postgres => (Program::Postgres, &self.places.postgres),
            Kind::Redis => (Program::Redis, &self.places.redis),
            Kind::Zookeeper => (Program::ZooKeeper, &self.places.zookeeper),
        };
        if server.contains('-') {
            // It is empty, and what a story writes ends with it.
            let started = start(program, &replication(server, story)).await?;
            return Ok(Ground {
                server: Some(Arc::clone(&started)),
                ..ground(started.url(), None)
            });
        }
        let url = match named {
            Some(url) => url.clone(),
            None => self.private(program).await?,
        };
        // What is on a private server ends with it.
        let stays = named.is_some();
        let backend = match program {
            Program::MariaDb => Backend::Mysql,
            Program::Postgres => Backend::Postgres,
            Program::ZooKeeper => {
                let root = TestZooKeeper::create(&url, stays).await?;
                return Ok(ground(&root.connect.clone(), Some(Box::new(root))));
            }
            Program::Redis => return Ok(ground(&url, None)),
        };
        let database = TestDatabase::create(backend, &url, stays).await?;
        Ok(ground(&database.url.clone(), Some(Box::new(database))))
    }

    /// The URL of the private server of all stories, which is started if it does not run.
    async fn private(&self, program: Program) -> Result<String> {
        let mut private = self.private.lock().await;
        let started = match private.entry(program) {
            Entry::Occupied(running) => running.into_mut(),
            Entry::Vacant(place) => place.insert(start(program, &[]).await?),
        };
        Ok(started.url().to_owned())
    }

    /// Deletes the keys of a story from a Redis that the caller has named.
    pub(crate) async fn remove_keys(&self, ground: &Ground, story: &Story) -> Result<()> {
        if self.places.redis.is_none() {
            return Ok(());
        }
        let commands = story.steps().map(|step| step.command);
        let commands = commands.chain(story.setup.clone());
        let keys: Vec<_> = commands
            .flat_map(crate::redis_words::words)
            .filter(|word| word.starts_with('~'))
            .collect();
        if keys.is_empty() {
            return Ok(());
        }
        let mut session = Session::open(&ground.address).await?;
        let deleted = session.run(&format!("DEL {}", keys.join(" "))).await;
        let is_count = deleted.parse::<u64>().is_ok();
        ensure!(is_count, "cannot delete its keys: {deleted}");
        Ok(())
    }
}

/// The arguments with which a server can replicate another one of its story, or be replicated.
fn replication(server: &str, story: &Story) -> Vec<String> {
    if server.starts_with("mariadb-") && story.servers.contains(&"mariadb-2") {
        let id = server.trim_start_matches("mariadb-");
        return vec!["--log-bin=binlog".to_owned(), format!("--server-id={id}")];
    }
    Vec::new()
}

async fn start(program: Program, arguments: &[String]) -> Result<Arc<PrivateServer>> {
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let started = PrivateServer::launch(program, &Settings::Test, &arguments).await?;
    Ok(Arc::new(started))
}
