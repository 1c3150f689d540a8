//! Stopping a process, as a full machine or a suspended one would, and letting it go on.

use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

/// How long all threads of a process may take to stop.
const STOPPED_WITHIN: Duration = Duration::from_secs(20);

/// Stops a process (`SIGSTOP`), and returns when none of its threads runs any more.
///
/// # Panics
/// When there is none.
pub async fn stop(process: Pid) {
    kill_process(process, Signal::STOP).expect("the process lives");
    let deadline = Instant::now() + STOPPED_WITHIN;
    while !has_stopped(process) {
        assert!(Instant::now() < deadline, "{process:?} does not stop");
        sleep(Duration::from_millis(1)).await;
    }
}

/// Lets a process that was stopped go on (`SIGCONT`).
///
/// # Panics
/// When there is none.
pub fn resume(process: Pid) {
    kill_process(process, Signal::CONT).expect("the process lives");
}

fn has_stopped(process: Pid) -> bool {
    let threads = format!("/proc/{}/task", process.as_raw_nonzero());
    let threads = fs::read_dir(threads).expect("the process lives");
    threads.into_iter().all(|thread| {
        let status = thread.expect("a thread").path().join("status");
        // A thread may end while the list is read.
        fs::read_to_string(status).map_or(true, |status| status.contains("State:\tT"))
    })
}
