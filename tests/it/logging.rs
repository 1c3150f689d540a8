//! Logging is best effort: a replica whose log cannot be written answers and stops as usual.

use std::io::{PipeReader, PipeWriter, Write as _, pipe};
use std::time::Duration;

use rstest::rstest;
use rustix::io::ioctl_fionbio;
use tokio::time::Instant;

use crate::faults::until;
use crate::support::process::Process;

/// What is wrong with the reader of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    /// It has ended.
    Gone,
    /// It does not read.
    Stalled,
}

/// A pipe to which nothing can be written until its reader reads.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = pipe().expect("a pipe");
    ioctl_fionbio(&writer, true).expect("a pipe can be non-blocking");
    while writer.write_all(&[b'x'; 4096]).is_ok() {}
    ioctl_fionbio(&writer, false).expect("a pipe can block");
    (reader, writer)
}

/// Serves and stops a replica whose log is not read. Returns how long `/healthz` and the stop took.
async fn serve_without(reader: Reader) -> (Duration, Duration) {
    let (log, stderr) = match reader {
        Reader::Gone => pipe().expect("a pipe"),
        Reader::Stalled => full_pipe(),
    };
    let variables = [("LOG", "stocklock=debug"), ("DRAIN_LIMIT_MS", "1000")];
    let mut process = Process::start_logging_to(stderr.into(), &["serve"], &variables);
    process.is_ready().await;
    // Otherwise the pipe is closed here.
    let log = (reader == Reader::Stalled).then_some(log);

    // Each of these requests is logged with its path; together they exceed what can wait to be written.
    let path = format!("/{}", "x".repeat(8_000));
    for _ in 0..300 {
        process.get(&path).await.assert_is(404, "no-such-route");
    }
    until("dropped lines are counted", async || {
        process.counted("log_lines_dropped_total").await > 0
    })
    .await;
    let health = process.get("/healthz").await;
    health.ok();

    process.terminate();
    let begin = Instant::now();
    let ended = process.ended().await;
    assert_eq!(ended.code, Some(0));
    drop(log);
    (health.after, begin.elapsed())
}

#[rstest]
#[tokio::test]
async fn replica_whose_log_is_not_read_serves_and_stops(
    #[values(Reader::Gone, Reader::Stalled)] reader: Reader,
) {
    serve_without(reader).await;
}

mod full {
    use super::*;

    #[rstest]
    #[tokio::test]
    async fn replica_whose_log_is_not_read_serves_and_stops_in_time(
        #[values(Reader::Gone, Reader::Stalled)] reader: Reader,
    ) {
        let (answered, stopped) = serve_without(reader).await;
        assert!(answered < Duration::from_millis(100), "{answered:?}");
        assert!(stopped < Duration::from_secs(2), "{stopped:?}");
    }
}
