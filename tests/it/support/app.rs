//! Replicas to test against, on a fresh database or a given one, and the answers that they send.
//! Each replica serves HTTP on its own port of this process.

use std::time::Duration;

use clap::Parser;
use reqwest::header::{HeaderMap, HeaderName, IF_MATCH};
use reqwest::{Client, Method, RequestBuilder};
use secrecy::SecretString;
use serde_json::{Value, json};
use stocklock::app::Replica;
use stocklock::config::{Config, Mode};
use stocklock::lab::race::Target;
use stocklock_testkit::secrets::leaked;
use stocklock_testkit::servers::password;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::client::client;
use super::proxy::Proxy;
use super::services::{Backend, TestDatabase, fresh_database};
use crate::faults::SOON;

/// A response, with the parts that many tests check.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// A text if the body is not JSON.
    pub(crate) body: Value,
    /// `code` of a problem.
    pub(crate) code: String,
    /// `detail` of a problem.
    pub(crate) detail: String,
    /// `id` of an operation.
    pub(crate) id: String,
    pub(crate) replayed: bool,
    pub(crate) retry_after: bool,
    /// Time from the request to the end of the response.
    pub(crate) after: Duration,
}

impl Answer {
    /// The body of an answer whose status must be 200.
    #[track_caller]
    pub(crate) fn ok(&self) -> &Value {
        assert_eq!(self.status, 200, "{self:?}");
        &self.body
    }

    #[track_caller]
    pub(crate) fn assert_is(&self, status: u16, code: &str) {
        assert_eq!(self.status_and_code(), (status, code), "{self:?}");
    }

    /// Asserts these fields of the body, by their names or by JSON pointers.
    #[track_caller]
    pub(crate) fn assert_has(&self, fields: &Value) {
        for (name, expected) in fields.as_object().expect("fields") {
            let found = match name.strip_prefix('/') {
                Some(_) => self.body.pointer(name),
                None => self.body.get(name),
            };
            assert_eq!(found, Some(expected), "{name}: {self:?}");
        }
    }

    /// Some fields of each row of a list in the body.
    #[track_caller]
    pub(crate) fn rows(&self, list: &str, fields: &[&str]) -> Vec<Value> {
        let found = self.body[list].as_array();
        rows(found.unwrap_or_else(|| panic!("{self:?}")), fields)
    }

    /// Asserts a 503 that asks for a retry, with this code.
    #[track_caller]
    pub(crate) fn assert_refused_for_now(&self, code: &str) {
        self.assert_is(503, code);
        assert!(self.retry_after, "{self:?}");
    }

    pub(crate) fn status_and_code(&self) -> (u16, &str) {
        (self.status, &self.code)
    }

    /// A body that is not JSON.
    #[track_caller]
    pub(crate) fn text(&self) -> &str {
        self.body.as_str().expect("a text")
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default()
    }

    /// Whether a client should send the same request again. Only nginx answers 502.
    pub(crate) fn asks_for_retry(&self) -> bool {
        matches!(self.status, 502..=504) || self.code == "request-in-flight"
    }
}

/// The header that a word of `call!` names.
pub(crate) fn header(word: &str) -> HeaderName {
    let name = match word {
        "key" => "idempotency-key".to_owned(),
        word => word.replace('_', "-"),
    };
    name.parse().expect("the name of a header")
}

/// Some fields of each row.
pub(crate) fn rows(rows: &[Value], fields: &[&str]) -> Vec<Value> {
    let row = |row: &Value| fields.iter().map(|field| row[field].clone()).collect();
    rows.iter().map(row).collect()
}

