//! The example `tour` on real servers.

use std::time::Duration;

use stocklock_testkit::process::Process;
use stocklock_testkit::servers::{Backend, fresh_database, fresh_masters, fresh_zookeeper};

use crate::holder::example;
use crate::rig::redis::RedisRig;

/// What the tour shows, in the order of the output.
const KINDS: &str = "lock multi-lock leader once-per read-write-lock permits number latch barrier";

/// The servers, in the order of the output, and how many of the kinds each supports.
const SERVERS: [(&str, usize); 6] = [
    ("redis", 9),
    ("zookeeper", 9),
    ("postgres", 4),
    ("mariadb", 4),
    ("sqlite", 4),
    ("redlock", 3),
];

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
    let mut lines = ended.stdout.lines();
    for (server, kinds) in SERVERS {
        for kind in KINDS.split(' ').take(kinds) {
            let line = format!("ok {server:9} {kind}");
            assert_eq!(lines.next(), Some(&*line), "{}", ended.stderr);
        }
    }
    assert_eq!(lines.next(), None);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[tokio::test]
async fn tour_without_server_names_the_variables() {
    let ended = Process::start(example("tour"), &[], &[]).ended().await;
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("REDIS_URL"), "{}", ended.stderr);
}
