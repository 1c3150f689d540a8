//! Traces: sends finished spans to a collector, with OTLP over HTTP in JSON.
//!
//! Not with the crates of `opentelemetry`, which would add 13 to `Cargo.lock`, among them `prost` and `h2`: what
//! is needed of OTLP is this file. There is no TLS, so the collector must be near; it encrypts what it sends on.
//!
//! Guarantees: nothing that serves waits. If the collector is slow or away, spans are dropped and counted.

use std::str::FromStr;
use std::sync::LazyLock;
use std::time::Duration;

use axum::body::Bytes;
use http_body_util::Full;
use hyper::{Request, StatusCode, header};
use prometheus_client::metrics::counter::Counter;
use serde_json::{Value, json};
use stocklock_core::trace::TARGET;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::registry::LookupSpan;

mod span;

use crate::client::send;
use span::attribute;

/// How many finished spans may wait. More are dropped.
const QUEUE: usize = 8192;

/// How many spans are sent at once.
const BATCH: usize = 512;

/// How long spans wait for others.
const PAUSE: Duration = Duration::from_millis(500);

/// How long the collector may take for its answer.
const LIMIT: Duration = Duration::from_secs(5);

/// The spans that were dropped. Replicas in one process share the counter, as they share the subscriber.
static DROPPED: LazyLock<Counter> = LazyLock::new(Counter::default);

/// See [`DROPPED`].
pub(crate) fn dropped_spans() -> Counter {
    DROPPED.clone()
}

/// A collector: `http://host[:port][/path]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collector {
    /// `host:port`.
    address: String,
    /// Where it takes traces.
    path: String,
}

impl FromStr for Collector {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTED: &str = "expected http://host[:port][/path]: there is no TLS here, so name a collector \
                                near this replica, which encrypts what it sends on";
        let (host, path) = match text
            .strip_prefix("http://")
            .ok_or(EXPECTED)?
            .split_once('/')
        {
            Some((host, path)) => (host, format!("/{}/", path.trim_end_matches('/'))),
            None => (&text["http://".len()..], "/".to_owned()),
        };
        let is_host = !host.is_empty() && host.bytes().all(|b| b.is_ascii_graphic() && b != b'@');
        if !is_host || path.contains(['?', '#']) {
            return Err(EXPECTED);
        }
        let has_port = host
            .rsplit(']')
            .next()
            .is_some_and(|rest| rest.contains(':'));
        Ok(Self {
            address: if has_port {
                host.to_owned()
            } else {
                format!("{host}:4318")
            },
            path: format!("{}v1/traces", path.replacen("//", "/", 1)),
        })
    }
}

/// What collects the spans of [`TARGET`] for a [`TraceSender`].
#[derive(Debug)]
pub(crate) struct Traces {
    finished: Sender<Value>,
}

/// Sends what a [`Traces`] has collected.
#[derive(Debug)]
pub(crate) struct TraceSender {
    task: JoinHandle<()>,
    stop: CancellationToken,
}

impl Traces {
    /// Starts to send to `collector`, from the replica of this name.
    pub(crate) fn start(collector: Collector, replica: &str) -> (Self, TraceSender) {
        let (finished, spans) = channel(QUEUE);
        let stop = CancellationToken::new();
        let sending = Sending {
            collector,
            resource: json!({"attributes": [
                attribute("service.name", "stocklock".into()),
                attribute("service.version", env!("CARGO_PKG_VERSION").into()),
                attribute("service.instance.id", replica.into()),
            ]}),
            failing: false,
        };
        let task = tokio::spawn(sending.run(spans, stop.clone()));
        (Self { finished }, TraceSender { task, stop })
    }

    /// The layer, which sees its own spans only.
    pub(crate) fn layer<S>(self) -> impl Layer<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        self.with_filter(Targets::new().with_target(TARGET, Level::TRACE))
    }
}

impl TraceSender {
    /// Sends what is finished, and ends. Takes at most as long as the collector may take for an answer.
    pub(crate) async fn end(self) {
        self.stop.cancel();
        match timeout(LIMIT, self.task).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the sender of traces failed"),
            Err(_elapsed) => {
                tracing::warn!("the collector of traces is too slow; spans were not sent");
            }
        }
    }
}

/// The task that sends.
struct Sending {
    collector: Collector,
    resource: Value,
    failing: bool,
}

impl Sending {
    async fn run(mut self, mut spans: Receiver<Value>, stop: CancellationToken) {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let is_stopping = stop.is_cancelled();
            tokio::select! {
                _ = spans.recv_many(&mut batch, BATCH) => {}
                () = stop.cancelled() => {}
            }
            if batch.len() < BATCH {
                tokio::select! {
                    () = sleep(PAUSE) => {}
                    () = stop.cancelled() => {}
                }
            }
            while batch.len() < BATCH
                && let Ok(span) = spans.try_recv()
            {
                batch.push(span);
            }
            if !batch.is_empty() {
                self.send(&mut batch).await;
            } else if is_stopping {
                return;
            }
            if is_stopping && self.failing {
                return;
            }
        }
    }

    /// Sends a batch once. Empties it.
    async fn send(&mut self, batch: &mut Vec<Value>) {
        let count = batch.len() as u64;
        let body = json!({"resourceSpans": [{
            "resource": self.resource,
            "scopeSpans": [{"scope": {"name": "stocklock"}, "spans": std::mem::take(batch)}],
        }]});
        let request = Request::post(&self.collector.path)
            .header(header::HOST, &self.collector.address)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body.to_string())))
            .expect("a valid request");
        let problem = match send(&self.collector.address, request, LIMIT).await {
            Ok(answer) if answer.status() == StatusCode::OK => None,
            Ok(answer) => Some(format!("it answered {}", answer.status())),
            Err(problem) => Some(problem),
        };
        if let Some(problem) = &problem {
            DROPPED.inc_by(count);
            if !self.failing {
                tracing::warn!(
                    problem,
                    "OTEL_EXPORTER_OTLP_ENDPOINT does not take traces: they are dropped"
                );
            }
        }
        self.failing = problem.is_some();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collector_is_a_url_without_tls() {
        for (text, address, path) in [
            ("http://otel", "otel:4318", "/v1/traces"),
            ("http://otel:80/", "otel:80", "/v1/traces"),
            ("http://[::1]/a/b/", "[::1]:4318", "/a/b/v1/traces"),
        ] {
            let collector: Collector = text.parse().expect("a collector");
            assert_eq!(
                (&*collector.address, &*collector.path),
                (address, path),
                "{text}"
            );
        }
        for wrong in [
            "https://otel",
            "otel:4318",
            "http://",
            "http://a:b@otel",
            "http://o/?a",
        ] {
            assert!(wrong.parse::<Collector>().is_err(), "{wrong}");
        }
    }
}
