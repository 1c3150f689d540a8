//! A task that must not end before its time: it is begun again where it does.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// The pause before it is begun again.
const PAUSE: Duration = Duration::from_secs(1);

/// Runs what `begin` gives in a task of its own until `stop` is cancelled and it returns; where it
/// panics, or returns earlier, that is logged, and it is begun again.
///
/// # Cancel safety
/// Dropping the future ends the task.
pub(crate) async fn supervise<F>(
    what: &'static str,
    stop: &CancellationToken,
    mut begin: impl FnMut() -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    loop {
        let ended = AbortOnDropHandle::new(tokio::spawn(begin())).await;
        if ended.is_ok() && stop.is_cancelled() {
            return;
        }
        let why = ended.err().map(|error| error.to_string());
        tracing::error!(why, "{what} ended before its time");
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            () = stop.cancelled() => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_panics_or_returns_early_is_begun_again() {
        let (times, stop) = (Arc::new(AtomicU32::new(0)), CancellationToken::new());
        let begin = || {
            let (number, stop) = (times.fetch_add(1, Ordering::SeqCst), stop.clone());
            async move {
                match number {
                    0 => panic!("a defect"),
                    1 => {}
                    _ => stop.cancelled().await,
                }
            }
        };
        let stopping = async {
            while times.load(Ordering::SeqCst) < 3 {
                tokio::time::sleep(PAUSE).await;
            }
            stop.cancel();
        };
        let both = async { tokio::join!(supervise("it", &stop, begin), stopping) };
        let ended = tokio::time::timeout(100 * PAUSE, both).await;
        ended.expect("it is begun again, and ends when it is stopped");
        assert_eq!(times.load(Ordering::SeqCst), 3);
    }
}
