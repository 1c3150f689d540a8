//! The server programs: their names, command lines, and how to ask a server what it is.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::supervisor::{Supervisor, create_directory, unprivileged, write_file};
use super::{redis, sql, zookeeper};
use crate::run::variable;

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

/// What a server says about itself.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) version: String,
    pub(super) data_directory: PathBuf,
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
    pub(super) fn variable(self) -> &'static str {
        match self {
            Self::MariaDb => "TEST_MYSQL_URL",
            Self::Postgres => "TEST_POSTGRES_URL",
            Self::Redis => "TEST_REDIS_URL",
            Self::ZooKeeper => "TEST_ZOOKEEPER_CONNECT",
        }
    }

    /// The URL (ZooKeeper: connect string) of a private server.
    pub(super) fn url(self, port: u16) -> String {
        match self {
            Self::MariaDb => format!("mysql://root:{}@127.0.0.1:{port}/mysql", sql::password()),
            Self::Postgres => format!(
                "postgres://postgres:{}@127.0.0.1:{port}/postgres",
                sql::password()
            ),
            Self::Redis => format!("redis://127.0.0.1:{port}/0"),
            Self::ZooKeeper => format!("127.0.0.1:{port}"),
        }
    }

    /// Arguments for [`Settings::Shared`].
    fn shared_arguments(self) -> &'static [&'static str] {
        match self {
            Self::MariaDb => &["--max-connections=2000"],
            Self::Postgres => &["-c", "max_connections=1000", "-c", "fsync=off"],
            Self::Redis | Self::ZooKeeper => &[],
        }
    }

    /// Creates a directory with everything that a server needs, and a supervisor that can start it.
    /// `arguments` go to the end of the command line.
    pub(super) async fn prepare(
        self,
        port: u16,
        settings: &Settings,
        arguments: &[String],
    ) -> Result<Supervisor> {
        let template = match self {
            Self::MariaDb | Self::Postgres => Some(sql::template(self).await?),
            Self::Redis | Self::ZooKeeper => None,
        };
        let owned = create_directory(self.name())?;
        let directory = owned.path();
        let configuration = match (settings, self) {
            (Settings::Deployed(from), Self::MariaDb) => {
                Some(copy(from, "mariadb.cnf", directory)?)
            }
            (Settings::Deployed(from), Self::Redis) => Some(copy(from, "redis.conf", directory)?),
            _ => None,
        };
        let is_test = !matches!(settings, Settings::Deployed(_));
        let mut command = match self {
            Self::MariaDb => sql::mariadb(directory, port, configuration.as_deref())?,
            Self::Postgres => sql::postgres(directory, port, is_test)?,
            Self::Redis => redis::command(directory, port, configuration.as_deref())?,
            Self::ZooKeeper => zookeeper::command(directory, port, is_test)?,
        };
        if matches!(settings, Settings::Shared) {
            command.args(self.shared_arguments());
        }
        command.args(arguments);
        // At the end of the run the data is removed, so the servers need no clean shutdown. PostgreSQL
        // removes its shared memory only at its "immediate shutdown".
        let stop = if self == Self::Postgres {
            "QUIT"
        } else {
            "KILL"
        };
        let supervisor = Supervisor::new(owned, stop, Some(&command))?;
        if let Some(template) = template {
            sql::copy_data(&template, supervisor.directory()).await?;
        }
        Ok(supervisor)
    }

    /// Asks the server of a URL. Fails until the server is ready.
    pub(super) async fn probe(self, url: &str) -> Result<Probe> {
        let (version, data_directory) = match self {
            Self::MariaDb | Self::Postgres => sql::probe(self, url).await?,
            Self::Redis => redis::probe(url).await?,
            Self::ZooKeeper => zookeeper::probe(url).await?,
        };
        Ok(Probe {
            version,
            data_directory: data_directory.into(),
        })
    }
}

/// Copies a configuration file to where the server's user can read it.
fn copy(from: &Path, name: &str, directory: &Path) -> Result<PathBuf> {
    let source = from.join(name);
    let text = std::fs::read_to_string(&source);
    let text = text.with_context(|| format!("cannot read {}", source.display()))?;
    write_file(directory, name, &text)
}

/// Finds a server's program in `PATH`, or where Debian installs what it does not put into `PATH`.
pub fn find(program: &str) -> Result<PathBuf> {
    let mut places: Vec<PathBuf> = variable("PATH")
        .map(|path| std::env::split_paths(&path).collect())
        .unwrap_or_default();
    places.extend(["/usr/local/sbin".into(), "/usr/sbin".into()]);
    // One directory for each major version: use the newest.
    let mut versions: Vec<(u32, PathBuf)> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    versions.sort_unstable();
    places.extend(versions.into_iter().rev().map(|(_, bin)| bin));
    let mut candidates = places.into_iter().map(|place| place.join(program));
    candidates
        .find(|candidate| candidate.is_file())
        .with_context(|| format!("`{program}` is not installed: run `make services`"))
}

/// A command that runs a server program, as another user if this process is root.
pub(super) fn server_command(program: &str) -> Result<Command> {
    unprivileged(&find(program)?)
}
