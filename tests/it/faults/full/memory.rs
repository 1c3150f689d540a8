//! How much memory a replica takes.

use stocklock::lab::race::{RacePlan, TableStyle, run};
use stocklock::strategy::Strategy;

use crate::faults::memory::Unfinished;
use crate::support::lock_services::LockServices;
use crate::support::process::Process;
use crate::support::services::{Backend, fresh_database};

const LIMIT_KIB: u64 = 150 * 1024;

/// Goal: a replica under the race fits into a small container.
///
/// Method: a process on SQLite, every strategy, and many connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_under_race_stays_below_150_megabytes() {
    let (database, services) = tokio::join!(fresh_database(Backend::Sqlite), LockServices::fresh());
    let lab = Process::lab(&database.url, &services.variables()).await;
    let idle = lab.peak_memory();
    assert!(idle > 1024, "{idle} KiB: that is not a replica");
    let plan = RacePlan::new(200, 256, 1);
    let targets = [lab.url("").parse().expect("a target")];
    let report = run(&plan, &targets, &|_| {}).await;
    let report = report.expect("the race runs");
    let table = report.table(TableStyle::default());
    assert!(!report.broken(), "{table}");
    assert_eq!(report.rows.len(), Strategy::ALL.len(), "{table}");
    let peak = lab.peak_memory();
    println!("{peak} KiB under the race, {idle} KiB before");
    assert!(peak < LIMIT_KIB, "{peak} KiB");
}

/// The limit of a replica's container in `docker-compose.yml`, less what is not the process's own.
const CONTAINER_KIB: u64 = 240 * 1024;

/// Goal: clients that do not finish their requests do not use up the memory of a small container.
///
/// Method: mixes of requests on almost as many connections as are allowed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_requests_stay_below_240_megabytes() {
    let none = Unfinished::default();
    for mix in [
        Unfinished {
            bodies: 1_800,
            ..none
        },
        Unfinished {
            large_headers: 1_500,
            bodies: 300,
            ..none
        },
        Unfinished {
            headers: 1_500,
            bodies: 300,
            ..none
        },
        Unfinished {
            small_bodies: 1_500,
            bodies: 300,
            ..none
        },
        Unfinished {
            headers: 800,
            small_bodies: 800,
            bodies: 200,
            ..none
        },
    ] {
        let peak = mix.peak().await;
        assert!(peak < CONTAINER_KIB, "{mix:?}: {peak} KiB");
    }
}
