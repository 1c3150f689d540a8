//! ZooKeeper for the tests.

use tokio::time::timeout;
use zookeeper_client::{Acls, Client, CreateMode, Error};

use super::{SOON, is_silent};
use crate::support::proxy::Proxy;
use crate::support::services::{PrivateServer, TestZooKeeper, fresh_zookeeper};

async fn create(client: &Client, path: &str) -> Result<(), Error> {
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.create(path, b"", &options).await.map(drop)
}

#[tokio::test]
async fn every_test_has_an_empty_zookeeper_root_of_its_own() {
    let (one, other) = tokio::join!(fresh_zookeeper(), fresh_zookeeper());
    let one = Client::connect(&one.connect).await.unwrap();
    let other = Client::connect(&other.connect).await.unwrap();
    create(&one, "/node").await.unwrap();
    assert_eq!(one.list_children("/").await.unwrap(), ["node"]);
    assert!(other.list_children("/").await.unwrap().is_empty());
}

#[tokio::test]
async fn a_root_on_a_zookeeper_that_stays_is_removed_with_its_test() {
    let server = PrivateServer::zookeeper().await;
    let root = TestZooKeeper::create(server.url(), true).await.unwrap();
    let client = Client::connect(&root.connect).await.unwrap();
    create(&client, "/above").await.unwrap();
    create(&client, "/above/below").await.unwrap();
    drop(root);
    let client = Client::connect(server.url()).await.unwrap();
    assert_eq!(client.list_children("/").await.unwrap(), ["zookeeper"]);
}

#[tokio::test]
async fn a_zookeeper_that_is_killed_comes_back_with_its_data() {
    let mut server = PrivateServer::zookeeper().await;
    let client = Client::connect(server.url()).await.unwrap();
    create(&client, "/node").await.unwrap();
    let process = server.process();
    server.kill9();
    Client::connect(server.url())
        .await
        .expect_err("nobody listens any more");
    server.restart().await;
    assert_ne!(server.process(), process);
    let client = Client::connect(server.url()).await.unwrap();
    assert!(client.check_stat("/node").await.unwrap().is_some());
}

#[tokio::test]
async fn a_zookeeper_that_is_stopped_answers_when_it_is_resumed() {
    let server = PrivateServer::zookeeper().await;
    // Or the session would be over with the silence.
    let connector = Client::connector().with_session_timeout(SOON);
    let client = connector.connect(server.url()).await.unwrap();
    server.stop().await;
    let mut answer = Box::pin(create(&client, "/node"));
    is_silent(&mut answer).await;
    server.resume();
    let answered = timeout(SOON, answer).await;
    answered.expect("it answers").unwrap();
}

#[tokio::test]
async fn a_node_is_held_before_zookeeper_creates_it() {
    let root = fresh_zookeeper().await;
    let direct = Client::connect(&root.connect).await.unwrap();
    let (proxy, connect) = Proxy::before_zookeeper(&root.connect).await;
    let client = Client::connect(&connect).await.unwrap();
    let hold = proxy.hold_request(b"/node-of-this-test");
    let mut answer = Box::pin(create(&client, "/node-of-this-test"));
    tokio::select! {
        answer = &mut answer => panic!("{answer:?}, and the node was not held"),
        () = hold.held() => {}
    }
    assert!(direct.list_children("/").await.unwrap().is_empty());
    hold.let_go();
    answer.await.unwrap();
    assert_eq!(
        direct.list_children("/").await.unwrap(),
        ["node-of-this-test"]
    );
}
