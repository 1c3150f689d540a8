//! MariaDB and PostgreSQL: where their programs are, how they are started, how they are asked.
//!
//! They are as durable as in production (what the server has acknowledged survives `kill -9` and a
//! loss of power), and otherwise as unhelpful as a server that we do not administer may be: the
//! waiting limits, character set and collation are not ours, so that what the stores need they must
//! ask for themselves.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use async_trait::async_trait;
use sqlx::{Connection, Executor, MySqlConnection, PgConnection};
use tokio::sync::OnceCell;

use super::program::{Program, find};
use super::supervisor::{Supervisor, create_directory, run, unprivileged};

/// The same at initialisation, or the first start would write the log anew.
const MARIADB_LOG: &str = "--innodb-log-file-size=32M";

/// A database server that the tests can start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Engine {
    MariaDb,
    PostgreSql,
}

impl Engine {
    /// The signal that ends it without ceremony at the end of the tests.
    fn stop_signal(self) -> &'static str {
        match self {
            Self::MariaDb => "KILL",
            // "Immediate shutdown": no less abrupt, but it removes its shared memory.
            Self::PostgreSql => "QUIT",
        }
    }

    /// The URL of a database on a server of ours; both let anybody in, on loopback only.
    fn database_url(self, port: u16, database: &str) -> String {
        match self {
            Self::MariaDb => format!("mysql://root@127.0.0.1:{port}/{database}"),
            Self::PostgreSql => format!("postgres://postgres@127.0.0.1:{port}/{database}"),
        }
    }

    /// A database that every server has.
    fn built_in_database(self) -> &'static str {
        match self {
            Self::MariaDb => "mysql",
            Self::PostgreSql => "postgres",
        }
    }

    /// Fills `directory/data` for a new server.
    fn initialise(self, directory: &Path) -> Result<()> {
        let mut line;
        match self {
            Self::MariaDb => {
                line = unprivileged(find("mariadb-install-db")?);
                line.push("--no-defaults".into());
                line.push(option("--datadir=", &directory.join("data")));
                // Not the shared one: a server that starts removes the temporary tables that it
                // finds there, of whichever server they are.
                line.push(option("--tmpdir=", directory));
                line.push("--auth-root-authentication-method=normal".into());
                line.push("--skip-test-db".into());
                line.push(MARIADB_LOG.into());
            }
            Self::PostgreSql => {
                line = unprivileged(find("initdb")?);
                line.push(option("--pgdata=", &directory.join("data")));
                line.extend(
                    "--auth=trust --username=postgres --encoding=UTF8 --no-sync --locale=C \
                     --locale-provider=icu --icu-locale=en-US"
                        .split_whitespace()
                        .map(OsString::from),
                );
            }
        }
        run(&line, directory)
    }

    /// The command line that serves `directory/data` on `port`.
    fn serve(self, directory: &Path, port: u16) -> Result<Vec<OsString>> {
        let mut line;
        let settings = match self {
            Self::MariaDb => {
                line = unprivileged(find("mariadbd")?);
                line.push("--no-defaults".into());
                line.push(option("--datadir=", &directory.join("data")));
                line.push(option("--tmpdir=", directory));
                line.push(option("--socket=", &directory.join("socket")));
                line.push(option("--pid-file=", &directory.join("pid")));
                line.push(format!("--port={port}").into());
                line.push(MARIADB_LOG.into());
                // Without TLS, so that the proxy can read what passes.
                "--bind-address=127.0.0.1 --skip-name-resolve --skip-ssl --skip-log-bin \
                 --innodb-flush-log-at-trx-commit=1 --max-connections=400 \
                 --innodb-buffer-pool-size=64M --innodb-use-native-aio=OFF \
                 --performance-schema=OFF"
            }
            Self::PostgreSql => {
                line = unprivileged(find("postgres")?);
                line.push("-D".into());
                line.push(directory.join("data").into());
                line.push("-p".into());
                line.push(port.to_string().into());
                // Shared memory in the data directory, so that it goes with it.
                "-h 127.0.0.1 -c unix_socket_directories= -c dynamic_shared_memory_type=mmap \
                 -c fsync=on -c synchronous_commit=on -c max_connections=400 \
                 -c shared_buffers=32MB -c deadlock_timeout=200ms"
            }
        };
        line.extend(settings.split_whitespace().map(OsString::from));
        Ok(line)
    }

    /// A directory with a copy of the template's data, and a supervisor that will serve it.
    fn copy(self, template: &Path, port: u16) -> Result<Supervisor> {
        let directory = create_directory(self.name())?;
        let command = self.serve(&directory, port)?;
        let supervisor = Supervisor::new(directory, self.stop_signal(), &command)?;
        let mut copy = unprivileged("cp".into());
        copy.extend(["-a".into(), "--reflink=auto".into(), "--".into()]);
        copy.push(template.join("data").into());
        copy.push(supervisor.directory().into());
        run(&copy, supervisor.directory())?;
        Ok(supervisor)
    }

    /// The statement that removes a database, whoever is still connected to it.
    pub(super) fn drop_database(self, name: &str) -> String {
        match self {
            Self::MariaDb => format!("DROP DATABASE {name}"),
            Self::PostgreSql => format!("DROP DATABASE {name} WITH (FORCE)"),
        }
    }

    /// Runs a statement on a connection of its own.
    pub(super) async fn execute(self, url: &str, statement: String) -> Result<(), sqlx::Error> {
        #[expect(
            clippy::disallowed_methods,
            reason = "DDL takes no parameters; the names in it are our own"
        )]
        let statement = sqlx::raw_sql(sqlx::AssertSqlSafe(statement));
        match self {
            Self::MariaDb => {
                let mut connection = MySqlConnection::connect(url).await?;
                connection.execute(statement).await?;
                connection.close().await
            }
            Self::PostgreSql => {
                let mut connection = PgConnection::connect(url).await?;
                connection.execute(statement).await?;
                connection.close().await
            }
        }
    }

    async fn ask(
        self,
        url: &str,
        mariadb: &'static str,
        postgresql: &'static str,
    ) -> Result<String, sqlx::Error> {
        match self {
            Self::MariaDb => {
                let mut connection = MySqlConnection::connect(url).await?;
                sqlx::query_scalar(mariadb).fetch_one(&mut connection).await
            }
            Self::PostgreSql => {
                let mut connection = PgConnection::connect(url).await?;
                sqlx::query_scalar(postgresql)
                    .fetch_one(&mut connection)
                    .await
            }
        }
    }
}

