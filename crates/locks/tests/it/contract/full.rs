//! The cases that only `make verify` runs: logic of the client on one more server.

use stocklock_locks::backend::Claim;
use stocklock_testkit::servers::Backend::{Mysql, Postgres, Sqlite};

use super::{CLAIMED, TWO_OF_THREE};
use crate::rig::cluster::ClusterRig;
use crate::rig::redis::RedisRig;
use crate::rig::redlock::RedLockRig;
use crate::rig::sql::SqlRig;
use crate::rig::zookeeper::ZooKeeperRig;

contract! { tokio::test;
    redlock = RedLockRig::start() => limits common_limit;
    zookeeper = ZooKeeperRig::start() => limits common_limit next_period;
    postgres = SqlRig::start(Postgres) => limits common_limit next_period;
    mysql = SqlRig::start(Mysql) => limits common_limit next_period;
    sqlite = SqlRig::start(Sqlite) => limits common_limit next_period;
    cluster = ClusterRig::start() => lasting larger revocation limits common_limit next_period periods numbers repetition;
    cluster_broken = ClusterRig::start_private() => lost_change;
    cluster_writers = ClusterRig::start(), Claim::WRITE => expiry lasting limits;
    redis_writers = RedisRig::start(), Claim::WRITE => lasting limits silence;
    redis_two_of_three = RedisRig::start(), TWO_OF_THREE => lasting limits silence;
    zookeeper_writers = ZooKeeperRig::start(), Claim::WRITE => lasting limits silence;
    zookeeper_two_of_three = ZooKeeperRig::start(), TWO_OF_THREE => lasting limits silence;
}
