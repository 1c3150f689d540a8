//! How much memory a replica takes, as a process of its own.

use std::process::{Child, Command, Stdio};

use stocklock::lab::race::{Progress, RacePlan, run};

use super::{SOON, until};
use crate::support::ports::free_port;
use crate::support::services::{Backend, fresh_database};

const LIMIT_KIB: u64 = 150 * 1024;

/// A child that ends with its test.
struct Lab(Child);

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Lab {
    /// The most memory that it ever had, in KiB.
    fn peak(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id()));
        let status = status.expect("the process lives");
        let peak = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
        peak.and_then(|kib| kib.parse().ok())
            .expect("its status tells its peak")
    }
}

/// Goal: the race does not make a replica grow beyond what a small container has.
///
/// Method: the program itself in lab mode on SQLite, and many connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_under_the_race_stays_below_150_megabytes() {
    let database = fresh_database(Backend::Sqlite).await;
    let address = format!("127.0.0.1:{}", free_port());
    let child = Command::new(env!("CARGO_BIN_EXE_stocklock"))
        .arg("lab")
        .env_clear()
        .env("DATABASE_URL", &database.url)
        .env("LISTEN", &address)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let lab = Lab(child.expect("the program runs"));
    let base = format!("http://{address}");
    let client = reqwest::Client::builder().no_proxy();
    let client = client.build().expect("a client without TLS can be built");
    until("the replica is ready", SOON, || async {
        let answer = client.get(format!("{base}/readyz")).send().await;
        answer.is_ok_and(|answer| answer.status() == 200)
    })
    .await;
    let idle = lab.peak();
    assert!(idle > 1024, "{idle} KiB: that is not a replica");

    let plan = RacePlan::new(1_000, 256, 5);
    let targets = [base.parse().expect("a target")];
    let report = run(&plan, &targets, Progress::Silent).await;
    let report = report.expect("the race is run");
    assert!(!report.broken(), "{}", report.table());
    let peak = lab.peak();
    assert!(peak < LIMIT_KIB, "{peak} KiB under the race, {idle} before");
}
