//! Redis servers and databases.

use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, AsyncConnectionConfig, Client, RedisResult};
use stocklock_testkit::proxy::Proxy;
use stocklock_testkit::servers::{PrivateServer, fresh_redis};

use super::{SOON, is_silent, soon};

/// A connection whose response timeout is [`SOON`], the limit of the tests.
async fn connect(url: &str) -> RedisResult<MultiplexedConnection> {
    let settings = AsyncConnectionConfig::new().set_response_timeout(Some(SOON));
    let client = Client::open(url)?;
    client
        .get_multiplexed_async_connection_with_config(&settings)
        .await
}

async fn set(url: &str) {
    let mut connection = connect(url).await.unwrap();
    let set: RedisResult<()> = connection.set("key", "value").await;
    set.unwrap();
}

async fn get(url: &str) -> RedisResult<Option<String>> {
    connect(url).await?.get("key").await
}

async fn is_gone(url: &str) {
    let refused = get(url).await.unwrap_err();
    assert!(refused.is_connection_refusal(), "{refused}");
}

#[tokio::test]
async fn each_test_has_an_empty_redis_database() {
    let (one, other) = tokio::join!(fresh_redis(), fresh_redis());
    set(&one.url).await;
    assert_eq!(get(&one.url).await.unwrap().as_deref(), Some("value"));
    assert_eq!(get(&other.url).await.unwrap(), None);
    let url = one.url.clone();
    drop(one);
    assert_eq!(get(&url).await.unwrap(), None);
}

#[tokio::test]
async fn killed_redis_keeps_what_its_arguments_say() {
    let log = ["--appendonly", "yes", "--appendfsync", "always"];
    for (arguments, kept) in [(&log[..], Some("value")), (&[], None)] {
        let server = PrivateServer::redis(arguments).await;
        let url = server.url().to_owned();
        set(&url).await;
        let process = server.process();
        server.kill9();
        is_gone(&url).await;
        server.restart().await;
        assert_ne!(server.process(), process);
        assert_eq!(get(&url).await.unwrap().as_deref(), kept);
        drop(server);
        is_gone(&url).await;
    }
}

#[tokio::test]
async fn stopped_redis_answers_after_it_is_resumed() {
    let server = PrivateServer::redis(&[]).await;
    let mut connection = connect(server.url()).await.unwrap();
    server.stop().await;
    let mut answer = connection.set::<_, _, ()>("key", "value");
    is_silent(&mut answer).await;
    server.resume();
    soon(answer).await.unwrap();
}

#[tokio::test]
async fn redis_dropped_while_stopped_ends() {
    let server = PrivateServer::redis(&[]).await;
    let url = server.url().to_owned();
    server.stop().await;
    drop(server);
    is_gone(&url).await;
}

#[tokio::test]
async fn exec_is_held_before_redis_executes_it() {
    let database = fresh_redis().await;
    let (proxy, url) = Proxy::before(&database.url).await;
    let mut connection = connect(&url).await.unwrap();
    let hold = proxy.hold_request(b"EXEC");
    let mut transaction = redis::pipe();
    transaction.atomic().set("key", "value").ignore();
    let mut answer = Box::pin(transaction.exec_async(&mut connection));
    tokio::select! {
        answer = &mut answer => panic!("{answer:?}, and EXEC was not held"),
        () = hold.held() => {}
    }
    assert_eq!(get(&database.url).await.unwrap(), None);
    hold.let_go();
    answer.await.unwrap();
    assert_eq!(get(&database.url).await.unwrap().as_deref(), Some("value"));
}
