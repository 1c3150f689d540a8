//! The spans of a trace: what is known of each, and its form in OTLP.

use std::fmt::Debug;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tracing::Subscriber;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;
use uuid::Uuid;

use super::{DROPPED, Traces};

/// What is known of a span until it ends.
#[derive(Debug)]
struct Span {
    trace: u128,
    id: u64,
    parent: Option<u64>,
    start: u64,
    /// When it was left last.
    end: Option<u64>,
    attributes: Vec<Value>,
    links: Vec<Value>,
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Traces {
    fn on_new_span(&self, values: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(new) = context.span(id) else { return };
        // 62 random bits, and never zero.
        let random = Uuid::now_v7();
        let mut span = Span {
            trace: random.as_u128(),
            id: random.as_u64_pair().1,
            parent: None,
            start: now(),
            end: None,
            attributes: Vec::new(),
            links: Vec::new(),
        };
        if let Some(parent) = new.parent()
            && let Some(parent) = parent.extensions().get::<Span>()
        {
            (span.trace, span.parent) = (parent.trace, Some(parent.id));
        }
        values.record(&mut span);
        new.extensions_mut().insert(span);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(span) = span.extensions_mut().get_mut::<Span>()
        {
            values.record(span);
        }
    }

    fn on_follows_from(&self, id: &Id, follows: &Id, context: Context<'_, S>) {
        let followed = context.span(follows);
        let link = followed.and_then(|followed| {
            let extensions = followed.extensions();
            let followed = extensions.get::<Span>()?;
            Some(json!({"traceId": hex(followed.trace), "spanId": format!("{:016x}", followed.id)}))
        });
        if let (Some(link), Some(span)) = (link, context.span(id))
            && let Some(span) = span.extensions_mut().get_mut::<Span>()
        {
            span.links.push(link);
        }
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(span) = span.extensions_mut().get_mut::<Span>()
        {
            span.end = Some(now());
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(closed) = context.span(&id) else {
            return;
        };
        let Some(span) = closed.extensions_mut().remove::<Span>() else {
            return;
        };
        let finished = span.finished(closed.name());
        if self.finished.try_send(finished).is_err() {
            DROPPED.inc();
        }
    }
}

impl Span {
    /// As OTLP has it.
    fn finished(self, name: &str) -> Value {
        let kind = match name {
            "HTTP" => 2,      // server
            "statement" => 3, // client
            _ => 1,           // internal
        };
        json!({
            "traceId": hex(self.trace),
            "spanId": format!("{:016x}", self.id),
            "parentSpanId": self.parent.map_or_else(String::new, |id| format!("{id:016x}")),
            "name": name,
            "kind": kind,
            "startTimeUnixNano": self.start.to_string(),
            "endTimeUnixNano": self.end.unwrap_or_else(now).to_string(),
            "attributes": self.attributes,
            "links": self.links,
        })
    }

    /// Continues the trace of the caller: `00-<trace>-<span>-<flags>` (W3C Trace Context).
    fn continue_trace(&mut self, traceparent: &str) -> Option<()> {
        let mut parts = traceparent.split('-');
        let (version, trace) = (parts.next()?, parts.next()?);
        let (parent, flags) = (parts.next()?, parts.next()?);
        let lengths = [version, trace, parent, flags].map(str::len);
        let is_hex = |part: &str| part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let are_hex = [version, trace, parent, flags].into_iter().all(is_hex);
        if lengths != [2, 32, 16, 2] || !are_hex || version == "ff" {
            return None;
        }
        let trace = u128::from_str_radix(trace, 16).ok().filter(|id| *id != 0)?;
        let parent = u64::from_str_radix(parent, 16).ok().filter(|id| *id != 0)?;
        (self.trace, self.parent) = (trace, Some(parent));
        Some(())
    }
}

impl Visit for Span {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "traceparent" {
            // One that is not valid begins a new trace.
            let _ = self.continue_trace(value);
        } else {
            self.attributes.push(attribute(field.name(), value.into()));
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.attributes.push(attribute(field.name(), value.into()));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

/// An attribute in OTLP.
pub(super) fn attribute(name: &str, value: Value) -> Value {
    let value = match value {
        Value::Number(number) => json!({"intValue": number.to_string()}),
        text => json!({"stringValue": text}),
    };
    json!({"key": name, "value": value})
}

fn hex(trace: u128) -> String {
    format!("{trace:032x}")
}

/// Nanoseconds since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "a trace has spans of other machines, too: wall clocks are what they share"
)]
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
}
