//! The task that watches the memory of the Redis with stock, the bytes of its journals, and how long
//! movements wait there. Every
//! replica with a Redis runs it.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::consumer::supervise;
use crate::http::Api;

/// How often Redis is asked. At 10,000 sales per second, a quarter of a second takes about 1 MB.
const EVERY: Duration = Duration::from_millis(250);

/// Watches until `stop` is cancelled.
pub(super) async fn run(api: Arc<Api>, stop: CancellationToken) {
    let start = || watch(Arc::clone(&api), stop.clone());
    supervise("the check of Redis's memory", &stop, start).await;
}

async fn watch(api: Arc<Api>, stop: CancellationToken) {
    let mut is_measured = true;
    loop {
        let checked = tokio::select! {
            checked = api.store.check_redis_memory() => checked,
            () = stop.cancelled() => return,
        };
        let used = checked.unwrap_or_else(|error| {
            // The check of the binding has warned.
            tracing::debug!(%error, "the memory of Redis is unknown");
            None
        });
        api.metrics.redis_memory_used(used);
        let bytes = tokio::select! {
            bytes = api.store.check_journals() => bytes,
            () = stop.cancelled() => return,
        };
        if let (true, Err(error)) = (is_measured, &bytes) {
            let cause = std::error::Error::source(error).map(ToString::to_string);
            tracing::warn!(%error, cause, "JOURNAL_LIMIT_BYTES: the journals in Redis cannot be measured");
        }
        is_measured = bytes.is_ok();
        api.metrics.journal_bytes(bytes.ok());
        let oldest = tokio::select! {
            oldest = api.store.oldest_movement_waits() => oldest,
            () = stop.cancelled() => return,
        };
        // The journal consumer warns.
        api.metrics.journal_oldest(oldest.ok());
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            () = stop.cancelled() => return,
        }
    }
}
