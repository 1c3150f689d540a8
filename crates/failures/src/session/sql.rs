//! Connections to SQLite, MariaDB and PostgreSQL. Statements are sent as text, as a shell does.

use std::time::Duration;

use futures_util::TryStreamExt as _;
use sqlx::mysql::MySqlDatabaseError;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, Either, MySqlConnection, PgConnection,
    Row as _, SqliteConnection,
};

use super::{Address, Kind, LOST};

/// A connection to a SQL database.
pub(crate) enum SqlSession {
    Sqlite(SqliteConnection),
    Mariadb(MySqlConnection),
    Postgres(PgConnection),
}

/// What a statement returned.
#[derive(Debug, Default)]
struct Returned {
    rows: Vec<String>,
    affected: u64,
}

/// Sends a statement on a connection of any database.
macro_rules! returned {
    ($connection:expr, $statement:expr) => {{
        #[expect(
            clippy::disallowed_methods,
            reason = "the statements are those of the stories; they contain no input of a user"
        )]
        let statement = AssertSqlSafe($statement.to_owned());
        let mut parts = sqlx::raw_sql(statement).fetch_many($connection);
        let mut returned = Returned::default();
        while let Some(part) = parts.try_next().await? {
            match part {
                Either::Left(done) => returned.affected = done.rows_affected(),
                Either::Right(row) => {
                    let mut values = Vec::new();
                    for index in 0..row.len() {
                        // Text, because that is what the servers send for raw statements.
                        let value: Option<String> = row.try_get_unchecked(index)?;
                        values.push(value.unwrap_or_else(|| "NULL".to_owned()));
                    }
                    returned.rows.push(values.join(", "));
                }
            }
        }
        Ok(returned)
    }};
}

impl SqlSession {
    pub(super) async fn open(address: &Address) -> Result<Self, sqlx::Error> {
        match address.kind {
            Kind::Mariadb => {
                let connection = MySqlConnection::connect(&address.url).await;
                connection.map(Self::Mariadb)
            }
            Kind::Postgres => {
                let connection = PgConnection::connect(&address.url).await;
                connection.map(Self::Postgres)
            }
            Kind::Sqlite | Kind::Redis | Kind::Zookeeper | Kind::Nginx => {
                // A lock of another connection is an error at once, so that the story shows it.
                let options: SqliteConnectOptions = address.url.parse()?;
                let options = options
                    .busy_timeout(Duration::ZERO)
                    .journal_mode(SqliteJournalMode::Wal);
                options.connect().await.map(Self::Sqlite)
            }
        }
    }

    pub(super) async fn run(&mut self, statement: &str) -> String {
        match self.send(statement).await {
            Ok(returned) => text(statement, &returned),
            Err(error) => error_text(&error),
        }
    }

    async fn send(&mut self, statement: &str) -> Result<Returned, sqlx::Error> {
        match self {
            Self::Sqlite(connection) => returned!(connection, statement),
            Self::Mariadb(connection) => returned!(connection, statement),
            Self::Postgres(connection) => returned!(connection, statement),
        }
    }
}

/// Rows as values; a change as the number of rows; everything else is `ok`.
fn text(statement: &str, returned: &Returned) -> String {
    let word = statement.split_whitespace().next().unwrap_or_default();
    match word.to_uppercase().as_str() {
        _ if !returned.rows.is_empty() => returned.rows.join(" · "),
        "SELECT" | "SHOW" => "no rows".to_owned(),
        "INSERT" | "UPDATE" | "DELETE" | "REPLACE" => match returned.affected {
            1 => "1 row".to_owned(),
            count => format!("{count} rows"),
        },
        _ => "ok".to_owned(),
    }
}

fn error_text(error: &sqlx::Error) -> String {
    let Some(database) = error.as_database_error() else {
        return match error {
            sqlx::Error::Io(_) | sqlx::Error::Protocol(_) => LOST.to_owned(),
            other => format!("error: {other}"),
        };
    };
    let code = match database.try_downcast_ref::<MySqlDatabaseError>() {
        Some(mariadb) => mariadb.number().to_string(),
        None => database.code().unwrap_or_default().into_owned(),
    };
    format!("error {code}: {}", database.message())
}
