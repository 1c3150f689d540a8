//! What the back end asks of a connection.
//!
//! Every method is one or a few statements that commit by themselves, or one message that ends with a
//! commit, so nothing is left open if the connection is closed in between. All times come from the
//! database's clock.

use std::fmt::Write;

use sqlx::{
    AssertSqlSafe, ColumnIndex, Database, Decode, Encode, Executor, FromRow, MySqlConnection,
    PgConnection, QueryBuilder, Result, SqlSafeStr, SqlStr, SqliteConnection, Type,
};

use crate::shared::error::LostReason;
use crate::shared::nonce::REMEMBERED;

pub(super) mod mysql;
pub(super) mod postgres;
pub(super) mod sqlite;

/// One connection to a database.
pub(super) enum Session {
    MySql(Box<MySqlConnection>),
    Postgres(Box<PgConnection>),
    Sqlite(Box<SqliteConnection>),
}

/// The statements that differ, with their parameters in this order.
struct Statements {
    /// Name, nonce. Removes the row of a lock that this nonce holds, unless nonces are buried in it.
    remove: &'static str,
    /// Name, nonce. Frees a lock that this nonce holds. The row stays.
    free: &'static str,
    /// Name, nonce, how long, the longest list. The nonce is appended to those that are not old. This also frees
    /// the lock if a late request has just acquired it.
    bury: &'static str,
    /// What is added to that list, the longest list, how long, name, nonce. Frees the lock too.
    revoke: &'static str,
    /// Name. See [`Stored`].
    read: &'static str,
    /// The id of the source, unless there is one.
    store_source: &'static str,
    /// Fails if the server refuses writes.
    check_writable: &'static str,
}

/// Evaluates an expression with the connection, of whichever database.
macro_rules! with_connection {
    ($session:expr, $connection:ident => $body:expr) => {
        match $session {
            Session::MySql(connection) => {
                let $connection = &mut **connection;
                $body
            }
            Session::Postgres(connection) => {
                let $connection = &mut **connection;
                $body
            }
            Session::Sqlite(connection) => {
                let $connection = &mut **connection;
                $body
            }
        }
    };
}

/// Calls the function of the database.
macro_rules! by_database {
    ($session:expr, $function:ident($($argument:expr),*)) => {
        match $session {
            Session::MySql(connection) => mysql::$function(connection $(, $argument)*).await,
            Session::Postgres(connection) => postgres::$function(connection $(, $argument)*).await,
            Session::Sqlite(connection) => sqlite::$function(connection $(, $argument)*).await,
        }
    };
}

