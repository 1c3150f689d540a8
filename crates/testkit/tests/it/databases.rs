//! What is left of the databases of a test on a server that stays.

use redis::{AsyncCommands as _, RedisResult};
use sqlx::{AnyConnection, Connection as _};
use stocklock_testkit::servers::{
    Backend, PrivateServer, TestDatabase, TestZooKeeper, connect_to_redis, fresh_database,
    fresh_redis,
};
use zookeeper_client::{Acls, Client, CreateMode};

async fn is_removed_on_drop(database: TestDatabase) {
    sqlx::any::install_default_drivers();
    let url = database.url.clone();
    AnyConnection::connect(&url).await.unwrap();
    drop(database);
    let refused = AnyConnection::connect(&url).await;
    refused.expect_err("it was removed");
}

#[tokio::test]
async fn database_is_removed_if_its_server_stays() {
    for backend in Backend::SERVERS {
        let server = fresh_database(backend).await;
        let database = TestDatabase::create(backend, &server.url, true).await;
        is_removed_on_drop(database.unwrap()).await;
    }
    is_removed_on_drop(fresh_database(Backend::Sqlite).await).await;
}

#[tokio::test]
async fn redis_database_is_emptied_if_its_server_stays() {
    let database = fresh_redis().await;
    let mut connection = connect_to_redis(&database.url).await.unwrap();
    let set: RedisResult<()> = connection.set("key", "value").await;
    set.unwrap();
    drop(database);
    let left: Option<String> = connection.get("key").await.unwrap();
    assert_eq!(left, None);
}

#[tokio::test]
async fn root_is_removed_if_its_server_stays() {
    let server = PrivateServer::zookeeper().await;
    let root = TestZooKeeper::create(server.url(), true).await.unwrap();
    let client = Client::connect(&root.connect).await.unwrap();
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    for path in ["/above", "/above/below"] {
        client.create(path, b"", &options).await.unwrap();
    }
    drop(root);
    let client = Client::connect(server.url()).await.unwrap();
    assert_eq!(client.list_children("/").await.unwrap(), ["zookeeper"]);
}
