//! What the back end asks of a connection. Each database implements it with its own statements.
//!
//! Every method is one or a few statements that commit by themselves, or one message that ends with a
//! commit, so nothing is left open if the connection is closed in between. All times come from the
//! database's clock.

use std::fmt::Write;

use async_trait::async_trait;
use sqlx::{AssertSqlSafe, ColumnIndex, Decode, FromRow, Result, SqlSafeStr, SqlStr, Type};

use crate::shared::error::LostReason;
use crate::shared::nonce::REMEMBERED;

/// One connection to the database.
#[async_trait]
pub(super) trait Session: Send {
    /// Acquires the lock if it is free, expired, or held by this nonce. Returns its row after that.
    /// `None` if it was busy, and has been removed since.
    ///
    /// A repeated request never shortens the lease, because it may arrive late.
    async fn acquire(&mut self, ask: &Ask) -> Result<Option<Row>>;

    /// Gives all these locks a lease of at least `lease` µs. Returns the nonces that hold their lock.
    async fn renew(
        &mut self,
        names: &[String],
        nonces: &[String],
        lease: i64,
    ) -> Result<Vec<String>>;

    /// Frees the lock if this nonce holds it. Removes the row, unless it contains buried nonces.
    /// Returns whether the nonce held it.
    async fn release(&mut self, name: &str, nonce: &str) -> Result<bool>;

    /// Frees the lock if this nonce holds it, and buries the nonce: its requests that arrive within two minutes get no lock.
    async fn bury(&mut self, name: &str, nonce: &str) -> Result<bool>;

    /// Frees the lock if this nonce holds it, and adds [`revoked`] to the list in the row: for [`BURIED`],
    /// and until the end of its lease. Returns whether the nonce held it.
    async fn revoke(&mut self, name: &str, nonce: &str) -> Result<bool>;

    /// Returns the buried nonces and [revocations](revocation) in the rows of these locks.
    async fn gone(&mut self, names: &[String]) -> Result<Vec<String>>;

    /// Returns the row of a lock.
    async fn read(&mut self, name: &str) -> Result<Option<Stored>>;

    /// Returns the id of the source of the tokens. Stores `candidate` if there is none.
    async fn source(&mut self, candidate: &str) -> Result<String>;

    /// Removes rows that have no use: free ones whose buried nonces are old, and locks of dead
    /// holders that expired ten minutes ago. Returns whether there may be more.
    async fn sweep(&mut self) -> Result<bool>;

    /// Checks that the database answers and has the tables.
    async fn ping(&mut self) -> Result<()>;

    /// Creates the tables, unless they exist.
    async fn create_tables(&mut self) -> Result<()>;
}

/// A request to acquire a lock.
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
    /// Returns whether this nonce holds the lock.
    pub(super) fn is_held_by(&self, nonce: &str) -> bool {
        self.nonce == nonce && self.rest > 0
    }
}

/// What the list of buried nonces contains if this nonce was revoked: as many characters as a nonce, but
/// no nonce begins like this.
pub(super) fn revocation(nonce: &str) -> String {
    format!("R{}", nonce.get(1..).unwrap_or_default())
}

/// What a revocation adds to the list: it also buries the nonce.
pub(super) fn revoked(nonce: &str) -> String {
    format!("{nonce}{}", revocation(nonce))
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
pub(super) const BURIED: i64 = REMEMBERED.as_secs().cast_signed() * 1_000_000;

/// The maximum length of the list of buried nonces: 64 of them.
pub(super) const BURIED_MAX: u32 = 2_048;

/// How long after its expiry the lock of a dead holder is removed, in µs.
pub(super) const ABANDONED: i64 = 600_000_000;

/// The bytes of the text in hexadecimal.
pub(super) fn hex(text: &str) -> String {
    let mut digits = String::new();
    for byte in text.bytes() {
        write!(digits, "{byte:02X}").expect("a string can be written to");
    }
    digits
}

/// How many rows one sweep removes at most.
pub(super) const SWEPT_MOST: u32 = 1_000;

/// A statement that was built from constants, numbers, and hexadecimal digits.
#[expect(
    clippy::disallowed_methods,
    reason = "no other text becomes part of it"
)]
pub(super) fn trusted(statement: String) -> SqlStr {
    AssertSqlSafe(statement).into_sql_str()
}
