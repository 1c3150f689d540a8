//! Prepares a server of each program, and asks a server what it is.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::program::{Program, Settings};
use crate::supervisor::{Supervisor, create_directory, write_file};
use crate::{redis, sql, zookeeper};

/// What a server says about itself.
#[derive(Debug)]
pub struct Probe {
    pub version: String,
    pub data_directory: PathBuf,
}

impl Program {
    /// The URL (ZooKeeper: connect string) of a private server.
    pub fn url(self, port: u16) -> String {
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
    pub async fn prepare(
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
    pub async fn probe(self, url: &str) -> Result<Probe> {
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
