//! The example `tour` on real servers.

use std::time::Duration;

use stocklock_testkit::process::Process;
use stocklock_testkit::servers::{Backend, fresh_database, fresh_masters, fresh_zookeeper};

use crate::rig::redis::RedisRig;
use crate::support::holder::example;

/// Every supported pair, in the order of the output.
const ROWS: [&str; 33] = [
    "ok redis     lock",
    "ok redis     multi-lock",
    "ok redis     leader",
    "ok redis     once-per",
    "ok redis     read-write-lock",
    "ok redis     permits",
    "ok redis     number",
    "ok redis     latch",
    "ok redis     barrier",
    "ok zookeeper lock",
    "ok zookeeper multi-lock",
    "ok zookeeper leader",
    "ok zookeeper once-per",
    "ok zookeeper read-write-lock",
    "ok zookeeper permits",
    "ok zookeeper number",
    "ok zookeeper latch",
    "ok zookeeper barrier",
    "ok postgres  lock",
    "ok postgres  multi-lock",
    "ok postgres  leader",
    "ok postgres  once-per",
    "ok mariadb   lock",
    "ok mariadb   multi-lock",
    "ok mariadb   leader",
    "ok mariadb   once-per",
    "ok sqlite    lock",
    "ok sqlite    multi-lock",
    "ok sqlite    leader",
    "ok sqlite    once-per",
    "ok redlock   lock",
    "ok redlock   multi-lock",
    "ok redlock   leader",
];

/// The example's maximum lease on the masters.
const MAX_LEASE: Duration = Duration::from_secs(3);

#[tokio::test]
async fn tour_keeps_second_process_out_on_all_servers() {
    let redis = RedisRig::start().await;
    let zookeeper = fresh_zookeeper().await;
    let postgres = fresh_database(Backend::Postgres).await;
    let mariadb = fresh_database(Backend::Mysql).await;
    let sqlite = fresh_database(Backend::Sqlite).await;
    let masters = fresh_masters(3, MAX_LEASE).await;
    let variables = [
        ("REDIS_URL", &*redis.url()),
        ("ZOOKEEPER_CONNECT", &zookeeper.connect),
        ("POSTGRES_URL", &postgres.url),
        ("MARIADB_URL", &mariadb.url),
        ("SQLITE_URL", &sqlite.url),
        ("REDLOCK_URLS", &masters.joined()),
    ];
    let tour = Process::start(example("tour"), &[], &variables);
    let ended = tour.ended().await;
    assert_eq!(
        ended.stdout.lines().collect::<Vec<_>>(),
        ROWS,
        "{}",
        ended.stderr
    );
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[tokio::test]
async fn tour_without_server_names_the_variables() {
    let ended = Process::start(example("tour"), &[], &[]).ended().await;
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("REDIS_URL"), "{}", ended.stderr);
}
