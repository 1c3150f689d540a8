//! Replicas to test against, on a fresh database or a given one, and the answers that they send.
//! Each replica serves HTTP on its own port of this process.

use std::time::Duration;

use clap::Parser;
use reqwest::header::HeaderMap;
use reqwest::{Method, RequestBuilder, Response};
use secrecy::SecretString;
use serde_json::{Value, json};
use stocklock::config::{DatabaseConfig, Limits, ServicesConfig};
use stocklock::lab::race::Target;
use stocklock::replicas::Replicas;
use tokio::time::Instant;

use super::services::{Backend, TestDatabase, fresh_database};

/// An answer with a JSON body.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// `null` if the answer has no body.
    pub(crate) body: Value,
    /// Time from the request to the end of the answer.
    pub(crate) after: Duration,
}

impl Answer {
    /// The body of an answer whose status must be 200.
    #[track_caller]
    pub(crate) fn ok(&self) -> &Value {
        assert_eq!(self.status, 200, "{self:?}");
        &self.body
    }

    /// Status and error code, to compare with those that a test expects.
    pub(crate) fn problem(&self) -> (u16, &str) {
        (self.status, self.body["code"].as_str().unwrap_or_default())
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default()
    }

    /// Whether the answer is that of an earlier request with the same key.
    pub(crate) fn replayed(&self) -> bool {
        self.header("idempotent-replayed") == "true"
    }
}

/// Sends a request and reads its answer.
pub(crate) async fn send(request: RequestBuilder) -> Answer {
    let start = Instant::now();
    let response = request.send().await.expect("the replica answers");
    let status = response.status().as_u16();
    let headers = response.headers().clone();
    let text = response.text().await.expect("the body is complete");
    let body = match &*text {
        "" => Value::Null,
        text => serde_json::from_str(text).unwrap_or_else(|_| panic!("not JSON: {text}")),
    };
    Answer {
        status,
        headers,
        body,
        after: start.elapsed(),
    }
}

/// Replicas in lab mode, with a client.
pub(crate) struct TestApp {
    replicas: Replicas,
    pub(crate) client: reqwest::Client,
    /// The database, for tests that lock or change its rows themselves.
    pub(crate) database_url: String,
    /// Kept because dropping it may drop the database.
    _database: Option<TestDatabase>,
}

/// The settings of the service, read by its own command line parser.
#[derive(Parser)]
struct Settings {
    #[command(flatten)]
    database: DatabaseConfig,
    #[command(flatten)]
    services: ServicesConfig,
    #[command(flatten)]
    limits: Limits,
}

impl TestApp {
    /// Two replicas on a fresh database.
    pub(crate) async fn start(backend: Backend) -> Self {
        Self::with_flags(backend, 2, &[]).await
    }

    /// `count` replicas on a fresh database, with command line flags.
    pub(crate) async fn with_flags(backend: Backend, count: u32, flags: &[&str]) -> Self {
        let database = fresh_database(backend).await;
        let app = Self::on(&database.url, count, flags).await;
        Self {
            _database: Some(database),
            ..app
        }
    }

    /// `count` replicas on the database at `url`, which is migrated first.
    pub(crate) async fn on(url: &str, count: u32, flags: &[&str]) -> Self {
        stocklock::store::migrate(url)
            .await
            .expect("the database can be migrated");
        Self::on_migrated(url, count, flags).await
    }

    /// As [`TestApp::on`], for a database that is migrated already and may be unreachable.
    pub(crate) async fn on_migrated(url: &str, count: u32, flags: &[&str]) -> Self {
        let flags = std::iter::once("test").chain(flags.iter().copied());
        let Settings {
            mut database,
            services,
            limits,
        } = Settings::parse_from(flags);
        database.database_url = Some(SecretString::from(url));
        let replicas = Replicas::start(&database, &services, &limits, count)
            .await
            .expect("replicas start");
        // Tests share no connections, and a retry must not hide a broken connection.
        let client = reqwest::Client::builder()
            .no_proxy()
            .retry(reqwest::retry::never());
        let client = client.build().expect("a client without TLS can be built");
        Self {
            replicas,
            client,
            database_url: url.to_owned(),
            _database: None,
        }
    }

    /// The addresses of the replicas, for a race.
    pub(crate) fn targets(&self) -> &[Target] {
        self.replicas.targets()
    }

    /// The base URL of replica `replica % count`.
    pub(crate) fn base(&self, replica: usize) -> String {
        let targets = self.replicas.targets();
        targets[replica % targets.len()].to_string()
    }

    /// A request to a replica.
    pub(crate) fn request(&self, replica: usize, method: Method, path: &str) -> RequestBuilder {
        self.client
            .request(method, format!("{}{path}", self.base(replica)))
    }

    pub(crate) async fn get(&self, path: &str) -> Response {
        self.request(0, Method::GET, path)
            .send()
            .await
            .expect("the replica answers")
    }

    /// The JSON body of a GET that must succeed.
    pub(crate) async fn get_json(&self, path: &str) -> Value {
        let answer = send(self.request(0, Method::GET, path)).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        answer.body
    }

    pub(crate) async fn set_level(&self, sku: &str, on_hand: i64) {
        let set = send(self.put(0, sku, &json!({"on_hand": on_hand}))).await;
        assert!([200, 201].contains(&set.status), "{set:?}");
    }

    /// A deduction, ready to send.
    pub(crate) fn deduct(&self, replica: usize, strategy: &str, body: &Value) -> RequestBuilder {
        let path = format!("/stock/deduct?strategy={strategy}");
        self.request(replica, Method::POST, &path).json(body)
    }

    /// A request that sets the level of a SKU, ready to send.
    pub(crate) fn put(&self, replica: usize, sku: &str, body: &Value) -> RequestBuilder {
        let path = format!("/stock/{sku}");
        self.request(replica, Method::PUT, &path).json(body)
    }

    /// An adjustment, ready to send.
    pub(crate) fn adjust(&self, replica: usize, sku: &str, body: &Value) -> RequestBuilder {
        let path = format!("/stock/{sku}/adjust");
        self.request(replica, Method::POST, &path).json(body)
    }

    /// The audit of the SKU's only warehouse.
    pub(crate) async fn audit(&self, sku: &str) -> Value {
        self.get_json(&format!("/stock/{sku}/audit")).await["warehouses"][0].clone()
    }

    /// Stops the replicas gracefully.
    pub(crate) async fn stop(self) {
        self.replicas.stop().await;
    }
}
