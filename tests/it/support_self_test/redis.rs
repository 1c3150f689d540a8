//! Redis for the tests.

use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, Client, RedisResult};
use tokio::time::timeout;

use super::{SOON, is_silent};
use crate::support::proxy::Proxy;
use crate::support::services::{PrivateServer, fresh_redis};

/// A connection that waits for as long as its test does.
async fn connect(url: &str) -> RedisResult<MultiplexedConnection> {
    let settings = redis::AsyncConnectionConfig::new().set_response_timeout(Some(SOON));
    let client = Client::open(url)?;
    client
        .get_multiplexed_async_connection_with_config(&settings)
        .await
}

async fn set(url: &str, key: &str) -> RedisResult<()> {
    connect(url).await?.set(key, "value").await
}

async fn get(url: &str, key: &str) -> RedisResult<Option<String>> {
    connect(url).await?.get(key).await
}

#[tokio::test]
async fn every_test_has_an_empty_redis_database_of_its_own() {
    let (one, other) = tokio::join!(fresh_redis(), fresh_redis());
    set(&one.url, "key").await.unwrap();
    assert_eq!(
        get(&one.url, "key").await.unwrap().as_deref(),
        Some("value")
    );
    assert_eq!(get(&other.url, "key").await.unwrap(), None);
    let url = one.url.clone();
    drop(one);
    assert_eq!(get(&url, "key").await.unwrap(), None);
}

#[tokio::test]
async fn a_redis_that_is_killed_keeps_what_its_arguments_make_it_keep() {
    for (arguments, kept) in [
        (
            &["--appendonly", "yes", "--appendfsync", "always"][..],
            Some("value"),
        ),
        (&[], None),
    ] {
        let mut server = PrivateServer::redis(arguments).await;
        let url = server.url().to_owned();
        set(&url, "key").await.unwrap();
        let process = server.process();
        server.kill9();
        let refused = get(&url, "key").await.unwrap_err();
        assert!(refused.is_connection_refusal(), "{refused}");
        server.restart().await;
        assert_ne!(server.process(), process);
        assert_eq!(get(&url, "key").await.unwrap().as_deref(), kept);

        drop(server);
        let refused = get(&url, "key").await.unwrap_err();
        assert!(refused.is_connection_refusal(), "{refused}");
    }
}

#[tokio::test]
async fn a_redis_that_is_stopped_answers_when_it_is_resumed() {
    let server = PrivateServer::redis(&[]).await;
    let mut connection = connect(server.url()).await.unwrap();
    server.stop().await;
    let mut answer = connection.set::<_, _, ()>("key", "value");
    is_silent(&mut answer).await;
    server.resume();
    let answered = timeout(SOON, answer).await;
    answered.expect("it answers").unwrap();
}

#[tokio::test]
async fn a_redis_that_is_dropped_while_it_is_stopped_ends() {
    let server = PrivateServer::redis(&[]).await;
    let url = server.url().to_owned();
    server.stop().await;
    drop(server);
    let refused = get(&url, "key").await.unwrap_err();
    assert!(refused.is_connection_refusal(), "{refused}");
}

#[tokio::test]
async fn an_exec_is_held_before_redis_carries_it_out() {
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
    assert_eq!(get(&database.url, "key").await.unwrap(), None);
    hold.let_go();
    answer.await.unwrap();
    let written = get(&database.url, "key").await.unwrap();
    assert_eq!(written.as_deref(), Some("value"));
}