#[async_trait]
impl Program for Engine {
    fn name(&self) -> &'static str {
        match self {
            Self::MariaDb => "mariadb",
            Self::PostgreSql => "postgresql",
        }
    }

    fn variable(&self) -> &'static str {
        match self {
            Self::MariaDb => "TEST_MYSQL_URL",
            Self::PostgreSql => "TEST_POSTGRES_URL",
        }
    }

    fn url(&self, port: u16) -> String {
        self.database_url(port, self.built_in_database())
    }

    async fn prepare(&self, port: u16) -> Result<Supervisor> {
        let (engine, template) = (*self, template(*self).await?);
        tokio::task::spawn_blocking(move || engine.copy(template, port)).await?
    }

    async fn version(&self, url: &str) -> Result<String> {
        let version = self.ask(url, "SELECT VERSION()", "SHOW server_version");
        Ok(version.await?)
    }

    async fn data_directory(&self, url: &str) -> Result<PathBuf> {
        let directory = self.ask(url, "SELECT @@datadir", "SHOW data_directory");
        Ok(directory.await?.into())
    }
}

/// The directory whose `data` every server of this run starts with; initialised once.
async fn template(engine: Engine) -> Result<&'static Path> {
    static MARIADB: OnceCell<Result<Supervisor, String>> = OnceCell::const_new();
    static POSTGRESQL: OnceCell<Result<Supervisor, String>> = OnceCell::const_new();
    let cell = match engine {
        Engine::MariaDb => &MARIADB,
        Engine::PostgreSql => &POSTGRESQL,
    };
    let initialise = move || -> Result<Supervisor> {
        let name = format!("{}-template", engine.name());
        let owner = Supervisor::new(create_directory(&name)?, "KILL", &[])?;
        engine.initialise(owner.directory())?;
        Ok(owner)
    };
    cell.get_or_init(|| async {
        tokio::task::spawn_blocking(initialise)
            .await
            .context("the initialisation panicked")
            .flatten()
            .map_err(|error| format!("{error:#}"))
    })
    .await
    .as_ref()
    .map(Supervisor::directory)
    .map_err(|message| anyhow::anyhow!("{message}"))
}

fn option(name: &str, value: &Path) -> OsString {
    let mut option = OsString::from(name);
    option.push(value);
    option
}
