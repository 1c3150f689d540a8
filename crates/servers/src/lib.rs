//! Private servers, and a TCP proxy that breaks connections to them: for the gallery of failures, for tests and for
//! benchmarks.
//!
//! Everything runs on this machine: it listens on loopback, keeps its data in temporary directories,
//! and ends with the process that started it, even if that process is killed.

#![expect(
    clippy::missing_errors_doc,
    clippy::must_use_candidate,
    reason = "every error ends the story or the test, and an unused value does no harm"
)]

mod empty;
pub mod environment;
pub mod installed;
mod launch;
mod nginx;
pub mod ports;
mod private_server;
mod program;
pub mod proxy;
pub mod redis;
pub mod signals;
pub mod sql;
pub mod supervisor;
pub mod zookeeper;

use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};
use url::Url;

pub use empty::{TestDatabase, TestRedis, TestZooKeeper};
pub use nginx::Nginx;
pub use private_server::PrivateServer;
pub use program::{Program, Settings};

/// Polls `check` until it returns true.
///
/// # Panics
/// If it does not return true in time; the message contains `what`.
pub async fn eventually(what: &str, within: Duration, mut check: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + within;
    while !check().await {
        assert!(Instant::now() < deadline, "not within {within:?}: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

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
    /// The kinds with a server, which can be killed and whose connections can be cut.
    pub const SERVERS: [Self; 2] = [Self::Mysql, Self::Postgres];

    /// The message in which the driver sends `COMMIT`, for a trigger of a [`proxy::Proxy`]. The
    /// word alone also occurs in `READ COMMITTED`.
    pub fn commit_message(self) -> &'static [u8] {
        match self {
            Self::Sqlite => panic!("SQLite has no connection"),
            Self::Mysql => b"\x07\0\0\0\x03COMMIT",
            Self::Postgres => b"Q\0\0\0\x0bCOMMIT\0",
        }
    }

    /// The program of its server.
    pub fn program(self) -> Program {
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
pub fn with_path(url: &str, database: &str) -> String {
    let mut url = Url::parse(url).expect("a server that answered has a valid URL");
    url.set_path(database);
    url.into()
}
