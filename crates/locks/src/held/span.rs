//! The tracing span of an acquisition: `acquire_lock`. It costs no allocation if no subscriber wants it.

use std::time::Duration;

use tracing::field::{Empty, debug};
use tracing::{Span, debug_span};

use crate::held::options::Options;

pub(crate) fn acquisition(options: &Options) -> Span {
    debug_span!(
        "acquire_lock",
        lock = %options.name,
        label = options.label,
        waited = Empty,
        outcome = Empty,
    )
}

/// Records how an acquisition ended.
pub(crate) fn end(span: &Span, waited: Duration, outcome: &'static str) {
    span.record("waited", debug(waited))
        .record("outcome", outcome);
}
