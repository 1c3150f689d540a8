//! Traces: a collector that a test runs receives the spans of requests, and their links.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::routing::post;
use futures_util::future::join_all;
use reqwest::{Method, RequestBuilder};
use rstest::rstest;
use serde_json::{Value, json};
use stocklock_testkit::eventually;
use stocklock_testkit::secrets::leaked;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use crate::faults::SOON;
use crate::support::app::send;
use crate::support::client::client;
use crate::support::process::Process;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};
use crate::support::services::{fresh_database, password};
use crate::support::topology::Topology;

type Spans = Arc<Mutex<Vec<Value>>>;

/// A receiver of OTLP.
struct Receiver {
    url: String,
    spans: Spans,
    _server: AbortOnDropHandle<()>,
}

impl Receiver {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let spans = Spans::default();
        let routes = Router::new().route("/v1/traces", post(receive));
        let server = axum::serve(listener, routes.with_state(Arc::clone(&spans)));
        Self {
            url: format!("http://{address}"),
            spans,
            _server: AbortOnDropHandle::new(tokio::spawn(async move {
                server.await.expect("it serves");
            })),
        }
    }

    /// The spans of a trace, by their names.
    fn trace(&self, trace: &str) -> BTreeMap<String, Vec<Value>> {
        let mut names: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for span in self.spans.lock().expect("no panic").iter() {
            if span["traceId"] == trace {
                let name = span["name"].as_str().expect("a name").to_owned();
                names.entry(name).or_default().push(span.clone());
            }
        }
        names
    }
}

async fn receive(State(spans): State<Spans>, headers: HeaderMap, body: String) -> &'static str {
    assert_eq!(headers["content-type"], "application/json");
    assert_eq!(leaked(&body, &[password().to_owned()]), None);
    let body: Value = serde_json::from_str(&body).expect("it is JSON");
    let resource = &body["resourceSpans"][0];
    let name = &resource["resource"]["attributes"][0]["value"]["stringValue"];
    assert_eq!(name, "stocklock");
    let received = resource["scopeSpans"][0]["spans"]
        .as_array()
        .expect("spans");
    spans
        .lock()
        .expect("no panic")
        .extend(received.iter().cloned());
    "{}"
}

fn attribute<'a>(span: &'a Value, name: &str) -> &'a Value {
    let attributes = span["attributes"].as_array().expect("attributes");
    let found = attributes.iter().find(|attribute| attribute["key"] == name);
    let value = found.unwrap_or_else(|| panic!("no {name} in {span}"))["value"].as_object();
    value
        .and_then(|value| value.values().next())
        .expect("a value")
}

