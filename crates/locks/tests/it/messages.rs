//! Error messages: one line with all that an operator needs, and without secrets.

use std::fmt::{Debug, Display};

use stocklock_locks::redis::RedisBackend;
use stocklock_locks::sql::SqlBackend;
use stocklock_locks::zookeeper::ZooKeeperBackend;
use stocklock_locks::{BackendError, LockError, LockManager};
use stocklock_testkit::assert_matches;
use stocklock_testkit::ports::free_port;
use stocklock_testkit::servers::Backend::Mysql;
use stocklock_testkit::servers::connect_to_redis;

use crate::rig::redis::RedisRig;
use crate::rig::sql::SqlRig;

const SECRET: &str = "s3cr3t";

fn shows_no_secret(shown: &(impl Debug + ?Sized)) {
    for shown in [format!("{shown:?}"), format!("{shown:#?}")] {
        assert!(!shown.contains(SECRET), "{shown}");
    }
}

/// Returns the message of an error. Checks that it is one line without secrets, and that an error
/// reporter does not print its causes twice.
fn line(error: impl Display + Debug + Into<anyhow::Error>) -> String {
    shows_no_secret(&error);
    let message = error.to_string();
    let report = format!("{:#}", error.into());
    assert_eq!(report, message, "a cause is printed twice");
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(!message.contains(SECRET), "{message}");
    message
}

async fn acquire(locks: &LockManager) -> LockError {
    let lock = locks
        .lock("sku:42")
        .wait(std::time::Duration::from_millis(200));
    shows_no_secret(&lock);
    lock.acquire().await.unwrap_err()
}

#[tokio::test]
async fn unreachable_redis_is_named_in_one_line() {
    let url = format!("redis://shop:{SECRET}@127.0.0.1:{}/3", free_port());
    let builder = RedisBackend::builder(&url);
    shows_no_secret(&builder);
    let locks = LockManager::new(builder.build().unwrap());
    shows_no_secret(&locks);
    let cause = "Connection refused (os error 111)";
    assert_eq!(
        line(acquire(&locks).await),
        format!("the lock server is unavailable: redis: acquire \"sku:42\": {cause}")
    );
    assert_eq!(
        line(locks.ping().await.unwrap_err()),
        format!("redis: ping: {cause}")
    );
}

#[tokio::test]
async fn refused_redis_password_is_permanent_and_never_shown() {
    let rig = RedisRig::start().await;
    let url = format!("redis://:{SECRET}@{}/", rig.server.address());
    for require in ["other", ""] {
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg("requirepass").arg(require);
        let url_with_password = format!("redis://:other@{}/", rig.server.address());
        let direct = if require.is_empty() {
            connect_to_redis(&url_with_password).await
        } else {
            Ok(rig.direct().await)
        };
        let set: String = set.query_async(&mut direct.unwrap()).await.unwrap();
        assert_eq!(set, "OK");
        let locks = LockManager::new(RedisBackend::new(&url).unwrap());
        let error = acquire(&locks).await;
        assert_matches!(error, LockError::Unavailable(source) if source.is_permanent());
        let message = line(error);
        assert!(message.to_lowercase().contains("password"), "{message}");
    }
}

#[test]
fn invalid_redis_url_is_permanent_and_never_shown() {
    for url in [
        format!("http://shop:{SECRET}@localhost/"),
        format!("redis://shop:{SECRET}@localhost:port/"),
        format!("redis://shop:{SECRET}@localhost/database"),
        format!("shop:{SECRET}@localhost"),
    ] {
        let builder = RedisBackend::builder(&url);
        shows_no_secret(&builder);
        let error: BackendError = builder.build().unwrap_err();
        assert!(error.is_permanent(), "{error}");
        line(error);
    }
}

#[tokio::test]
async fn unreachable_zookeeper_is_named_in_one_line() {
    let backend = ZooKeeperBackend::new(&format!("127.0.0.1:{}", free_port())).unwrap();
    let locks = LockManager::new(backend);
    assert_eq!(
        line(acquire(&locks).await),
        "the lock server is unavailable: zookeeper: acquire \"sku:42\": no available hosts"
    );
}

#[test]
fn invalid_zookeeper_address_is_refused() {
    let cluster = format!("shop:{SECRET}@127.0.0.1:2181");
    let builder = ZooKeeperBackend::builder(&cluster);
    shows_no_secret(&builder);
    assert!(line(builder.build().unwrap_err()).contains("must not contain a user or password"));
    assert_eq!(
        line(ZooKeeperBackend::new("localhost:port").unwrap_err()),
        "expected host:port, found `localhost:port`"
    );
}

#[tokio::test]
async fn unreachable_database_is_named_in_one_line() {
    for scheme in ["mysql", "postgres"] {
        let url = format!("{scheme}://shop:{SECRET}@127.0.0.1:{}/shop", free_port());
        let builder = SqlBackend::builder(&url);
        shows_no_secret(&builder);
        let locks = LockManager::new(builder.build().unwrap());
        shows_no_secret(&locks);
        let message = line(acquire(&locks).await);
        let start = format!("the lock server is unavailable: {scheme}: acquire \"sku:42\": ");
        assert!(message.starts_with(&start), "{message}");
        assert!(message.contains("Connection refused"), "{message}");
    }
}

#[tokio::test]
async fn refused_database_password_is_permanent_and_never_shown() {
    let rig = SqlRig::start(Mysql).await;
    let (_, address) = rig.url().split_once('@').unwrap();
    let url = format!("mysql://stranger:{SECRET}@{address}");
    let locks = LockManager::new(SqlBackend::new(&url).unwrap());
    let error = acquire(&locks).await;
    assert_matches!(error, LockError::Unavailable(source) if source.is_permanent());
    assert!(line(error).contains("Access denied"));
}

#[test]
fn invalid_database_url_is_permanent_and_never_shown() {
    for url in [
        format!("http://shop:{SECRET}@localhost/"),
        format!("postgres://shop:{SECRET}@localhost:port/"),
        format!("mysql://shop:{SECRET}@localhost:port/"),
        format!("shop:{SECRET}@localhost"),
    ] {
        let builder = SqlBackend::builder(&url);
        shows_no_secret(&builder);
        let error: BackendError = builder.build().unwrap_err();
        assert!(error.is_permanent(), "{error}");
        line(error);
    }
}
