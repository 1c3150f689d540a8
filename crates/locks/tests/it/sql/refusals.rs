//! Databases that refuse a request: it was not executed, and nothing is sent afterwards.

use std::time::Duration;

use rstest::rstest;
use stocklock_locks::LockError;
use stocklock_locks::backend::{Backend as _, Left};
use stocklock_locks::sql::SqlBackend;
use stocklock_testkit::assert_matches;
use stocklock_testkit::servers::Backend::{self, Mysql, Postgres, Sqlite};
use tokio::time::Instant;

use crate::rig::sql::SqlRig;
use crate::rig::{Rig, RigExt, Served as _, eventually, request, use_lock};

/// `root` may write to a read-only server.
const CREATE_USER: &str = "CREATE USER shop IDENTIFIED BY 'shop'; GRANT ALL ON stocklock.* TO shop";

/// How many requests the server has counted: statements on MariaDB, transactions on PostgreSQL.
async fn requests(rig: &SqlRig, kind: Backend) -> i64 {
    let count = match kind {
        Mysql => {
            "SELECT CAST(variable_value AS SIGNED) FROM information_schema.global_status
            WHERE variable_name = 'Questions'"
        }
        Postgres | Sqlite => {
            "SELECT xact_commit + xact_rollback FROM pg_stat_database
            WHERE datname = current_database()"
        }
    };
    rig.number(count).await
}

/// An old primary after a failover. Neither the acquisition nor a release of what it might have left is sent
/// again and again, and not over a new connection each time.
#[rstest]
#[tokio::test]
async fn refused_acquisition_costs_one_request(#[values(Mysql, Postgres)] kind: Backend) {
    const TIMES: i64 = 100;
    let rig = SqlRig::start_private(kind).await;
    let mut url = rig.url();
    let read_only = if kind == Mysql {
        rig.change(CREATE_USER).await;
        let (_, server) = url.split_once('@').expect("the URL names a user");
        url = format!("mysql://shop:shop@{server}");
        ["SET GLOBAL read_only = 1", "SELECT 1"]
    } else {
        [
            "ALTER SYSTEM SET default_transaction_read_only = on",
            "SELECT pg_reload_conf()",
        ]
    };
    let manager = rig.builder_for(SqlBackend::new(&url).unwrap()).build();
    use_lock(&manager, "warm").await;
    for statement in read_only {
        rig.change(statement).await;
    }
    let refuses = async || match manager.lock("first").try_acquire().await {
        Ok(Some(guard)) => {
            guard.release().await;
            false
        }
        Ok(None) => false,
        Err(_) => true,
    };
    eventually("writes are refused", Duration::from_secs(20), refuses).await;
    let before = (requests(&rig, kind).await, rig.proxy().connections());
    let begin = Instant::now();
    for number in 0..TIMES {
        let lock = manager.lock(&format!("n{number}"));
        let error = lock.try_acquire().await.unwrap_err();
        assert_matches!(error, LockError::Unavailable(error) if !error.is_permanent());
    }
    // It waits for all releases.
    manager.shutdown().await;
    let connections = rig.proxy().connections() - before.1;
    // One per second at most, each of the five of the back end, and one for a sweep of old rows.
    let most = 7 + begin.elapsed().as_secs();
    assert!(connections <= most, "{connections}");
    let sent = requests(&rig, kind).await - before.0;
    // An acquisition is up to three statements. New connections, and this test, need some.
    let most = 3 * TIMES + 20 * i64::try_from(most).unwrap();
    assert!(sent <= most, "{sent}, {connections} connections");
}

/// The server has executed nothing, so there is nothing to release, and no nonce to bury.
#[rstest]
#[tokio::test]
async fn refused_attempt_needs_no_release(#[values(Sqlite, Mysql, Postgres)] kind: Backend) {
    let rig = SqlRig::start(kind).await;
    let refuse = match kind {
        Sqlite => {
            "CREATE TRIGGER refuse BEFORE INSERT ON distributed_lock
            BEGIN SELECT RAISE(ABORT, 'refused'); END"
        }
        Mysql | Postgres => {
            "ALTER TABLE distributed_lock ADD CONSTRAINT refuse CHECK (name <> 'refused')"
        }
    };
    rig.change(refuse).await;
    let mut contender = rig.backend().contender(request("refused", rig.lease()));
    for _ in 0..2 {
        let error = contender.attempt().await.unwrap_err();
        assert!(!error.is_permanent(), "{error}");
    }
    assert_eq!(contender.left(), Left::Nothing);
}
