//! How much memory a replica takes.

use stocklock::lab::race::{RacePlan, TableStyle, run};
use stocklock::strategy::Strategy;

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
