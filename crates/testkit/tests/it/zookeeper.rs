//! ZooKeeper servers and roots.

use stocklock_testkit::proxy::Proxy;
use stocklock_testkit::servers::{PrivateServer, TestZooKeeper, fresh_zookeeper};
use zookeeper_client::{Acls, Client, CreateMode, Error};

use super::{SOON, is_silent, soon};

async fn connect(connect: &str) -> Client {
    Client::connect(connect).await.unwrap()
}

async fn create(client: &Client, path: &str) -> Result<(), Error> {
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.create(path, b"", &options).await.map(drop)
}

#[tokio::test]
async fn each_test_has_an_empty_zookeeper_root() {
    let (one, other) = tokio::join!(fresh_zookeeper(), fresh_zookeeper());
    let one = connect(&one.connect).await;
    let other = connect(&other.connect).await;
    create(&one, "/node").await.unwrap();
    assert_eq!(one.list_children("/").await.unwrap(), ["node"]);
    assert!(other.list_children("/").await.unwrap().is_empty());
}

#[tokio::test]
async fn root_is_removed_if_its_server_stays() {
    let server = PrivateServer::zookeeper().await;
    let root = TestZooKeeper::create(server.url(), true).await.unwrap();
    let client = connect(&root.connect).await;
    create(&client, "/above").await.unwrap();
    create(&client, "/above/below").await.unwrap();
    drop(root);
    let client = connect(server.url()).await;
    assert_eq!(client.list_children("/").await.unwrap(), ["zookeeper"]);
}

#[tokio::test]
async fn killed_zookeeper_keeps_its_data() {
    let server = PrivateServer::zookeeper().await;
    create(&connect(server.url()).await, "/node").await.unwrap();
    let process = server.process();
    server.kill9();
    let refused = Client::connect(server.url()).await;
    refused.expect_err("the server is dead");
    server.restart().await;
    assert_ne!(server.process(), process);
    let client = connect(server.url()).await;
    assert!(client.check_stat("/node").await.unwrap().is_some());
}

#[tokio::test]
async fn stopped_zookeeper_answers_after_it_is_resumed() {
    let server = PrivateServer::zookeeper().await;
    // The session must outlast the silence.
    let connector = Client::connector().with_session_timeout(SOON);
    let client = connector.connect(server.url()).await.unwrap();
    server.stop().await;
    let mut answer = Box::pin(create(&client, "/node"));
    is_silent(&mut answer).await;
    server.resume();
    soon(answer).await.unwrap();
}

#[tokio::test]
async fn node_is_held_before_zookeeper_creates_it() {
    let root = fresh_zookeeper().await;
    let direct = connect(&root.connect).await;
    let (proxy, through) = Proxy::before_zookeeper(&root.connect).await;
    let client = connect(&through).await;
    let hold = proxy.hold_request(b"/node-of-this-test");
    let mut answer = Box::pin(create(&client, "/node-of-this-test"));
    tokio::select! {
        answer = &mut answer => panic!("{answer:?}, and the node was not held"),
        () = hold.held() => {}
    }
    assert!(direct.list_children("/").await.unwrap().is_empty());
    hold.let_go();
    answer.await.unwrap();
    let children = direct.list_children("/").await.unwrap();
    assert_eq!(children, ["node-of-this-test"]);
}
