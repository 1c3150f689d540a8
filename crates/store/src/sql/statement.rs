//! A statement and its values, for any driver.
//!
//! Statements have numbered parameters (`$1`). Flows bind [`Value`]s and read rows that every driver can
//! decode ([`AnyRow`]), so that no flow names a driver.

use sqlx::database::HasStatementCache;
use sqlx::encode::Encode;
use sqlx::mysql::MySqlRow;
use sqlx::postgres::PgRow;
use sqlx::query::Query;
use sqlx::sqlite::SqliteRow;
use sqlx::types::Type;
use sqlx::{Arguments, AssertSqlSafe, Database, FromRow, IntoArguments, SqlSafeStr, SqlStr};
use uuid::Uuid;

/// A row that every driver can decode.
pub(crate) trait AnyRow:
    for<'r> FromRow<'r, SqliteRow>
    + for<'r> FromRow<'r, MySqlRow>
    + for<'r> FromRow<'r, PgRow>
    + Send
    + 'static
{
}

impl<T> AnyRow for T where
    T: for<'r> FromRow<'r, SqliteRow>
        + for<'r> FromRow<'r, MySqlRow>
        + for<'r> FromRow<'r, PgRow>
        + Send
        + 'static
{
}

/// For how many levels the servers keep a statement.
const KEPT_LEVELS: usize = 4;

/// The text of a statement.
#[derive(Debug, Clone)]
pub(crate) struct Statement {
    pub(crate) text: SqlStr,
    /// Whether the server keeps the prepared statement for the next call.
    pub(crate) persistent: bool,
}

impl From<&'static str> for Statement {
    fn from(text: &'static str) -> Self {
        Self {
            text: text.into_sql_str(),
            persistent: true,
        }
    }
}

impl From<&Statement> for Statement {
    fn from(statement: &Statement) -> Self {
        statement.clone()
    }
}

impl Statement {
    /// A statement that is built once. `persistent`: whether the server keeps it for the next call.
    pub(crate) fn kept(text: String, persistent: bool) -> Self {
        Self {
            persistent,
            ..Self::from(&*text.leak())
        }
    }

    /// Whether the dialect has no such statement.
    pub(crate) fn is_empty(&self) -> bool {
        self.as_str().is_empty()
    }

    /// Its text.
    pub(crate) fn as_str(&self) -> &str {
        self.text.as_str()
    }

    /// A statement that is put together from constants.
    pub(crate) fn built(text: String) -> Self {
        Self {
            text: trusted(text),
            persistent: true,
        }
    }

    /// A statement whose text depends on a number of levels. For more than a few, the server does not
    /// keep it. On MariaDB that costs 40 ms: sqlx closes it in a message without an answer, and the
    /// next message waits until TCP has acknowledged that.
    pub(crate) fn for_levels(text: String, levels: usize) -> Self {
        Self {
            persistent: levels <= KEPT_LEVELS,
            ..Self::built(text)
        }
    }
}

/// A text that was built from constants and numbers of parameters.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place: no text from outside has a quote or a backslash in it"
)]
pub(crate) fn trusted(text: String) -> SqlStr {
    AssertSqlSafe(text).into_sql_str()
}

/// A value for a parameter.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Value<'a> {
    Int(Option<i64>),
    Text(Option<&'a str>),
    Bytes(Option<&'a [u8]>),
    Uuid(Option<Uuid>),
}

macro_rules! value_from {
    ($($variant:ident($type:ty)),+) => {$(
        impl<'a> From<$type> for Value<'a> {
            fn from(value: $type) -> Self {
                Self::$variant(Some(value))
            }
        }

        impl<'a> From<Option<$type>> for Value<'a> {
            fn from(value: Option<$type>) -> Self {
                Self::$variant(value)
            }
        }
    )+};
}
value_from!(Int(i64), Text(&'a str), Bytes(&'a [u8]), Uuid(Uuid));

/// The values of a statement, in the order of its parameters.
macro_rules! values {
    ($($value:expr),* $(,)?) => {
        [$($crate::sql::statement::Value::from($value)),*]
    };
}
pub(crate) use values;

/// About how many bytes a driver needs for a value.
const BYTES_PER_VALUE: usize = 12;

/// A statement with its values for a driver.
pub(crate) fn query<'a, DB>(
    statement: Statement,
    values: &[Value<'a>],
) -> sqlx::Result<Query<'static, DB, DB::Arguments>>
where
    DB: Database + HasStatementCache,
    DB::Arguments: IntoArguments<DB>,
    Option<i64>: Encode<'a, DB> + Type<DB>,
    Option<&'a str>: Encode<'a, DB> + Type<DB>,
    Option<&'a [u8]>: Encode<'a, DB> + Type<DB>,
    Option<Uuid>: Encode<'a, DB> + Type<DB>,
{
    let mut arguments = DB::Arguments::default();
    arguments.reserve(values.len(), values.len() * BYTES_PER_VALUE);
    for value in values {
        let added = match *value {
            Value::Int(value) => arguments.add(value),
            Value::Text(value) => arguments.add(value),
            Value::Bytes(value) => arguments.add(value),
            Value::Uuid(value) => arguments.add(value),
        };
        added.map_err(sqlx::Error::Encode)?;
    }
    let query = sqlx::query_with(statement.text, arguments);
    Ok(query.persistent(statement.persistent))
}

/// `fetch` and `execute` of a server for a driver of sqlx. `$query` converts a statement and its
/// values to a query of the driver. A macro, because sqlx's bounds for a generic driver are longer than the
/// code.
macro_rules! fetch {
    ($query:expr) => {
        async fn fetch<T: $crate::sql::statement::AnyRow>(
            connection: &mut Self::Connection,
            statement: $crate::sql::statement::Statement,
            values: &[$crate::sql::statement::Value<'_>],
        ) -> sqlx::Result<Vec<T>> {
            let rows = $query(statement, values)?.fetch_all(connection).await?;
            rows.iter().map(T::from_row).collect()
        }

        async fn execute(
            connection: &mut Self::Connection,
            statement: $crate::sql::statement::Statement,
            values: &[$crate::sql::statement::Value<'_>],
        ) -> sqlx::Result<u64> {
            let done = $query(statement, values)?.execute(connection).await?;
            Ok(done.rows_affected())
        }
    };
}
pub(crate) use fetch;

/// The same, and what else the servers of all dialects have in common.
macro_rules! driver {
    ($query:expr) => {
        $crate::sql::statement::fetch!($query);

        async fn run(
            connection: &mut Self::Connection,
            statement: &'static str,
        ) -> sqlx::Result<()> {
            sqlx::Executor::execute(connection, statement)
                .await
                .map(drop)
        }

        fn texts() -> &'static $crate::sql::statements::Texts {
            static TEXTS: std::sync::OnceLock<$crate::sql::statements::Texts> =
                std::sync::OnceLock::new();
            TEXTS.get_or_init($crate::sql::statements::Texts::of::<Self>)
        }
    };
}
pub(crate) use driver;
