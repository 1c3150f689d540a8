//! Stops a process, like an overloaded or suspended machine does, and continues it.

use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::eventually;

/// Upper bound on the time until all threads of a process have stopped.
const STOPPED_WITHIN: Duration = Duration::from_secs(20);

/// Stops a process (`SIGSTOP`), and returns once none of its threads is running.
///
/// # Panics
/// If there is no such process.
pub async fn stop(process: Pid) {
    kill_process(process, Signal::STOP).expect("the process exists");
    eventually("the process stops", STOPPED_WITHIN, async || {
        let threads = format!("/proc/{}/task", process.as_raw_nonzero());
        let mut threads = fs::read_dir(threads).expect("the process exists");
        threads.all(|thread| {
            let status = thread.expect("a thread").path().join("status");
            // A thread may end while the list is read.
            fs::read_to_string(status).map_or(true, |status| status.contains("State:\tT"))
        })
    })
    .await;
}

/// Continues a stopped process (`SIGCONT`).
///
/// # Panics
/// If there is no such process.
pub fn resume(process: Pid) {
    kill_process(process, Signal::CONT).expect("the process exists");
}
