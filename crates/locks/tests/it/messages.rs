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

use crate::rig::Served as _;
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

/// The message of an acquisition at a server that is away.
async fn unreachable(builder: &impl Debug, locks: LockManager) -> String {
    shows_no_secret(builder);
    shows_no_secret(&locks);
    line(acquire(&locks).await)
}

#[tokio::test]
async fn unreachable_server_is_named_in_one_line() {
    let away =
        |server: &str| format!("the lock server is unavailable: {server}: acquire \"sku:42\": ");
    let address = format!("127.0.0.1:{}", free_port());
    let builder = RedisBackend::builder(&format!("redis://shop:{SECRET}@{address}/3"));
    let redis = LockManager::new(builder.clone().build().unwrap());
    let cause = "Connection refused (os error 111)";
    let message = unreachable(&builder, redis.clone()).await;
    assert_eq!(message, away("redis") + cause);
    let message = line(redis.ping().await.unwrap_err());
    assert_eq!(message, format!("redis: ping: {cause}"));
    let builder = ZooKeeperBackend::builder(&address);
    let zookeeper = LockManager::new(builder.clone().build().unwrap());
    let message = unreachable(&builder, zookeeper).await;
    assert_eq!(message, away("zookeeper") + "no available hosts");
    for scheme in ["mysql", "postgres"] {
        let builder = SqlBackend::builder(&format!("{scheme}://shop:{SECRET}@{address}/shop"));
        let database = LockManager::new(builder.clone().build().unwrap());
        let message = unreachable(&builder, database).await;
        assert!(message.starts_with(&away(scheme)), "{message}");
        assert!(message.contains("Connection refused"), "{message}");
    }
}

#[tokio::test]
async fn refused_redis_password_is_permanent_and_never_shown() {
    let rig = RedisRig::start().await;
    let url = format!("redis://:{SECRET}@{}/", rig.server().address());
    for require in ["other", ""] {
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg("requirepass").arg(require);
        let url_with_password = format!("redis://:other@{}/", rig.server().address());
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

#[tokio::test]
async fn refused_database_password_is_permanent_and_never_shown() {
    let rig = SqlRig::start(Mysql).await;
    let url = rig.url();
    let (_, address) = url.split_once('@').unwrap();
    let url = format!("mysql://stranger:{SECRET}@{address}");
    let locks = LockManager::new(SqlBackend::new(&url).unwrap());
    let error = acquire(&locks).await;
    assert_matches!(error, LockError::Unavailable(source) if source.is_permanent());
    assert!(line(error).contains("Access denied"));
}

/// Returns the message of a permanent error of these settings.
fn refused(builder: &impl Debug, built: Result<impl Debug, BackendError>) -> String {
    shows_no_secret(builder);
    let error = built.unwrap_err();
    assert!(error.is_permanent(), "{error}");
    line(error)
}

#[test]
fn invalid_url_is_permanent_and_never_shown() {
    let user = format!("shop:{SECRET}@localhost");
    let redis = ["http://U/", "redis://U:port/", "redis://U/database", "U"];
    for url in redis.map(|url| url.replace('U', &user)) {
        let builder = RedisBackend::builder(&url);
        refused(&builder, builder.clone().build());
    }
    let sql = ["http://U/", "postgres://U:port/", "mysql://U:port/", "U"];
    for url in sql.map(|url| url.replace('U', &user)) {
        let builder = SqlBackend::builder(&url);
        refused(&builder, builder.clone().build());
    }
    let builder = ZooKeeperBackend::builder(&format!("{user}:2181"));
    let message = refused(&builder, builder.clone().build());
    assert!(
        message.contains("must not contain a user or password"),
        "{message}"
    );
    assert_eq!(
        line(ZooKeeperBackend::new("localhost:port").unwrap_err()),
        "expected host:port, found `localhost:port`"
    );
}
