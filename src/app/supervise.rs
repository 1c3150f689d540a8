//! Keeps a background task running, and logs its failures.

use std::fmt::Display;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// The pause before a restart.
const PAUSE: Duration = Duration::from_secs(1);

/// Runs the future of `start` in its own task until `stop` is cancelled and the future returns. If
/// the task panics or returns earlier, that is logged and the task is started again.
///
/// # Cancel safety
/// Dropping the future ends the task.
pub(super) async fn supervise<F>(task: &str, stop: &CancellationToken, mut start: impl FnMut() -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    loop {
        let ended = AbortOnDropHandle::new(tokio::spawn(start())).await;
        if ended.is_ok() && stop.is_cancelled() {
            return;
        }
        let why = ended.err().map(|error| error.to_string());
        tracing::error!(why, "{task} ended early; it will be restarted");
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            () = stop.cancelled() => return,
        }
    }
}

/// Whether a task fails. It logs a warning at the first failure, and only debug lines until it succeeds again.
#[derive(Debug, Default)]
pub(super) struct Outage {
    is_known: bool,
}

impl Outage {
    /// Notes how a round of the task ended. `problem`: what a failure means.
    pub(super) fn note(&mut self, round: Result<(), impl Display>, problem: &str) {
        match round {
            Ok(()) => self.is_known = false,
            Err(error) if !self.is_known => {
                tracing::warn!(%error, "{problem}");
                self.is_known = true;
            }
            Err(error) => tracing::debug!(%error, "{problem}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn task_that_panics_or_returns_early_is_restarted() {
        let (starts, stop) = (Arc::new(AtomicU32::new(0)), CancellationToken::new());
        let start = || {
            let (number, stop) = (starts.fetch_add(1, Ordering::SeqCst), stop.clone());
            async move {
                match number {
                    0 => panic!("a defect"),
                    1 => {}
                    _ => stop.cancelled().await,
                }
            }
        };
        let stop_after_third_start = async {
            while starts.load(Ordering::SeqCst) < 3 {
                tokio::time::sleep(PAUSE).await;
            }
            stop.cancel();
        };
        let both =
            async { tokio::join!(supervise("the task", &stop, start), stop_after_third_start) };
        let ended = tokio::time::timeout(100 * PAUSE, both).await;
        ended.expect("the task is restarted, and ends when it is stopped");
        assert_eq!(starts.load(Ordering::SeqCst), 3);
    }
}
