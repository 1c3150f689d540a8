//! A back end that is built from the user's own client of the crate `redis`: its user, its database, its
//! protocol and its certificates.

use std::time::Duration;

use redis::{Client, TlsCertificates};
use rstest::rstest;
use stocklock_locks::LockManager;
use stocklock_locks::redis::RedisBuilder;
use stocklock_testkit::ports::free_port;
use stocklock_testkit::servers::{Certificates, PrivateServer, Program, Settings};

use super::run;
use crate::rig::eventually;
use crate::rig::redis::RedisRig;

const SOON: Duration = Duration::from_secs(10);
/// Longer than the test, so that only a message wakes a waiter.
const LONG: Duration = Duration::from_mins(2);

fn manager(client: &Client) -> LockManager {
    let builder = RedisBuilder::from_client(client.clone()).fallback(LONG);
    LockManager::new(builder.build().unwrap())
}

/// Two clients exclude each other, a waiter is woken by a message, and a holder learns of its loss.
async fn check_locks(rig: &RedisRig, client: &Client) {
    let (one, other) = (manager(client), manager(client));
    let lock = one.lock("own").lease(Duration::from_secs(6));
    let guard = lock.clone().acquire().await.unwrap();
    assert!(other.lock("own").try_acquire().await.unwrap().is_none());
    let waiter = tokio::spawn(other.lock("own").wait(LONG).acquire());
    let subscribed = async || rig.channels().await == ["lock{own}"];
    eventually("the waiter subscribes", SOON, subscribed).await;
    guard.release().await;
    let next = tokio::time::timeout(SOON, waiter).await;
    next.expect("it is woken").unwrap().unwrap().release().await;

    let guard = lock.acquire().await.unwrap();
    let mut locks = client.get_multiplexed_async_connection().await.unwrap();
    assert_eq!(run::<i64>(&mut locks, "DEL lock{own}").await, 1);
    let lost = tokio::time::timeout(SOON, guard.lost()).await;
    lost.expect("the loss is reported");
    one.shutdown().await;
    other.shutdown().await;
}

/// The user has a password. No other user may run a script or subscribe.
#[rstest]
#[case::resp2("")]
#[case::resp3("&protocol=resp3")]
#[tokio::test]
async fn own_client_keeps_its_user_database_and_protocol(#[case] protocol: &str) {
    let rig = RedisRig::start().await;
    let mut direct = rig.direct().await;
    let user = "ACL SETUSER shop on >s3cr3t ~lock{own}* ~lock:source &lock{own} +@all -@dangerous";
    let others = "ACL SETUSER default -eval -evalsha -subscribe";
    for command in [user, others] {
        assert_eq!(run::<String>(&mut direct, command).await, "OK");
    }
    let address = rig.server().address();
    let url = format!("redis://shop:s3cr3t@{address}/3?{protocol}");
    let client = Client::open(url.as_str()).unwrap();
    let builder = RedisBuilder::from_client(client.clone());
    let printed = format!("{builder:?} {:?}", builder.clone().build().unwrap());
    assert!(!printed.contains("s3cr3t"), "{printed}");
    let holder = manager(&client);
    let guard = holder.lock("own").acquire().await.unwrap();
    assert_eq!(run::<i64>(&mut direct, "DBSIZE").await, 0);
    assert_eq!(run::<String>(&mut direct, "SELECT 3").await, "OK");
    assert_eq!(run::<i64>(&mut direct, "EXISTS lock{own}").await, 1);
    guard.release().await;
    check_locks(&rig, &client).await;

    let wrong = format!("redis://shop:wrong@{address}/3");
    let error = manager(&Client::open(wrong).unwrap()).ping().await;
    let error = error.unwrap_err();
    assert!(error.is_permanent(), "{error}");
    let message = error.to_string();
    assert!(message.contains("authentication failed"), "{message}");
}

/// The certificate comes from an authority that only this client trusts.
#[tokio::test]
async fn own_client_brings_its_certificates() {
    let certificates = Certificates::create();
    let port = free_port();
    let arguments = certificates.arguments(Program::Redis, port);
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let server = PrivateServer::launch(Program::Redis, &Settings::Test, &arguments).await;
    let rig = RedisRig::before(server.unwrap()).await;
    let client = |authority: &Certificates| {
        let root = std::fs::read(authority.file("ca.pem")).unwrap();
        let certificates = TlsCertificates {
            client_tls: None,
            root_cert: Some(root),
        };
        let url = format!("rediss://localhost:{port}/");
        Client::build_with_tls(url, certificates).unwrap()
    };
    check_locks(&rig, &client(&certificates)).await;

    let stranger = manager(&client(&Certificates::create()));
    let error = stranger.ping().await.unwrap_err().to_string();
    assert!(error.contains("invalid peer certificate"), "{error}");
}
