//! The tracing span of an acquisition.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stocklock_locks::LockManager;
use stocklock_locks::local::LocalBackend;
use tokio::time::{sleep, timeout};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber, subscriber};

/// The fields of each span of an acquisition, in order.
#[derive(Debug, Clone, Default)]
struct Spans(Arc<Mutex<Vec<Fields>>>);

#[derive(Debug, Clone, Default)]
struct Fields(HashMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

impl Subscriber for Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.name() == "acquire_lock"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields::default();
        span.record(&mut fields);
        let mut spans = self.0.lock().unwrap();
        spans.push(fields);
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let index = usize::try_from(span.into_u64()).unwrap() - 1;
        values.record(&mut self.0.lock().unwrap()[index]);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test(start_paused = true)]
async fn span_of_acquisition_has_name_wait_and_outcome() {
    let spans = Spans::default();
    let _default = subscriber::set_default(spans.clone());
    let manager = LockManager::new(LocalBackend::new());
    let guard = manager.lock("seen").label("test").acquire().await.unwrap();
    assert!(manager.lock("seen").try_acquire().await.unwrap().is_none());
    let abandoned = manager.lock("seen").acquire();
    let dropped = timeout(Duration::ZERO, abandoned).await;
    assert!(dropped.is_err());
    // A task ends what was dropped.
    sleep(Duration::from_millis(1)).await;
    guard.release().await;
    manager.shutdown().await;
    manager.lock("late").acquire().await.unwrap_err();
    let spans = spans.0.lock().unwrap().clone();
    let field = |name| {
        spans
            .iter()
            .map(|span| span.0[name].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(field("lock"), ["seen", "seen", "seen", "late"]);
    assert_eq!(field("label"), ["test", "lock", "lock", "lock"]);
    assert_eq!(
        field("outcome"),
        ["free", "wait-limit", "abandoned", "shutdown"]
    );
    assert_eq!(field("waited").len(), 4);
}
