//! MariaDB and PostgreSQL: where their programs are, how they are started, how they are asked.
//!
//! They are as durable as in production (what the server has acknowledged survives `kill -9` and a
//! loss of power), and otherwise as unhelpful as a server that we do not administer may be: the
//! waiting limits, character set and collation are not ours, so that what the stores need they must
//! ask for themselves.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sqlx::{Connection, Executor, MySqlConnection, PgConnection};

use super::supervisor::{run, unprivileged};

/// The same at initialisation, or the first start would write the log anew.
const MARIADB_LOG: &str = "--innodb-log-file-size=32M";

/// A database server that the tests can start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Engine {
    MariaDb,
    PostgreSql,
}

impl Engine {
    /// The word that its directories are named by.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::MariaDb => "mariadb",
            Self::PostgreSql => "postgresql",
        }
    }

    /// The variable that names a server to be used instead of one of our own.
    pub(super) fn variable(self) -> &'static str {
        match self {
            Self::MariaDb => "TEST_MYSQL_URL",
            Self::PostgreSql => "TEST_POSTGRES_URL",
        }
    }

    /// The signal that ends it without ceremony at the end of the tests.
    pub(super) fn stop_signal(self) -> &'static str {
        match self {
            Self::MariaDb => "KILL",
            // "Immediate shutdown": no less abrupt, but it removes its shared memory.
            Self::PostgreSql => "QUIT",
        }
    }

    /// The URL of a database on a server of ours; both let anybody in, on loopback only.
    pub(super) fn url(self, port: u16, database: &str) -> String {
        match self {
            Self::MariaDb => format!("mysql://root@127.0.0.1:{port}/{database}"),
            Self::PostgreSql => format!("postgres://postgres@127.0.0.1:{port}/{database}"),
        }
    }

    /// A database that every server has.
    pub(super) fn built_in_database(self) -> &'static str {
        match self {
            Self::MariaDb => "mysql",
            Self::PostgreSql => "postgres",
        }
    }

    /// Fills `directory/data` for a new server.
    pub(super) fn initialise(self, directory: &Path) -> Result<()> {
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
    pub(super) fn serve(self, directory: &Path, port: u16) -> Result<Vec<OsString>> {
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

    /// The server's version.
    pub(super) async fn version(self, url: &str) -> Result<String, sqlx::Error> {
        self.ask(url, "SELECT VERSION()", "SHOW server_version")
            .await
    }

    /// The directory that the server's data are in.
    pub(super) async fn data_directory(self, url: &str) -> Result<PathBuf, sqlx::Error> {
        self.ask(url, "SELECT @@datadir", "SHOW data_directory")
            .await
            .map(PathBuf::from)
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

fn option(name: &str, value: &Path) -> OsString {
    let mut option = OsString::from(name);
    option.push(value);
    option
}

/// Finds a server's program in the search path or where Debian puts what is not meant to be in it.
fn find(program: &str) -> Result<PathBuf> {
    let mut places: Vec<PathBuf> = super::environment("PATH")
        .map(|path| std::env::split_paths(&path).collect())
        .unwrap_or_default();
    places.extend(["/usr/local/sbin".into(), "/usr/sbin".into()]);
    // One directory for each major version: the newest is the one to test on.
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
    places
        .into_iter()
        .map(|place| place.join(program))
        .find(|candidate| candidate.is_file())
        .with_context(|| {
            format!("`{program}` is not installed: run `make services`, or install it yourself")
        })
}