impl Session {
    const fn statements(&self) -> &'static Statements {
        match self {
            Self::MySql(_) => &mysql::STATEMENTS,
            Self::Postgres(_) => &postgres::STATEMENTS,
            Self::Sqlite(_) => &sqlite::STATEMENTS,
        }
    }

    /// Fails if the server refuses writes.
    pub(super) async fn check_writable(&mut self) -> Result<()> {
        let check = self.statements().check_writable;
        with_connection!(self, connection => connection.execute(check).await.map(drop))
    }

    /// Acquires the lock if it is free, expired, or held by this nonce. Returns its row after that.
    /// `None` if it was busy, and has been removed since.
    ///
    /// A repeated request never shortens the lease, because it may arrive late.
    pub(super) async fn acquire(&mut self, ask: &Ask) -> Result<Option<Row>> {
        by_database!(self, acquire(ask))
    }

    /// Gives all these locks a lease of at least `lease` µs. Returns the nonces that hold their lock.
    pub(super) async fn renew(
        &mut self,
        names: &[String],
        nonces: &[String],
        lease: i64,
    ) -> Result<Vec<String>> {
        by_database!(self, renew(names, nonces, lease))
    }

    /// Executes a statement about a name and a nonce. Returns whether it changed a row.
    async fn change(&mut self, statement: &'static str, name: &str, nonce: &str) -> Result<bool> {
        with_connection!(self, connection => {
            let change = sqlx::query(statement).bind(name).bind(nonce);
            Ok(change.execute(connection).await?.rows_affected() > 0)
        })
    }

    /// Frees the lock if this nonce holds it. Removes the row, unless it contains buried nonces.
    /// Returns whether the nonce held it.
    pub(super) async fn release(&mut self, name: &str, nonce: &str) -> Result<bool> {
        let Statements { remove, free, .. } = self.statements();
        // A nonce may have been buried while the first statement waited for the row. On PostgreSQL, only
        // another statement reads what was committed since.
        Ok(self.change(remove, name, nonce).await? || self.change(free, name, nonce).await?)
    }

    /// Frees the lock if this nonce holds it, and buries the nonce: its requests that arrive within two minutes
    /// get no lock.
    pub(super) async fn bury(&mut self, name: &str, nonce: &str) -> Result<bool> {
        let Statements { free, bury, .. } = self.statements();
        let held = self.change(free, name, nonce).await?;
        with_connection!(self, connection => {
            let bury = sqlx::query(*bury).bind(name).bind(nonce);
            let bury = bury.bind(BURIED).bind(BURIED_MAX);
            bury.execute(connection).await.map(drop)
        })?;
        Ok(held)
    }

    /// Frees the lock if this nonce holds it, and adds its [`revocation`] to the list in the row, and the nonce
    /// itself: for [`BURIED`], and until the end of its lease. Returns whether the nonce held it.
    pub(super) async fn revoke(&mut self, name: &str, nonce: &str) -> Result<bool> {
        let revoke = self.statements().revoke;
        let revoked = format!("{nonce}{}", revocation(nonce));
        with_connection!(self, connection => {
            let revoke = sqlx::query(revoke).bind(revoked).bind(BURIED_MAX).bind(BURIED);
            let revoke = revoke.bind(name).bind(nonce);
            Ok(revoke.execute(connection).await?.rows_affected() > 0)
        })
    }

    /// Returns the buried nonces and [revocations](revocation) in the rows of these locks.
    pub(super) async fn gone(&mut self, names: &[String]) -> Result<Vec<String>> {
        with_connection!(self, connection => {
            let mut gone = QueryBuilder::new("SELECT gone FROM distributed_lock WHERE name IN (");
            push_list(&mut gone, names);
            gone.push(")");
            let gone = gone.build_query_scalar().persistent(false);
            gone.fetch_all(connection).await
        })
    }

    pub(super) async fn read(&mut self, name: &str) -> Result<Option<Stored>> {
        let read = self.statements().read;
        with_connection!(self, connection => {
            sqlx::query_as(read).bind(name).fetch_optional(connection).await
        })
    }

    /// Returns the id of the source of the tokens. Stores `candidate` if there is none.
    pub(super) async fn source(&mut self, candidate: &str) -> Result<String> {
        const READ: &str = "SELECT id FROM distributed_lock_source";
        let store = self.statements().store_source;
        with_connection!(self, connection => {
            let known = sqlx::query_scalar(READ).fetch_optional(&mut *connection);
            if let Some(id) = known.await? {
                return Ok(id);
            }
            let store = sqlx::query(store).bind(candidate);
            store.execute(&mut *connection).await?;
            sqlx::query_scalar(READ).fetch_one(connection).await
        })
    }

    /// Removes rows that have no use: free ones whose buried nonces are old, and locks of dead
    /// holders that expired ten minutes ago. Returns whether there may be more.
    pub(super) async fn sweep(&mut self) -> Result<bool> {
        let sweep = match self {
            Self::MySql(connection) => return mysql::sweep(connection).await,
            Self::Postgres(_) => postgres::SWEEP,
            Self::Sqlite(_) => sqlite::SWEEP,
        };
        with_connection!(self, connection => {
            let sweep = sqlx::query(sweep).bind(ABANDONED).bind(SWEPT_MOST);
            let swept = sweep.execute(connection).await?.rows_affected();
            Ok(swept == SWEPT_MOST.cast_unsigned())
        })
    }

    /// Checks that the database answers and has the tables.
    pub(super) async fn ping(&mut self) -> Result<()> {
        const PING: &str = "SELECT number FROM distributed_lock_source";
        with_connection!(self, connection => connection.execute(PING).await.map(drop))
    }

    /// Creates the tables, unless they exist.
    pub(super) async fn create_tables(&mut self) -> Result<()> {
        by_database!(self, create_tables())
    }
}

