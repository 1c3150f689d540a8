//! An empty database for each test, on the servers that tests share.

use super::shared::Shared;
use super::{Backend, Program, TestDatabase, TestRedis, TestZooKeeper};

/// Creates an empty database for one test.
///
/// # Panics
/// If there is no server and none can be started.
pub async fn fresh_database(backend: Backend) -> TestDatabase {
    let created = if backend == Backend::Sqlite {
        TestDatabase::sqlite()
    } else {
        let server = Shared::server(backend.program()).await;
        TestDatabase::create(backend, &server.url, server.stays).await
    };
    created.unwrap_or_else(|error| panic!("no {backend:?} database: {error:#}"))
}

/// Reserves an empty Redis database for one test.
///
/// # Panics
/// If there is no server and none can be started.
pub async fn fresh_redis() -> TestRedis {
    let server = Shared::server(Program::Redis).await;
    let claimed = TestRedis::claim(&server.url).await;
    claimed.unwrap_or_else(|error| panic!("no Redis database: {error:#}"))
}

/// Creates an empty ZooKeeper root for one test.
///
/// # Panics
/// If there is no server and none can be started.
pub async fn fresh_zookeeper() -> TestZooKeeper {
    let server = Shared::server(Program::ZooKeeper).await;
    let created = TestZooKeeper::create(&server.url, server.stays).await;
    created.unwrap_or_else(|error| panic!("no ZooKeeper root: {error:#}"))
}
