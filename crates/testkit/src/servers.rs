//! Real servers for the tests, and one empty database for each test.
//!
//! `TEST_MYSQL_URL`, `TEST_POSTGRES_URL`, `TEST_REDIS_URL`, `TEST_ZOOKEEPER_CONNECT`, `TEST_REDLOCK_URLS`
//! and `TEST_REDIS_CLUSTER` name servers that the tests share. For each that is unset, the first test that
//! needs the server starts a private one for the whole process. `testkit run` starts them for all processes
//! of its command. It also sets `TEST_TEMPLATES`, the directory whose data new servers copy, and
//! `TEST_STARTED`, the servers in which tests need not remove their databases. A line on standard error
//! says which server is used. A missing program is an error that says what to install; nothing is skipped.

mod certificates;
mod cluster;
mod ensemble;
mod failover;
mod fresh;
mod galera;
mod haproxy;
mod masters;
mod patroni;
mod pgbouncer;
mod sentinels;
mod shared;

use std::path::PathBuf;

pub use certificates::Certificates;
pub use cluster::RedisCluster;
pub use ensemble::ZooKeeperEnsemble;
pub use failover::{Cluster, NODES};
pub use fresh::{fresh_database, fresh_redis, fresh_zookeeper};
pub use galera::GaleraCluster;
pub use masters::{TestMasters, fresh_masters, vote};
pub use patroni::{PatroniCluster, Replication};
pub use pgbouncer::PgBouncer;
pub use sentinels::RedisSentinels;
pub use shared::share;
pub use stocklock_servers::installed::find;
pub use stocklock_servers::redis::connect_to_redis;
pub use stocklock_servers::sql::password;
pub use stocklock_servers::{
    Backend, Nginx, PrivateServer, Program, Settings, TestDatabase, TestRedis, TestZooKeeper, ask,
    with_path,
};
use stocklock_servers::{installed, redis, sql, supervisor, zookeeper};

/// The directory of the configuration files that this repository recommends.
pub fn deploy() -> PathBuf {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy").into()
}
