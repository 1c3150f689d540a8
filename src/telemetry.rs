//! Sends the log to stderr: lines wait in a bounded queue, and one thread writes them. `traces.rs` sends
//! traces to a collector.
//!
//! Logging is best effort. If the reader of stderr is gone or does not read, lines are dropped and
//! counted (`log_lines_dropped_total`). No request and no task waits for the log, or fails with it.
//!
//! The crate `tracing-appender` does not fit. It does not count lines that cannot be written. Its bound
//! is a number of lines, and a line may be large. At the end of a process whose queue is full, it prints
//! to stdout, which may be the same pipe: then the process panics or hangs.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::panic;
use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use prometheus_client::metrics::counter::Counter;

mod traces;

pub use traces::Collector;
pub(crate) use traces::{TraceSender, Traces, dropped_spans};

/// The maximum size of the lines that wait to be written.
const QUEUE_BYTES: usize = 1024 * 1024;

/// How long a panic waits until its line is written.
const PANIC_LIMIT: Duration = Duration::from_millis(100);

/// How long the end of the process waits until the lines are written.
const END_LIMIT: Duration = Duration::from_millis(400);

/// The log of this process.
static LOG: LazyLock<&'static LogQueue> = LazyLock::new(|| {
    let log: &'static LogQueue = Box::leak(Box::<LogQueue>::default());
    let writer = thread::Builder::new().name("log".to_owned());
    let spawned = writer.spawn(move || log.write_to(io::stderr()));
    spawned.expect("a thread can be started");
    log
});

/// Where the subscriber writes its lines: this does not wait, and does not fail.
pub(crate) fn writer() -> &'static LogQueue {
    *LOG
}

/// Writes a line to stderr that has no level, such as the reason why a command failed.
pub fn print_line(line: &str) {
    LOG.push(format!("{line}\n").into_bytes());
}

/// The lines that were dropped. Replicas in one process share the counter, as they share the log.
pub(crate) fn dropped_lines() -> Counter {
    LOG.dropped.clone()
}

/// Waits until the lines so far are written, but not longer than [`END_LIMIT`].
pub(crate) fn flush() {
    LOG.wait_until_written(END_LIMIT);
}

/// Flushes the log when the returned value is dropped: at the end of `main`, also after a panic.
#[must_use]
pub fn flush_at_end() -> FlushAtEnd {
    FlushAtEnd(())
}

/// See [`flush_at_end`].
#[derive(Debug)]
pub struct FlushAtEnd(());

impl Drop for FlushAtEnd {
    fn drop(&mut self) {
        flush();
    }
}

/// Logs panics. The default hook writes to stderr, and would wait for its reader.
pub(crate) fn log_panics() {
    panic::set_hook(Box::new(|panic| {
        let text = panic.to_string().replace('\n', " ");
        let backtrace = Backtrace::capture();
        let is_captured = backtrace.status() == BacktraceStatus::Captured;
        let backtrace = is_captured.then(|| backtrace.to_string());
        if tracing::enabled!(tracing::Level::ERROR) {
            tracing::error!(backtrace, "{text}");
        } else {
            print_line(&text);
        }
        // The process may abort after this.
        LOG.wait_until_written(PANIC_LIMIT);
    }));
}

/// Lines on their way to stderr.
#[derive(Debug, Default)]
pub(crate) struct LogQueue {
    waiting: Mutex<Waiting>,
    /// Notified after each change of `waiting`.
    changed: Condvar,
    dropped: Counter,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: VecDeque<Vec<u8>>,
    /// The size of these lines and of the one that is being written.
    bytes: usize,
}

impl LogQueue {
    fn push(&self, line: Vec<u8>) {
        let mut waiting = self.waiting.lock();
        if waiting.bytes + line.len() > QUEUE_BYTES {
            self.dropped.inc();
            return;
        }
        waiting.bytes += line.len();
        waiting.lines.push_back(line);
        self.changed.notify_all();
    }

    /// Writes the lines, one after the other, until the process ends.
    fn write_to(&self, mut output: impl Write) {
        loop {
            let line = self.next_line();
            // No lock is held here: this may take indefinitely.
            if output.write_all(&line).is_err() {
                self.dropped.inc();
            }
            self.waiting.lock().bytes -= line.len();
            self.changed.notify_all();
        }
    }

    fn next_line(&self) -> Vec<u8> {
        let is_empty = |waiting: &mut Waiting| waiting.lines.is_empty();
        let mut waiting = self.waiting.lock();
        self.changed.wait_while(&mut waiting, is_empty);
        waiting.lines.pop_front().expect("it is not empty")
    }

    fn wait_until_written(&self, limit: Duration) {
        let is_waiting = |waiting: &mut Waiting| waiting.bytes > 0;
        let mut waiting = self.waiting.lock();
        self.changed.wait_while_for(&mut waiting, is_waiting, limit);
    }
}

/// The subscriber writes each line with one call.
impl Write for &LogQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn full_queue_drops_lines_and_counts_them() {
        let log = LogQueue::default();
        for _ in 0..6 {
            log.push(vec![b'x'; QUEUE_BYTES / 4]);
        }
        assert_eq!(log.dropped.get(), 2);
        assert_eq!(log.waiting.lock().bytes, QUEUE_BYTES);
    }

    /// Cannot write some lines, and sends the others.
    struct Output(mpsc::Sender<Vec<u8>>);

    impl Write for Output {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            if line.starts_with(b"lost") {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.0.send(line.to_vec()).expect("the test reads");
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn unwritable_line_is_counted_and_the_log_goes_on() {
        let log: &'static LogQueue = Box::leak(Box::<LogQueue>::default());
        let (sender, written) = mpsc::channel();
        thread::spawn(move || log.write_to(Output(sender)));
        for line in ["one\n", "lost\n", "two\n"] {
            log.push(line.into());
        }
        log.wait_until_written(Duration::from_mins(1));
        let written: Vec<_> = written.try_iter().collect();
        assert_eq!(written, [b"one\n", b"two\n"]);
        assert_eq!(log.dropped.get(), 1);
    }

    #[test]
    fn end_does_not_wait_for_a_reader_that_does_not_read() {
        let log = LogQueue::default();
        log.push("line\n".into());
        log.wait_until_written(Duration::from_millis(1));
        assert_eq!(log.waiting.lock().bytes, 5);
    }
}
