//! Real servers for the tests, and one empty database for each test.
//!
//! `TEST_MYSQL_URL`, `TEST_POSTGRES_URL`, `TEST_REDIS_URL`, `TEST_ZOOKEEPER_CONNECT`, `TEST_REDLOCK_URLS`
//! and `TEST_REDIS_CLUSTER` name servers that the tests share. For each that is unset, the first test that
//! needs the server starts a private one for the whole process. `testkit run` starts them for all processes
//! of its command. It also sets `TEST_TEMPLATES`, the directory whose data new servers copy, and
//! `TEST_STARTED`, the servers in which tests need not remove their databases. A line on standard error
//! says which server is used. A missing program is an error that says what to install; nothing is skipped.

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use url::Url;

mod certificates;
mod cluster;
mod ensemble;
mod fresh;
mod masters;
mod nginx;
mod pgbouncer;
mod private_server;
mod program;
mod redis;
mod sentinels;
mod shared;
mod sql;
mod supervisor;
mod zookeeper;

pub use certificates::Certificates;
pub use cluster::RedisCluster;
pub use ensemble::ZooKeeperEnsemble;
pub use fresh::{
    TestDatabase, TestRedis, TestZooKeeper, fresh_database, fresh_redis, fresh_zookeeper,
};
pub use masters::{TestMasters, fresh_masters, vote};
pub use nginx::Nginx;
pub use pgbouncer::PgBouncer;
pub use private_server::PrivateServer;
pub use program::{Program, Settings, find};
pub use redis::connect_to_redis;
pub use sentinels::RedisSentinels;
pub use shared::share;

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
