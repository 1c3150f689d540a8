//! Programs that a test runs.

use stocklock_testkit::eventually;
use stocklock_testkit::process::Process;

use super::{SILENCE, SOON};

/// A program that writes a line every 10 ms.
fn ticking() -> Process {
    let ticks = "while :; do echo tick; sleep 0.01; done";
    Process::start("/bin/sh", &["-c", ticks], &[])
}

async fn grows(process: &Process) {
    let before = process.stdout().len();
    eventually("it writes", SOON, async || process.stdout().len() > before).await;
}

#[tokio::test]
async fn stopped_process_does_nothing_until_it_is_resumed() {
    let mut process = ticking();
    grows(&process).await;
    process.stop().await;
    let before = process.stdout();
    tokio::time::sleep(SILENCE).await;
    assert_eq!(process.stdout(), before);
    assert!(process.is_running());
    process.resume();
    grows(&process).await;
}

#[tokio::test]
async fn killed_process_ends_even_if_it_is_stopped() {
    let mut process = ticking();
    process.stop().await;
    process.kill9();
    assert!(!process.is_running());
    assert_eq!(process.ended().await.code, None);
}

#[tokio::test]
async fn ended_process_leaves_its_code_and_its_output() {
    let script = "echo out; echo \"$NAME\" >&2; exit 3";
    let process = Process::start("/bin/sh", &["-c", script], &[("NAME", "value")]);
    let ended = process.ended().await;
    assert_eq!(ended.code, Some(3));
    assert_eq!((&*ended.stdout, &*ended.stderr), ("out\n", "value\n"));
}