/// Sends a request once; an error means that no complete response came.
pub(crate) async fn try_send(request: RequestBuilder) -> reqwest::Result<Answer> {
    let start = Instant::now();
    let hangs = |error: &reqwest::Error| assert!(!error.is_timeout(), "it hangs: {error:?}");
    let response = request.send().await.inspect_err(hangs)?;
    let status = response.status().as_u16();
    let headers = response.headers().clone();
    let text = response.text().await.inspect_err(hangs)?;
    let body: Value = serde_json::from_str(&text).unwrap_or_else(|_| text.clone().into());
    let field = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
    // That of a webhook is shown when it is new.
    let rest = match &*field("secret") {
        "" => text,
        new => text.replace(new, ""),
    };
    let password = [password().to_owned()];
    assert_eq!(leaked(&rest, &password), None, "a secret in an answer");
    let (code, detail, id) = (field("code"), field("detail"), field("id"));
    Ok(Answer {
        status,
        replayed: headers.contains_key("idempotent-replayed"),
        retry_after: headers.contains_key("retry-after"),
        headers,
        body,
        code,
        detail,
        id,
        after: start.elapsed(),
    })
}

/// Sends a request once.
///
/// # Panics
/// If no complete response comes.
pub(crate) async fn send(request: RequestBuilder) -> Answer {
    try_send(request).await.expect("the replica answers")
}

/// The sum of the metrics whose names and labels start with `series`.
pub(crate) fn counted(metrics: &str, series: &str) -> u64 {
    let counted = |line: &str| {
        let (_, value) = line.strip_prefix(series)?.rsplit_once(' ')?;
        value.parse::<u64>().ok()
    };
    metrics.lines().filter_map(counted).sum()
}

/// Replicas in lab mode, with a client. Each has its own connection pool and local mutexes, so they
/// share only their servers. Dropping this value aborts them.
pub(crate) struct TestApp {
    targets: Vec<Target>,
    running: JoinSet<()>,
    shutdowns: Vec<CancellationToken>,
    pub(crate) client: Client,
    is_patient: bool,
    /// The database, for tests that lock or change its rows themselves.
    pub(crate) database_url: String,
    /// Kept because dropping it may drop the database.
    _database: Option<TestDatabase>,
}

/// The settings of the service, read by its own command line parser.
#[derive(Parser)]
struct Settings {
    #[command(flatten)]
    config: Config,
}

impl TestApp {
    /// Two replicas on a fresh database.
    pub(crate) async fn start(backend: Backend) -> Self {
        Self::with_flags(backend, 2, &[]).await
    }

