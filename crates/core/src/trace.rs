//! The spans of traces: request, queue, batch, statement.
//!
//! The service sends them if `OTEL_EXPORTER_OTLP_ENDPOINT` is set. Otherwise no subscriber wants this target,
//! and each of them costs a comparison of levels. Only requests begin traces, so the spans of the others exist
//! below one only.

use tracing::{Level, Span};

/// The target of all these spans. Their level is `TRACE`.
pub const TARGET: &str = "stocklock_trace";

/// Whether this is a part of a request that is traced.
fn is_traced() -> bool {
    tracing::enabled!(target: TARGET, Level::TRACE) && !Span::current().is_disabled()
}

/// The span of an operation that waits for its batch.
pub(crate) fn queue() -> Span {
    if is_traced() {
        tracing::trace_span!(target: TARGET, "queue")
    } else {
        Span::none()
    }
}

/// The span of a batch: a child of the first of these spans of waiting operations, linked to the others. Their
/// wait ends now.
pub(crate) fn batch<'a>(waited: impl Iterator<Item = &'a Span>) -> Span {
    let mut waited = waited.filter(|span| !span.is_disabled());
    let Some(first) = waited.next() else {
        return Span::none();
    };
    let batch = tracing::trace_span!(target: TARGET, parent: first, "batch");
    // A span ends when it was left last.
    first.in_scope(|| {});
    for other in waited {
        other.in_scope(|| {});
        batch.follows_from(other);
    }
    batch
}

/// The span of a statement, whose text has no values.
#[must_use]
pub fn statement(text: &str) -> Span {
    if is_traced() {
        tracing::trace_span!(target: TARGET, "statement", "db.query.text" = text)
    } else {
        Span::none()
    }
}
