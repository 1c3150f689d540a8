//! MariaDB and PostgreSQL: command lines, data directories and statements.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use anyhow::{Context, Result};
use sqlx::{Connection, MySqlConnection, PgConnection};
use tokio::sync::OnceCell;

use crate::environment::variable;
use crate::installed::server_command;
use crate::program::Program;
use crate::supervisor::{
    Supervisor, create_directory, give_to_server, run, unprivileged, write_file,
};

/// The directory of the templates and of the file with their password: the one that `TEST_TEMPLATES`
/// names, or one of this process.
fn templates() -> &'static Path {
    static OWN: LazyLock<Supervisor> = LazyLock::new(|| {
        let created = create_directory("templates").and_then(|directory| {
            let mut bytes = [0; 16];
            File::open("/dev/urandom")?.read_exact(&mut bytes)?;
            let password = format!("{:032x}", u128::from_ne_bytes(bytes));
            write_file(directory.path(), "password", &password)?;
            Supervisor::new(directory, "KILL", None)
        });
        created.unwrap_or_else(|error| panic!("no directory for templates: {error:#}"))
    });
    static DIRECTORY: LazyLock<PathBuf> = LazyLock::new(|| {
        let given = variable("TEST_TEMPLATES").map(PathBuf::from);
        given.unwrap_or_else(|| OWN.directory().to_owned())
    });
    &DIRECTORY
}

/// The password of `root` in MariaDB and `postgres` in PostgreSQL. These users can read and write the
/// files of the user who runs the tests, so other users of the machine must not connect.
pub fn password() -> &'static str {
    static PASSWORD: LazyLock<String> = LazyLock::new(|| {
        let password = fs::read_to_string(templates().join("password"));
        password.expect("the templates have a file with their password")
    });
    &PASSWORD
}

/// The command line that serves `directory/data`.
pub fn mariadb(directory: &Path, port: u16, configuration: Option<&Path>) -> Result<Command> {
    let home = directory.display();
    let mut command = server_command("mariadbd")?;
    command.arg(match configuration {
        Some(file) => format!("--defaults-file={}", file.display()),
        None => "--no-defaults".to_owned(),
    });
    command.args([
        format!("--datadir={home}/data"),
        format!("--tmpdir={home}"),
        format!("--socket={home}/socket"),
        format!("--pid-file={home}/pid"),
        format!("--port={port}"),
    ]);
    // No TLS, because the proxy must be able to read the messages.
    let settings = "--bind-address=127.0.0.1 --skip-ssl --innodb-use-native-aio=OFF \
                    --performance-schema=OFF";
    command.args(settings.split(' '));
    if configuration.is_none() {
        let settings = "--innodb-buffer-pool-size=64M --innodb-log-file-size=32M \
                        --skip-name-resolve --skip-log-bin --innodb-flush-log-at-trx-commit=1 \
                        --max-connections=400";
        command.args(settings.split(' '));
    }
    Ok(command)
}

/// The command line that serves `directory/data`.
pub fn postgres(directory: &Path, port: u16, is_test: bool) -> Result<Command> {
    let mut command = server_command("postgres")?;
    command.arg("-D").arg(directory.join("data"));
    command.args(["-p", &port.to_string()]);
    // Shared memory in the data directory, so that it is removed with it.
    let settings = "-h 127.0.0.1 -c unix_socket_directories= -c dynamic_shared_memory_type=mmap \
                    -c fsync=on -c synchronous_commit=on";
    command.args(settings.split(' '));
    let settings = if is_test {
        "-c max_connections=400 -c shared_buffers=32MB -c deadlock_timeout=200ms"
    } else {
        "-c max_connections=200"
    };
    command.args(settings.split(' '));
    Ok(command)
}

