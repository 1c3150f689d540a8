//! The cases that only `make verify` runs: logic of the client on one more server.

use stocklock_locks::LockManager;
use stocklock_testkit::servers::Backend::{Mysql, Postgres, Sqlite};

use super::{admin, coordination, faults, jobs, leases, multi, two_of_three};
use crate::rig::claiming::Claiming;
use crate::rig::cluster::ClusterRig;
use crate::rig::redis::RedisRig;
use crate::rig::redlock::RedLockRig;
use crate::rig::sql::SqlRig;
use crate::rig::zookeeper::ZooKeeperRig;

untokened_client_contract! { redlock, RedLockRig::start(), tokio::test }
client_contract! { zookeeper, ZooKeeperRig::start(), tokio::test }
client_contract! { postgres, SqlRig::start(Postgres), tokio::test }
client_contract! { mysql, SqlRig::start(Mysql), tokio::test }
client_contract! { sqlite, SqlRig::start(Sqlite), tokio::test }
larger_contract! {
    client_contract, cluster, ClusterRig::start(), tokio::test,
    jobs: [
        job_runs_once_per_period_over_processes, job_runs_again_after_its_period,
        job_longer_than_its_period_runs_alone
    ]
}
coordination_contract! { cluster_numbers, ClusterRig::start(), tokio::test, repeated_change_counts_once }
contract! {
    cluster_broken, ClusterRig::start_private(), tokio::test,
    coordination: [change_with_lost_answer_counts_once, silent_server_is_reported_to_participants]
}
long_claim_contract! {
    claim_contract, cluster_writers, Claiming::start(ClusterRig::start(), LockManager::write), tokio::test
}
claim_contracts! {
    long_claim_contract(contract), [redis_writers, redis_two_of_three], RedisRig::start(), tokio::test,
    faults: [silent_server_is_reported_as_unavailable, blocked_release_is_repeated]
}
claim_contracts! {
    long_claim_contract(contract), [zookeeper_writers, zookeeper_two_of_three], ZooKeeperRig::start(),
    tokio::test, faults: [silent_server_is_reported_as_unavailable, blocked_release_is_repeated]
}
