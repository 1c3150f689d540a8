//! What only a table of locks has: rows that others can read, late requests that meet a row, and
//! clocks that go back.

use std::time::Duration;

use rstest::rstest;
use stocklock_locks::sql::SqlBackend;
use stocklock_locks::{LockError, LockManager, ReleaseOutcome};
use stocklock_testkit::assert_matches;
use stocklock_testkit::servers::Backend::{self, Mysql, Postgres, Sqlite};

use crate::rig::sql::SqlRig;
use crate::rig::{Faults, Rig, RigExt, eventually, source_of, try_lock, use_lock};

mod refusals;
mod schedules;
mod wakeups;

/// The process and the acquisition that hold a lock can be read, and who holds it until when.
#[rstest]
#[tokio::test]
async fn row_shows_owner_token_and_expiry(#[values(Sqlite, Mysql, Postgres)] kind: Backend) {
    let rig = SqlRig::start(kind).await;
    let backend = rig.builder_of_backend().owner("shop-1 上海").build();
    let guard = rig.builder_for(backend.unwrap()).build();
    let guard = guard.lock("sku:42").acquire().await.unwrap();
    let token = guard.token().get();
    // The token is the time of the grant, so the lease ends after it.
    let shown = format!(
        "SELECT count(*) FROM distributed_lock WHERE name = 'sku:42' AND owner = 'shop-1 上海'
            AND length(nonce) = 32 AND token = {token}
            AND expires_at BETWEEN {token} + 1900000 AND {token} + 2100000"
    );
    assert_eq!(rig.number(shown).await, 1);
    guard.release().await;
    assert_eq!(rig.rows().await, 0);
}

/// Holders that died leave their rows. An acquisition takes over one of them, and no other.
#[rstest]
#[tokio::test]
async fn expired_lock_is_taken_over_alone(#[values(Sqlite, Mysql, Postgres)] kind: Backend) {
    let rig = SqlRig::start(kind).await;
    let now = rig.clock().await;
    for (name, expires_at) in [("one", 0), ("other", 0), ("recent", now)] {
        rig.change(dead_holder(name, now, expires_at)).await;
    }
    let guard = try_lock(&rig.manager(), "one").await.unwrap();
    assert!(guard.token().get() > now);
    assert_eq!(rig.rows().await, 3);
    // The first release of a client also removes what expired more than ten minutes ago.
    guard.release().await;
    let one = async || rig.rows().await == 1;
    eventually("two rows are removed", rig.soon() * 5, one).await;
    let recent = "SELECT count(*) FROM distributed_lock WHERE name = 'recent'";
    assert_eq!(rig.number(recent).await, 1);
}

/// Waits until no row is left.
async fn swept(rig: &SqlRig) {
    let empty = async || rig.rows().await == 0;
    eventually("the rows are removed", Duration::from_mins(1), empty).await;
}

/// The first sweep finds more rows of dead processes than one statement removes. Rows that expire after it are
/// removed while a process uses locks.
#[rstest]
#[tokio::test]
async fn sweeps_continue_while_locks_are_released(
    #[values(Sqlite, Mysql, Postgres)] kind: Backend,
) {
    let rig = SqlRig::start(kind).await;
    let manager = rig.manager();
    let rows: Vec<String> = (0..2_500)
        .map(|number| format!("('dead-{number}', 'dead', 'dead', 1, 1)"))
        .collect();
    let insert = "INSERT INTO distributed_lock (name, nonce, owner, token, expires_at) VALUES";
    rig.change(format!("{insert} {}", rows.join(", "))).await;
    use_lock(&manager, "other").await;
    swept(&rig).await;
    rig.change(dead_holder("second", 1, 1)).await;
    let removed = async || {
        use_lock(&manager, "other").await;
        rig.rows().await == 0
    };
    eventually("the row is removed", Duration::from_mins(1), removed).await;
}

/// A row as a holder leaves it that died.
fn dead_holder(name: &str, token: i64, expires_at: i64) -> String {
    format!(
        "INSERT INTO distributed_lock (name, nonce, owner, token, expires_at)
        VALUES ('{name}', 'dead', 'dead', {token}, {expires_at})"
    )
}

/// The clock went back by an hour after the last acquisition. The row of an expired lock still has
/// its token; after a release the client still knows it.
#[rstest]
#[tokio::test]
async fn token_grows_if_clock_goes_back(#[values(Sqlite, Mysql, Postgres)] kind: Backend) {
    let rig = SqlRig::start(kind).await;
    let manager = rig.manager();
    let future = rig.clock().await + 3_600_000_000;
    rig.change(dead_holder("held", future, 0)).await;
    for _ in 0..3 {
        let guard = try_lock(&manager, "held").await.unwrap();
        assert!(guard.token().get() > future);
        guard.release().await;
        assert_eq!(rig.rows().await, 0);
    }
}