/// A request of a caller with a trace.
fn continuing(request: RequestBuilder, flags: &str) -> RequestBuilder {
    request.header("traceparent", format!("00-{TRACE}-{CALLER}-{flags}"))
}

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trace_through_nginx_has_queue_batch_and_statement(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let receiver = Receiver::start().await;
    let database = fresh_database(backend).await;
    let variables = [
        ("DATABASE_URL", &*database.url),
        ("REDIS_URL", "redis://127.0.0.1:1"),
        ("ZOOKEEPER_CONNECT", "127.0.0.1:1"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &receiver.url),
    ];
    let topology = Topology::up(&variables).await;
    let client = client();
    let level = client
        .put(topology.url("/stock/tea"))
        .json(&json!({"on_hand": 5}));
    assert_eq!(send(level).await.status, 201);
    let deduct = client.post(topology.url("/stock/deduct?sku=tea"));
    send(continuing(deduct, "01")).await.ok();

    let has_all = async || receiver.trace(TRACE).len() == 4;
    eventually("all spans arrive", SOON, has_all).await;
    let trace = receiver.trace(TRACE);
    let one = |name: &str| &trace[name][0];
    let (http, queue, batch) = (one("HTTP"), one("queue"), one("batch"));
    assert_eq!(http["parentSpanId"], CALLER);
    assert_eq!(attribute(http, "url.path"), "/stock/deduct");
    assert_eq!(attribute(http, "http.response.status_code"), "200");
    let kinds = [&http["kind"], &queue["kind"], &one("statement")["kind"]];
    assert_eq!(kinds, [2, 1, 3]);
    assert_eq!(queue["parentSpanId"], http["spanId"]);
    assert_eq!(batch["parentSpanId"], queue["spanId"]);
    let mut texts = String::new();
    for statement in &trace["statement"] {
        assert_eq!(statement["parentSpanId"], batch["spanId"], "{statement}");
        texts += attribute(statement, "db.query.text")
            .as_str()
            .expect("a text");
    }
    // The text has placeholders instead of values.
    let has_statement = texts.contains("movement") || texts.contains("CALL");
    assert!(has_statement, "{texts}");
    assert!(!texts.contains("tea"), "{texts}");
    let time = |span: &Value, name: &str| {
        span[name]
            .as_str()
            .and_then(|text| text.parse::<u64>().ok())
            .expect("nanoseconds")
    };
    let (start, end) = ("startTimeUnixNano", "endTimeUnixNano");
    assert!(time(http, start) <= time(queue, start));
    assert!(time(queue, start) <= time(queue, end));
    assert!(time(queue, end) <= time(batch, end));
    assert!(time(one("statement"), end) <= time(http, end));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch_is_linked_to_each_of_its_operations() {
    let receiver = Receiver::start().await;
    let database = fresh_database(Postgres).await;
    let variables = [
        ("DATABASE_URL", &*database.url),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &receiver.url),
    ];
    let replica = Process::serving(&["serve"], &variables).await;
    replica.set_level("hot", 1_000).await;
    let client = client();
    // The caller does not want a trace of this one.
    let unwanted = client.post(replica.url("/stock/deduct?sku=hot"));
    send(continuing(unwanted, "00")).await.ok();
    let buyers = (0..200).map(|_| {
        let request = client.post(replica.url("/stock/deduct"));
        send(request.json(&json!({"sku": "hot"})))
    });
    for answer in join_all(buyers).await {
        answer.ok();
    }
    // What has not been sent yet is sent at the end.
    replica.terminate();
    assert_eq!(replica.ended().await.code, Some(0));
    assert_eq!(receiver.trace(TRACE), BTreeMap::new());
    let spans = receiver.spans.lock().expect("no panic");
    let ids = |name: &str| {
        spans
            .iter()
            .filter(|span| span["name"] == name)
            .collect::<Vec<_>>()
    };
    let queues: BTreeSet<_> = ids("queue")
        .iter()
        .map(|span| span["spanId"].to_string())
        .collect();
    let mut followed = BTreeSet::new();
    let mut largest = 0;
    for batch in ids("batch") {
        let links = batch["links"].as_array().expect("links");
        largest = largest.max(links.len());
        followed.insert(batch["parentSpanId"].to_string());
        followed.extend(links.iter().map(|link| link["spanId"].to_string()));
    }
    assert_eq!(followed, queues);
    // With the level that was set.
    assert_eq!(queues.len(), 201);
    assert!(largest > 0, "no batch has two operations");
}

#[tokio::test]
async fn collector_that_is_away_costs_spans_and_one_log_line() {
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")];
    let replica = Process::serving(&["serve"], &variables).await;
    replica.set_level("tea", 1).await;
    let dropped = async || replica.counted("trace_spans_dropped_total").await > 0;
    eventually("spans are counted", SOON, dropped).await;
    send(replica.request(Method::POST, "/stock/deduct?sku=tea"))
        .await
        .ok();
    replica.terminate();
    let ended = replica.ended().await;
    let told = ended.stderr.matches("OTEL_EXPORTER_OTLP_ENDPOINT").count();
    assert_eq!(told, 1, "{}", ended.stderr);
}
