//! How much memory a replica takes.

use stocklock::lab::race::{Progress, RacePlan, run};

use crate::support::process::Process;
use crate::support::services::{Backend, fresh_database};

const LIMIT_KIB: u64 = 150 * 1024;

/// Goal: the race does not make a replica grow beyond what a small container has.
///
/// Method: a process of its own on SQLite, every strategy, and many connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_under_the_race_stays_below_150_megabytes() {
    let database = fresh_database(Backend::Sqlite).await;
    let lab = Process::lab(&database.url, &[]).await;
    let idle = lab.peak_memory();
    assert!(idle > 1024, "{idle} KiB: that is not a replica");
    let plan = RacePlan::new(1_000, 256, 5);
    let targets = [lab.url("").parse().expect("a target")];
    let report = run(&plan, &targets, Progress::Silent).await;
    let report = report.expect("the race is run");
    assert!(!report.broken(), "{}", report.table());
    let peak = lab.peak_memory();
    println!("{peak} KiB under the race, {idle} KiB before");
    assert!(peak < LIMIT_KIB, "{peak} KiB");
}