    /// `count` replicas on a fresh database with one level.
    pub(crate) async fn with_stock(backend: Backend, count: u32, sku: &str, on_hand: i64) -> Self {
        let app = Self::with_flags(backend, count, &[]).await;
        app.set_level(sku, on_hand).await;
        app
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

    /// A replica on a fresh database, and the proxy between them.
    pub(crate) async fn proxied(backend: Backend, flags: &[&str]) -> (Proxy, Self) {
        let database = fresh_database(backend).await;
        let (proxy, url) = Proxy::before(&database.url).await;
        let app = Self {
            _database: Some(database),
            ..Self::on(&url, 1, flags).await
        };
        (proxy, app)
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
        Self::in_mode(Mode::Lab, url, count, flags).await
    }

    /// As [`TestApp::on_migrated`], but in production: requests need API keys.
    pub(crate) async fn serving(url: &str, count: u32, flags: &[&str]) -> Self {
        Self::in_mode(Mode::Serve, url, count, flags).await
    }

    async fn in_mode(mode: Mode, url: &str, count: u32, flags: &[&str]) -> Self {
        let flags = std::iter::once("test").chain(flags.iter().copied());
        let Settings { mut config } = Settings::parse_from(flags);
        config.database.database_url = Some(SecretString::from(url));
        let (mut targets, mut shutdowns) = (Vec::new(), Vec::new());
        let mut running = JoinSet::new();
        for number in 1..=count {
            config.service.replica_id = Some(format!("replica-{number}"));
            let replica = Replica::build(&config, mode).expect("valid settings");
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let address = listener.local_addr().expect("a bound port");
            let target = format!("http://{address}").parse();
            targets.push(target.expect("an address of loopback"));
            shutdowns.push(replica.shutdown_token());
            running.spawn(replica.run(listener, None));
        }
        Self {
            targets,
            running,
            shutdowns,
            // Tests share no connections.
            client: client(),
            is_patient: false,
            database_url: url.to_owned(),
            _database: None,
        }
    }

    /// The same; from now on, [`Self::send`] repeats a request until its answer is definite.
    pub(crate) fn patient(self) -> Self {
        Self {
            is_patient: true,
            ..self
        }
    }

    pub(crate) async fn send(&self, request: RequestBuilder) -> Answer {
        let begin = Instant::now();
        loop {
            let answer = send(request.try_clone().expect("no stream")).await;
            if !(self.is_patient && answer.asks_for_retry()) {
                return answer;
            }
            assert!(begin.elapsed() < SOON, "still {answer:?}");
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Units on hand and held units of a SKU, in the order of its warehouses.
    pub(crate) async fn levels(&self, sku: &str) -> Vec<Value> {
        let levels = self.get(&format!("/stock/{sku}")).await;
        levels.rows("warehouses", &["on_hand", "held"])
    }

    /// The addresses of the replicas, for a race.
    pub(crate) fn targets(&self) -> &[Target] {
        &self.targets
    }

    /// The base URL of replica `replica % count`.
    pub(crate) fn base(&self, replica: usize) -> String {
        self.targets[replica % self.targets.len()].to_string()
    }

    pub(crate) fn request(&self, replica: usize, method: Method, path: &str) -> RequestBuilder {
        self.client
            .request(method, format!("{}{path}", self.base(replica)))
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        send(self.request(0, Method::GET, path)).await
    }

    /// The JSON body of a GET that must succeed.
    pub(crate) async fn get_json(&self, path: &str) -> Value {
        self.get(path).await.ok().clone()
    }

    /// The sum of a replica's metrics whose names and labels start with `series`.
    pub(crate) async fn counted(&self, replica: usize, series: &str) -> u64 {
        let metrics = send(self.request(replica, Method::GET, "/metrics")).await;
        counted(metrics.text(), series)
    }

    /// The value of a gauge without labels at the first replica; `None` if it is absent.
    pub(crate) async fn gauge(&self, name: &str) -> Option<f64> {
        let metrics = self.get("/metrics").await;
        let mut lines = metrics.text().lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.map(|value| value.parse().expect("a number"))
    }

    /// Sets the level of a SKU, new or not.
    pub(crate) async fn set_level(&self, sku: &str, on_hand: i64) {
        let put = || self.put(0, sku, &json!({"on_hand": on_hand}));
        let mut set = send(put()).await;
        if set.code == "precondition-required" {
            set = send(put().header(IF_MATCH, "*")).await;
        }
        assert!([200, 201].contains(&set.status), "{set:?}");
    }

    /// A deduction, ready to send.
    pub(crate) fn deduct(&self, replica: usize, strategy: &str, body: &Value) -> RequestBuilder {
        let path = format!("/stock/deduct?strategy={strategy}");
        self.request(replica, Method::POST, &path).json(body)
    }

    /// The results of a batch of deductions, which must be valid.
    pub(crate) async fn deduct_all(&self, strategy: &str, lines: &Value) -> Vec<Value> {
        let path = format!("/stock/deduct/batch?strategy={strategy}");
        let request = self.request(0, Method::POST, &path);
        let answer = send(request.json(&json!({ "lines": lines }))).await;
        answer.ok()["results"].as_array().expect("a list").clone()
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

    /// The audit of the SKU's only warehouse, which must be consistent.
    pub(crate) async fn assert_consistent(&self, sku: &str) -> Value {
        let audit = self.audit(sku).await;
        assert_eq!(audit["consistent"], true, "{sku}: {audit}");
        audit
    }

    pub(crate) async fn stop(mut self) {
        self.shutdowns.iter().for_each(CancellationToken::cancel);
        while self.running.join_next().await.is_some() {}
    }
}
