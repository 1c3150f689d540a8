//! Replicas to test against: real HTTP on their own ports, on a fresh database or a given one.

use clap::Parser;
use reqwest::{Method, RequestBuilder, Response};
use secrecy::SecretString;
use serde_json::{Value, json};
use stocklock::config::{DatabaseConfig, Limits, ServicesConfig};
use stocklock::lab::race::Target;
use stocklock::replicas::Replicas;

use super::services::{Backend, TestDatabase, fresh_database};

/// Replicas in lab mode, with a client.
pub(crate) struct TestApp {
    replicas: Replicas,
    pub(crate) client: reqwest::Client,
    /// The database, for who wants to get in the service's way there.
    pub(crate) database_url: String,
    /// Kept because dropping it may drop the database.
    _database: Option<TestDatabase>,
}

/// The service's settings as its own command line reads them.
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

    /// `count` replicas on a fresh database, with settings as on the command line.
    pub(crate) async fn with_flags(backend: Backend, count: u32, flags: &[&str]) -> Self {
        let database = fresh_database(backend).await;
        let app = Self::on(&database.url, count, flags).await;
        Self {
            _database: Some(database),
            ..app
        }
    }

    /// `count` replicas on the database at `url`, whose schema is brought up to date first.
    pub(crate) async fn on(url: &str, count: u32, flags: &[&str]) -> Self {
        stocklock::store::migrate(url)
            .await
            .expect("the schema can be brought up to date");
        Self::on_migrated(url, count, flags).await
    }

    /// The same, on a database whose schema is up to date, reachable or not.
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
        // Connections are not shared between tests, and a cut one must not be hidden by a retry.
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

    /// Where the replicas are, for a race.
    pub(crate) fn targets(&self) -> &[Target] {
        self.replicas.targets()
    }

    /// The address of a replica, counted from zero and around.
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
        let response = self.get(path).await;
        assert_eq!(response.status(), 200, "{path}");
        response.json().await.expect("the body is JSON")
    }

    pub(crate) async fn set_level(&self, sku: &str, on_hand: i64) {
        let request = self.request(0, Method::PUT, &format!("/stock/{sku}"));
        let response = request.json(&json!({"on_hand": on_hand})).send().await;
        let response = response.expect("the replica answers");
        assert!(
            response.status().is_success(),
            "{}",
            response.text().await.unwrap_or_default()
        );
    }

    /// A deduction of `body` at a replica, ready to send.
    pub(crate) fn deduct(&self, replica: usize, strategy: &str, body: &Value) -> RequestBuilder {
        self.request(
            replica,
            Method::POST,
            &format!("/stock/deduct?strategy={strategy}"),
        )
        .json(body)
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
