//! What an operator reads: one line that says enough, and never a secret.

use std::fmt::{Debug, Display};

use stocklock_locks::redis::RedisBackend;
use stocklock_locks::zookeeper::ZooKeeperBackend;
use stocklock_locks::{BackendError, LockError, LockManager};
use stocklock_testkit::ports::free_port;

use crate::rig::redis::RedisRig;

const SECRET: &str = "s3cr3t";

fn shows_no_secret(shown: &(impl Debug + ?Sized)) {
    for shown in [format!("{shown:?}"), format!("{shown:#?}")] {
        assert!(!shown.contains(SECRET), "{shown}");
    }
}

/// The whole text of an error, as a reporter of its chain would print it.
fn line(error: impl Display + Debug + Into<anyhow::Error>) -> String {
    shows_no_secret(&error);
    let said = error.to_string();
    assert_eq!(format!("{:#}", error.into()), said, "said twice");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(!said.contains(SECRET), "{said}");
    said
}

async fn acquire(locks: &LockManager) -> LockError {
    let lock = locks
        .lock("sku:42")
        .wait(std::time::Duration::from_millis(200));
    shows_no_secret(&lock);
    lock.acquire().await.unwrap_err()
}

#[tokio::test]
async fn a_redis_that_is_not_there() {
    let url = format!("redis://shop:{SECRET}@127.0.0.1:{}/3", free_port());
    let builder = RedisBackend::builder(&url);
    shows_no_secret(&builder);
    let locks = LockManager::new(builder.build().unwrap());
    shows_no_secret(&locks);
    let why = "Connection refused (os error 111)";
    assert_eq!(
        line(acquire(&locks).await),
        format!("the lock server is unavailable: redis: acquire \"sku:42\": {why}")
    );
    assert_eq!(
        line(locks.ping().await.unwrap_err()),
        format!("redis: ping: {why}")
    );
}

#[tokio::test]
async fn a_redis_that_refuses_the_password() {
    let rig = RedisRig::start().await;
    let url = format!("redis://:{SECRET}@{}/", rig.server.address());
    for require in ["other", ""] {
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg("requirepass").arg(require);
        let client = redis::Client::open(format!("redis://:other@{}/", rig.server.address()));
        let direct = if require.is_empty() {
            client.unwrap().get_multiplexed_async_connection().await
        } else {
            Ok(rig.direct().await)
        };
        let set: String = set.query_async(&mut direct.unwrap()).await.unwrap();
        assert_eq!(set, "OK");
        let locks = LockManager::new(RedisBackend::new(&url).unwrap());
        let error = acquire(&locks).await;
        assert!(
            matches!(&error, LockError::Unavailable(source) if source.is_permanent()),
            "{error}"
        );
        let said = line(error);
        assert!(said.to_lowercase().contains("password"), "{said}");
    }
}

#[test]
fn a_url_that_is_none_of_redis() {
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
async fn a_zookeeper_that_is_not_there() {
    let backend = ZooKeeperBackend::new(&format!("127.0.0.1:{}", free_port())).unwrap();
    let locks = LockManager::new(backend);
    assert_eq!(
        line(acquire(&locks).await),
        "the lock server is unavailable: zookeeper: acquire \"sku:42\": no available hosts"
    );
}

#[test]
fn a_zookeeper_connection_string_that_is_none() {
    let cluster = format!("shop:{SECRET}@127.0.0.1:2181");
    let builder = ZooKeeperBackend::builder(&cluster);
    shows_no_secret(&builder);
    assert!(line(builder.build().unwrap_err()).contains("neither user nor password"));
    assert_eq!(
        line(ZooKeeperBackend::new("localhost:port").unwrap_err()),
        "`localhost:port` is not host:port"
    );
}
