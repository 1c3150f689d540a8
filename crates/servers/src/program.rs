//! The server programs, and how they are configured.

use std::path::PathBuf;

/// A server program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, clap::ValueEnum)]
#[value(rename_all = "lower")]
pub enum Program {
    /// MariaDB.
    MariaDb,
    /// PostgreSQL.
    Postgres,
    /// Redis.
    Redis,
    /// ZooKeeper, one node.
    ZooKeeper,
}

/// How a private server is configured. `kill -9` loses nothing that the server has acknowledged, except
/// that Redis keeps nothing unless it is [`Settings::Deployed`].
#[derive(Debug, Clone)]
pub enum Settings {
    /// Small, quick to start, and otherwise with the server's own defaults: the service must set
    /// time-outs, isolation and character set itself.
    Test,
    /// The same for a server that many tests use at once: with more connections, and PostgreSQL does not
    /// wait for the disk. A new database has hundreds of files, and each checkpoint waits for all of them.
    Shared,
    /// MariaDB and Redis with `mariadb.cnf` and `redis.conf` of this directory. All servers with
    /// their default sizes, and PostgreSQL for 200 connections.
    Deployed(PathBuf),
}

impl Program {
    /// Its name in messages, directories and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::MariaDb => "mariadb",
            Self::Postgres => "postgres",
            Self::Redis => "redis",
            Self::ZooKeeper => "zookeeper",
        }
    }

    /// The variable that names a server to use instead of a private one.
    pub fn variable(self) -> &'static str {
        match self {
            Self::MariaDb => "TEST_MYSQL_URL",
            Self::Postgres => "TEST_POSTGRES_URL",
            Self::Redis => "TEST_REDIS_URL",
            Self::ZooKeeper => "TEST_ZOOKEEPER_CONNECT",
        }
    }
}
