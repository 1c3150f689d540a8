//! How much memory a replica takes.

use stocklock::lab::race::{RacePlan, TableStyle, run};
use stocklock::strategy::Strategy;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::limits::send_incomplete_batch;
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

/// Goal: clients that do not finish their requests do not use up the memory of a small container.
///
/// Method: 300 clients with a header of 60 KB, and 300 with a batch of 1 MiB, none of which ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_requests_stay_below_150_megabytes() {
    let limits = [("HEADER_TIMEOUT_MS", "60000"), ("BODY_TIMEOUT_MS", "60000")];
    let serve = Process::serving(&["serve"], &limits).await;
    let header = format!("GET /healthz HTTP/1.1\r\nX: {}", "x".repeat(60_000));
    let mut headers = Vec::new();
    for _ in 0..300 {
        let mut stream = TcpStream::connect(serve.address())
            .await
            .expect("it listens");
        let sent = stream.write_all(header.as_bytes()).await;
        sent.expect("it reads");
        headers.push(stream);
    }
    let send_incomplete = |_| send_incomplete_batch(serve.address());
    let mut bodies: JoinSet<_> = (0..300).map(send_incomplete).collect();
    // The memory for large bodies is enough for 64; the others are refused.
    while bodies.len() > 64 {
        bodies.join_next().await.expect("a body").expect("no panic");
    }
    let peak = serve.peak_memory();
    println!("{peak} KiB with unfinished requests");
    assert!(peak < LIMIT_KIB, "{peak} KiB");
}
