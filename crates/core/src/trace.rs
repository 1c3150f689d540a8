//! The spans of traces: request, queue, batch, statement.
//!
//! The service sends them if `OTEL_EXPORTER_OTLP_ENDPOINT` is set. Otherwise no subscriber wants this target,
//! and a span costs a comparison of levels.

use tracing::Span;

/// The target of all these spans. Their level is `TRACE`.
pub const TARGET: &str = "stocklock_trace";

/// The span of a batch: a child of the first of these spans of waiting operations, linked to the others. Their
/// wait ends now.
pub(crate) fn batch<'a>(mut waited: impl Iterator<Item = &'a Span>) -> Span {
    let Some(first) = waited.next().filter(|span| !span.is_disabled()) else {
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
