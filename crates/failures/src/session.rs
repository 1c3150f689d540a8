//! One raw connection of an actor, and its answers as text.
//!
//! An error of the server is an answer: `error CODE: message`. A session that loses its connection
//! answers `error connection lost`.

use std::time::Duration;

use anyhow::{Error, Result, anyhow};
use serde::de::{IntoDeserializer as _, value};
use serde::{Deserialize, Serialize};
use url::Url;

mod http;
mod redis;
mod sql;
mod zookeeper;

/// The answer of a session whose connection has ended.
pub(crate) const LOST: &str = "error connection lost";

/// The kind of a server that a story uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Sqlite,
    Mariadb,
    Postgres,
    Redis,
    Zookeeper,
    Nginx,
}

impl Kind {
    /// The kind of `redis-2` is Redis.
    pub(crate) fn of(server: &str) -> Result<Self> {
        let name = server.split('-').next().unwrap_or(server);
        let kind = Self::deserialize(name.into_deserializer());
        kind.map_err(|_: value::Error| anyhow!("there is no server `{server}`"))
    }
}

/// The server to which an actor connects, and the part of it that belongs to the story.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Address {
    pub(crate) kind: Kind,
    /// The URL of the story's database, the connect string of its root in `ZooKeeper`, or the address
    /// of nginx.
    pub(crate) url: String,
    /// What `~` stands for in Redis.
    pub(crate) prefix: String,
    /// The timeout of a session with `ZooKeeper`.
    pub(crate) session: Duration,
}

impl Address {
    /// The same through another port.
    pub(crate) fn through(&self, port: u16) -> Result<Self> {
        if self.kind == Kind::Zookeeper {
            let root = self.url.find('/').map_or("", |root| &self.url[root..]);
            return Ok(Self {
                url: format!("127.0.0.1:{port}{root}"),
                ..self.clone()
            });
        }
        let mut url = Url::parse(&self.url)?;
        url.set_host(Some("127.0.0.1"))?;
        let set = url.set_port(Some(port));
        set.map_err(|()| anyhow!("the URL can have no port"))?;
        Ok(Self {
            url: url.into(),
            ..self.clone()
        })
    }
}

/// A connection.
pub(crate) enum Session {
    Sql(sql::SqlSession),
    Redis(redis::RedisSession),
    ZooKeeper(zookeeper::ZooKeeperSession),
    Http(http::HttpSession),
}

impl Session {
    /// Connects.
    pub(crate) async fn open(address: &Address) -> Result<Self> {
        let opened = match address.kind {
            Kind::Sqlite | Kind::Mariadb | Kind::Postgres => {
                let session = sql::SqlSession::open(address).await;
                session.map(Self::Sql).map_err(Error::from)
            }
            Kind::Redis => {
                let session = redis::RedisSession::open(address).await;
                session.map(Self::Redis).map_err(Error::from)
            }
            Kind::Zookeeper => {
                let session = zookeeper::ZooKeeperSession::open(address).await;
                session.map(Self::ZooKeeper).map_err(Error::from)
            }
            Kind::Nginx => Ok(Self::Http(http::HttpSession::new(address))),
        };
        opened.map_err(|error| anyhow!("cannot connect: {error}"))
    }

    /// Sends a command, and returns the answer.
    pub(crate) async fn run(&mut self, command: &str) -> String {
        match self {
            Self::Sql(session) => session.run(command).await,
            Self::Redis(session) => session.run(command).await,
            Self::ZooKeeper(session) => session.run(command).await,
            Self::Http(session) => session.run(command).await,
        }
    }

    /// The command whose answer is the connection's id on its server; `None` if it has none.
    pub(crate) fn id_command(kind: Kind) -> Option<&'static str> {
        match kind {
            Kind::Mariadb => Some("SELECT connection_id()"),
            Kind::Postgres => Some("SELECT pg_backend_pid()"),
            Kind::Redis => Some("CLIENT ID"),
            Kind::Sqlite | Kind::Zookeeper | Kind::Nginx => None,
        }
    }

    /// Whether the server lists the connection with this id as waiting. Asked by another connection.
    pub(crate) async fn lists_as_waiting(&mut self, kind: Kind, id: &str) -> bool {
        match kind {
            Kind::Mariadb => {
                // Unlike INFORMATION_SCHEMA.INNODB_TRX, it is never a cached answer.
                let status = self.run("SHOW ENGINE INNODB STATUS").await;
                let thread = format!("thread id {id},");
                let mut transactions = status.split("---TRANSACTION");
                let waits = |text: &str| text.contains(&thread) && text.contains("LOCK WAIT");
                if transactions.any(waits) {
                    return true;
                }
                let state = format!(
                    "SELECT coalesce(max(state), '') FROM information_schema.processlist WHERE id = {id}"
                );
                self.run(&state).await == "User lock"
            }
            Kind::Postgres => {
                let query =
                    format!("SELECT wait_event_type FROM pg_stat_activity WHERE pid = {id}");
                self.run(&query).await == "Lock"
            }
            Kind::Redis => {
                let clients = self.run("CLIENT LIST").await;
                let id = format!("id={id} ");
                let mut client = clients.lines().filter(|line| line.starts_with(&id));
                client.any(|line| line.contains(" flags=b"))
            }
            Kind::Nginx => {
                // It has read one request that it has not answered, besides this one.
                let status = self.run("GET /nginx_status").await;
                status.contains("Writing: 2 ")
            }
            Kind::Sqlite | Kind::Zookeeper => false,
        }
    }
}
