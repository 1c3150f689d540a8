//! Guarded writes in SQL: a statement that changes nothing if a later holder has already written.
//!
//! The guarded table needs two columns, which say who wrote a row last:
//!
//! ```sql
//! fence_token  bigint       NOT NULL DEFAULT 0,
//! fence_source varchar(255) NOT NULL DEFAULT ''
//! ```
//!
//! Each `UPDATE` by a holder of the lock stores them, and compares them with those of the last writer:
//!
//! ```sql
//! UPDATE account SET balance = ?, fence_token = ?, fence_source = ?
//! WHERE id = ? AND (fence_source <> ? OR fence_token <= ?)
//! ```
//!
//! Bind, in this order: the data, [token](LockGuard::token), [source](LockGuard::source), the key, source,
//! token. If it changes no row, a later holder has written, or the row is missing; this holder must stop.
//! With [`sqlx::QueryBuilder`], [`push_set`] and [`push_condition`] add the two parts.
//!
//! - Insert the row before its first guarded `UPDATE`. A late `INSERT` of a row that exists fails by itself.
//! - If the row is deleted and inserted again, its token is lost, and the next write passes. Mark rows as
//!   deleted instead.
//! - Other MySQL drivers than sqlx may count only rows that differ. There, a repeated write of the same
//!   data by the same holder changes no row, although no later holder has written.
//!
//! Tokens of different sources cannot be compared, so a change of the source passes. A late write can
//! also arrive *before* the first write of the next holder, and then passes. If the new value depends
//! on one that was read, compare a version of the row too (`AND version = ?`).

use sqlx::{Database, Encode, QueryBuilder, Type};

use crate::api::guard::LockGuard;

/// Adds the part of an `UPDATE` that stores the token: `fence_token = …, fence_source = …`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use stocklock_locks::{LockManager, local::LocalBackend};
/// use sqlx::{Postgres, QueryBuilder};
/// use stocklock_locks::sql::fence;
///
/// # let locks = LockManager::new(LocalBackend::new());
/// let guard = locks.lock("account:7").acquire().await?;
/// let mut update = QueryBuilder::<Postgres>::new("UPDATE account SET balance = ");
/// update.push_bind(100).push(", ");
/// fence::push_set(&mut update, &guard);
/// update.push(" WHERE id = ").push_bind(7).push(" AND ");
/// fence::push_condition(&mut update, &guard);
/// assert_eq!(
///     update.sql().as_str(),
///     "UPDATE account SET balance = $1, fence_token = $2, fence_source = $3 \
///      WHERE id = $4 AND (fence_source <> $5 OR fence_token <= $6)"
/// );
/// // let written = update.build().execute(&mut connection).await?.rows_affected();
/// # guard.release().await;
/// # Ok(()) }
/// ```
pub fn push_set<DB: Database>(update: &mut QueryBuilder<DB>, guard: &LockGuard)
where
    i64: for<'q> Encode<'q, DB> + Type<DB>,
    String: for<'q> Encode<'q, DB> + Type<DB>,
{
    update.push("fence_token = ").push_bind(guard.token().get());
    update.push(", fence_source = ");
    update.push_bind(guard.source().to_owned());
}

/// Adds the condition that no later holder has written: `(fence_source <> … OR fence_token <= …)`.
pub fn push_condition<DB: Database>(update: &mut QueryBuilder<DB>, guard: &LockGuard)
where
    i64: for<'q> Encode<'q, DB> + Type<DB>,
    String: for<'q> Encode<'q, DB> + Type<DB>,
{
    update.push("(fence_source <> ");
    update.push_bind(guard.source().to_owned());
    update.push(" OR fence_token <= ");
    update.push_bind(guard.token().get()).push(")");
}