/// SQLite's clock counts in milliseconds, but no two acquisitions get the same token.
#[tokio::test]
async fn tokens_grow_within_a_millisecond_on_sqlite() {
    let rig = SqlRig::start(Sqlite).await;
    let managers = [rig.manager(), rig.manager()];
    let mut last = 0;
    for round in 0..200 {
        let guard = try_lock(&managers[round % 2], "fast").await.unwrap();
        assert!(guard.token().get() > last);
        last = guard.token().get();
        guard.release().await;
    }
}

/// The request of a first attempt arrives after the second one acquired and released the lock.
#[rstest]
#[tokio::test]
async fn late_request_of_released_lock_takes_nothing(#[values(Mysql, Postgres)] kind: Backend) {
    let rig = SqlRig::start(kind).await;
    let manager = rig.manager();
    use_lock(&manager, "warm").await;
    let hold = rig.proxy().hold_and_cut(&rig.on_the_wire("late"));
    let lock = manager.lock("late").wait(Duration::from_secs(5));
    let guard = lock.acquire().await.unwrap();
    hold.held().await;
    let outcome = guard.release().await;
    assert_matches!(outcome, ReleaseOutcome::Released { .. });
    // The nonce is buried, so the row stays for two minutes.
    assert_eq!((rig.left().await, rig.rows().await), (0, 1));
    drop(hold);
    let arrived = async || rig.connections().await <= 2;
    eventually("the request was answered", rig.soon() * 4, arrived).await;
    assert_eq!(rig.left().await, 0);
    // Others are not affected.
    use_lock(&rig.manager(), "late").await;
    // The row is removed after the two minutes.
    assert_eq!(rig.rows().await, 1);
    let past = "UPDATE distributed_lock SET gone_until = 1";
    assert_eq!(rig.change(past).await, 1);
    use_lock(&rig.manager(), "other").await;
    swept(&rig).await;
}

#[rstest]
#[tokio::test]
async fn missing_tables_are_a_permanent_error(#[values(Sqlite, Mysql, Postgres)] kind: Backend) {
    let rig = SqlRig::start(kind).await;
    rig.change("DROP TABLE distributed_lock_source").await;
    let manager = rig.manager();
    let error = manager.lock("none").acquire().await.unwrap_err();
    assert!(error.to_string().contains("distributed_lock"), "{error}");
    assert_matches!(error, LockError::Unavailable(error) if error.is_permanent());
    assert!(manager.ping().await.unwrap_err().is_permanent());
}

/// Several processes start at the same time, each of which creates the tables.
#[rstest]
#[tokio::test]
async fn tables_are_created_once(#[values(Sqlite, Mysql, Postgres)] kind: Backend) {
    let rig = SqlRig::start(kind).await;
    let backends: Vec<SqlBackend> = (0..4).map(|_| rig.outsider()).collect();
    for table in ["distributed_lock", "distributed_lock_source"] {
        rig.change(format!("DROP TABLE {table}")).await;
    }
    let created = backends.iter().map(SqlBackend::create_tables);
    for created in futures_util::future::join_all(created).await {
        created.unwrap();
    }
    let managers: Vec<_> = backends.into_iter().map(LockManager::new).collect();
    let sources = managers.iter().map(|one| source_of(one, "source"));
    let sources = futures_util::future::join_all(sources).await;
    let is_one = sources.iter().all(|each| *each == sources[0]);
    assert!(is_one, "{sources:?}");
}

/// PostgreSQL refuses the renewal that a connection has prepared. A new connection renews.
#[tokio::test]
async fn renewals_go_on_after_a_change_of_a_columns_type() {
    const EXPIRY: &str = "SELECT expires_at FROM distributed_lock WHERE name = 'long'";
    let rig = SqlRig::start(Postgres).await;
    let manager = rig.manager();
    let guard = manager.lock("long").acquire().await.unwrap();
    for change in [
        "SELECT 1",
        "ALTER TABLE distributed_lock ALTER COLUMN nonce TYPE varchar(64)",
    ] {
        rig.change(change).await;
        let expiry = rig.number(EXPIRY).await;
        let renewed = async || rig.number(EXPIRY).await > expiry;
        eventually("the lock is renewed", Duration::from_mins(1), renewed).await;
    }
    guard.check().unwrap();
    guard.release().await;
}