/// Creates an empty data directory, `directory/data`.
fn initialise(program: Program, directory: &Path) -> Result<()> {
    let home = directory.display();
    let mut command;
    let settings = if program == Program::MariaDb {
        command = server_command("mariadb-install-db")?;
        command.arg("--no-defaults");
        command.arg(format!("--datadir={home}/data"));
        // Not the system's: a server that starts removes temporary tables there, of any server.
        command.arg(format!("--tmpdir={home}"));
        let set_password = format!(
            "UPDATE mysql.global_priv SET priv = JSON_SET(priv, '$.plugin', 'mysql_native_password', \
             '$.authentication_string', PASSWORD('{}')) WHERE user = 'root';\n",
            password()
        );
        let file = write_file(directory, "password.sql", &set_password)?;
        command.arg(format!("--extra-file={}", file.display()));
        // The log size of the tests, because a server with another size rewrites its log at start.
        "--auth-root-authentication-method=normal --skip-test-db --innodb-log-file-size=32M"
    } else {
        command = server_command("initdb")?;
        command.arg(format!("--pgdata={home}/data"));
        let file = templates().join("password");
        command.arg(format!("--pwfile={}", file.display()));
        // Not scram-sha-256, which takes milliseconds for each connection.
        "--auth=md5 --username=postgres --encoding=UTF8 --no-sync --locale=C \
         --locale-provider=icu --icu-locale=en-US"
    };
    run(command.args(settings.split(' ')), directory)
}

/// The directory whose `data` is copied for each server. Created at the first call, if it does not exist.
pub async fn template(program: Program) -> Result<PathBuf> {
    static MARIADB: OnceCell<Result<PathBuf, String>> = OnceCell::const_new();
    static POSTGRES: OnceCell<Result<PathBuf, String>> = OnceCell::const_new();
    let cell = if program == Program::MariaDb {
        &MARIADB
    } else {
        &POSTGRES
    };
    let create = move || -> Result<PathBuf> {
        let directory = templates().join(program.name());
        if !directory.exists() {
            fs::create_dir(&directory)?;
            give_to_server(&directory)?;
            initialise(program, &directory)?;
        }
        Ok(directory)
    };
    let created = cell.get_or_init(async || {
        let created = tokio::task::spawn_blocking(create).await;
        let created = created.context("the initialisation panicked").flatten();
        created.map_err(|error| format!("{error:#}"))
    });
    let created = created.await.clone();
    created.map_err(|message| anyhow::anyhow!("{message}"))
}

/// Creates the templates for other processes, and returns the directory that `TEST_TEMPLATES` must name.
pub async fn create_templates() -> Result<&'static Path> {
    tokio::try_join!(template(Program::MariaDb), template(Program::Postgres))?;
    Ok(templates())
}

/// Copies the template's data into a server's directory.
pub async fn copy_data(template: &Path, directory: &Path) -> Result<()> {
    let mut command = unprivileged(Path::new("cp"))?;
    command.args(["-a", "--reflink=auto", "--"]);
    command.arg(template.join("data")).arg(directory);
    let directory: PathBuf = directory.into();
    tokio::task::spawn_blocking(move || run(&mut command, &directory)).await?
}

/// Evaluates an expression with a new connection to the server of a URL. Not with sqlx's `Any`, which takes
/// longer to compile than a driver. Boxed, because the futures of two drivers are large.
macro_rules! connected {
    ($url:expr, $connection:ident => $result:expr) => {
        if $url.starts_with("postgres") {
            let mut $connection = Box::pin(PgConnection::connect($url)).await?;
            $result
        } else {
            let mut $connection = Box::pin(MySqlConnection::connect($url)).await?;
            $result
        }
    };
}

/// Runs a statement without parameters on a new connection.
pub async fn execute(url: &str, statement: String) -> Result<()> {
    #[expect(
        clippy::disallowed_methods,
        reason = "DDL takes no parameters, and testkit chose the names"
    )]
    let statement = sqlx::raw_sql(sqlx::AssertSqlSafe(statement));
    connected!(url, connection => {
        statement.execute(&mut connection).await?;
        Ok(connection.close().await?)
    })
}

/// Removes a database, even if clients are connected to it.
pub async fn drop_database(program: Program, server: &str, name: &str) -> Result<()> {
    let force = if program == Program::Postgres {
        " WITH (FORCE)"
    } else {
        ""
    };
    execute(server, format!("DROP DATABASE {name}{force}")).await
}

/// The version and the data directory of the server of a URL.
pub async fn probe(program: Program, url: &str) -> Result<(String, String)> {
    let statement = if program == Program::MariaDb {
        "SELECT VERSION(), @@datadir"
    } else {
        "SELECT current_setting('server_version'), current_setting('data_directory')"
    };
    connected!(url, connection => {
        Ok(sqlx::query_as(statement).fetch_one(&mut connection).await?)
    })
}