#[derive(Debug, Clone)]
pub(super) struct Ask {
    pub(super) name: String,
    pub(super) nonce: String,
    pub(super) owner: String,
    /// µs.
    pub(super) lease: i64,
    /// The lowest token that may be granted.
    pub(super) floor: i64,
    /// If the lock is busy, its release must wake this client.
    pub(super) is_waiting: bool,
}

/// The row of a lock: nonce of the holder, its token, the rest of its lease in µs, and whether the
/// nonce that asked is buried in it.
pub(super) type Row = (String, i64, i64, bool);

/// The row of a lock as it is stored.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) nonce: String,
    pub(super) owner: String,
    pub(super) token: i64,
    /// The rest of the lease in µs, negative after its end.
    pub(super) rest: i64,
    /// The time since the token in µs.
    pub(super) age: i64,
    /// Buried nonces and [revocations](revocation).
    pub(super) gone: String,
}

impl<'r, R: sqlx::Row> FromRow<'r, R> for Stored
where
    &'static str: ColumnIndex<R>,
    String: Decode<'r, R::Database> + Type<R::Database>,
    i64: Decode<'r, R::Database> + Type<R::Database>,
{
    fn from_row(row: &'r R) -> Result<Self> {
        Ok(Self {
            nonce: row.try_get("nonce")?,
            owner: row.try_get("owner")?,
            token: row.try_get("token")?,
            rest: row.try_get("rest")?,
            age: row.try_get("age")?,
            gone: row.try_get("gone")?,
        })
    }
}

impl Stored {
    pub(super) fn is_held_by(&self, nonce: &str) -> bool {
        self.nonce == nonce && self.rest > 0
    }
}

/// What the list of buried nonces contains if this nonce was revoked: as many characters as a nonce, but
/// no nonce begins like this.
pub(super) fn revocation(nonce: &str) -> String {
    format!("R{}", nonce.get(1..).unwrap_or_default())
}

/// Why a nonce does not hold its lock, by the lists of the rows.
pub(super) fn reason(gone: &[String], nonce: &str) -> LostReason {
    let revocation = revocation(nonce);
    if gone.iter().any(|gone| gone.contains(&revocation)) {
        LostReason::Revoked
    } else {
        LostReason::Stolen
    }
}

/// How long a nonce stays buried, in µs.
const BURIED: i64 = REMEMBERED.as_secs().cast_signed() * 1_000_000;

/// The maximum length of the list of buried nonces: 64 of them.
const BURIED_MAX: i32 = 2_048;

/// How long after its expiry the lock of a dead holder is removed, in µs.
const ABANDONED: i64 = 600_000_000;

fn hex(text: &str) -> String {
    let mut digits = String::new();
    for byte in text.bytes() {
        write!(digits, "{byte:02X}").expect("a string can be written to");
    }
    digits
}

/// Adds values with commas between them.
fn push_list<D: Database, T>(query: &mut QueryBuilder<D>, values: &[T])
where
    T: Clone + Send + for<'q> Encode<'q, D> + Type<D> + 'static,
{
    let mut list = query.separated(", ");
    for value in values {
        list.push_bind(value.clone());
    }
}

/// How many rows one sweep removes at most.
const SWEPT_MOST: i64 = 1_000;

/// A statement that was built from constants, numbers, and hexadecimal digits.
#[expect(
    clippy::disallowed_methods,
    reason = "no other text becomes part of it"
)]
fn trusted(statement: String) -> SqlStr {
    AssertSqlSafe(statement).into_sql_str()
}
