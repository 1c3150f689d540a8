//! The tracing span of an acquisition.

use std::sync::Arc;
use std::time::Duration;

use stocklock_locks::LockManager;
use stocklock_locks::local::LocalBackend;
use tempfile::NamedTempFile;
use tokio::time::{sleep, timeout};
use tracing::{Level, subscriber};
use tracing_subscriber::fmt::format::FmtSpan;

#[tokio::test(start_paused = true)]
async fn span_of_acquisition_has_name_wait_and_outcome() {
    let output = NamedTempFile::new().unwrap();
    let spans = tracing_subscriber::fmt()
        .with_max_level(Level::DEBUG)
        .with_span_events(FmtSpan::CLOSE)
        .with_target(false)
        .with_ansi(false)
        .without_time()
        .with_writer(Arc::new(output.reopen().unwrap()));
    let _default = subscriber::set_default(spans.finish());
    let manager = LockManager::new(LocalBackend::new());
    let guard = manager.lock("seen").label("test").acquire().await.unwrap();
    assert!(manager.lock("seen").try_acquire().await.unwrap().is_none());
    let abandoned = manager.lock("seen").acquire();
    let dropped = timeout(Duration::ZERO, abandoned).await;
    assert!(dropped.is_err());
    // A background task completes the dropped acquisition.
    sleep(Duration::from_millis(1)).await;
    guard.release().await;
    manager.shutdown().await;
    manager.lock("late").acquire().await.unwrap_err();
    let shown = std::fs::read_to_string(output.path()).unwrap();
    let fields = |line: &str| {
        let span = line
            .strip_suffix("}: close")?
            .split_once("acquire_lock{")?
            .1;
        let (before, waited) = span.split_once(" waited=")?;
        let (_, outcome) = waited.split_once(" outcome=")?;
        Some(format!("{before} {outcome}"))
    };
    let spans: Vec<_> = shown.lines().filter_map(fields).collect();
    let expected = [
        r#"lock=seen label="test" "free""#,
        r#"lock=seen label="lock" "wait-limit""#,
        r#"lock=seen label="lock" "abandoned""#,
        r#"lock=late label="lock" "shutdown""#,
    ];
    assert_eq!(spans, expected, "{shown}");
}
