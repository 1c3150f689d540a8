//! Faults: what breaks around the service, and what must hold all the same.
//!
//! One file for each thing that breaks. The ledger is read past the service and past every proxy,
//! so that what a test believes does not depend on what it has broken.

use std::sync::Arc;
use std::time::Duration;

use reqwest::{RequestBuilder, Response};
use serde_json::Value;
use stocklock::stock::{Audit, Movement, MovementFilter, Sku};
use stocklock::store::{StockStore, StoreOptions, connect};
use stocklock::strategy::Strategy;
use tokio::time::{Instant, sleep};

use crate::support::app::TestApp;
use crate::support::proxy::{Proxy, Trigger};
use crate::support::services::{Backend, TestDatabase, fresh_database};

mod cut_amid;
mod database_away;
mod database_killed;
mod disconnect;
mod drain;
mod half_open;
mod holder_killed;
mod holder_stopped;
mod level_changes;
mod lock_holder;
mod lock_server_killed;
mod lock_servers;
mod memory;
mod session;
mod unknown_commit;

/// A bound for what takes milliseconds on an idle machine.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Asks until the answer is yes.
///
/// # Panics
/// When it is still no at the limit.
pub(crate) async fn until<F: Future<Output = bool>>(
    what: &str,
    limit: Duration,
    mut holds: impl FnMut() -> F,
) -> Duration {
    let started = Instant::now();
    while !holds().await {
        assert!(started.elapsed() < limit, "not within {limit:?}: {what}");
        sleep(Duration::from_millis(5)).await;
    }
    started.elapsed()
}

/// What the service said.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Of a problem.
    pub(crate) code: String,
    /// Of a problem, for people.
    pub(crate) detail: String,
    /// Of an operation.
    pub(crate) id: String,
    pub(crate) replayed: bool,
    pub(crate) retry_after: bool,
}

impl Answer {
    async fn of(response: Response) -> Result<Self, reqwest::Error> {
        let status = response.status().as_u16();
        let has = |name| response.headers().contains_key(name);
        let (replayed, retry_after) = (has("idempotent-replayed"), has("retry-after"));
        let body: Value = response.json().await?;
        let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
        Ok(Self {
            status,
            code: text("code"),
            detail: text("detail"),
            id: text("id"),
            replayed,
            retry_after,
        })
    }

    /// Nothing is decided yet: the same request again is welcome.
    pub(crate) fn asks_for_retry(&self) -> bool {
        matches!(self.status, 503 | 504) || self.code == "request-in-flight"
    }
}

/// Sends a request once.
pub(crate) async fn send(request: RequestBuilder) -> Result<Answer, reqwest::Error> {
    Answer::of(request.send().await?).await
}

/// Sends a request, and repeats it until it is decided.
///
/// # Panics
/// When the outcome is unknown and there is no key to repeat it with, or when it takes too long.
async fn settle(request: RequestBuilder) -> Answer {
    let started = Instant::now();
    loop {
        let copy = request.try_clone().expect("the body is in memory");
        let (client, built) = copy.build_split();
        let built = built.expect("a request");
        let keyed = built.headers().contains_key(KEY);
        let response = client.execute(built).await.expect("the replica answers");
        let answer = Answer::of(response).await.expect("the replica answers");
        if !answer.asks_for_retry() {
            return answer;
        }
        assert!(keyed || answer.status != 504, "{answer:?}");
        assert!(started.elapsed() < SOON, "still {answer:?}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// The header that makes a repeat safe.
pub(crate) const KEY: &str = "idempotency-key";

/// A key that nobody has used yet.
pub(crate) fn new_key() -> String {
    format!("key-{:016x}", fastrand::u64(..))
}

/// Adds a new key where there is to be one.
fn keyed(request: RequestBuilder, keyed: bool) -> RequestBuilder {
    if keyed {
        request.header(KEY, new_key())
    } else {
        request
    }
}

/// Replicas with a proxy between them and their database.
struct Proxied {
    backend: Backend,
    app: TestApp,
    proxy: Proxy,
    /// The database through the proxy.
    url: String,
    ledger: Ledger,
    database: TestDatabase,
}

impl Proxied {
    async fn start(backend: Backend, replicas: u32, flags: &[&str]) -> Self {
        let database = fresh_database(backend).await;
        let (proxy, url) = Proxy::before(&database.url).await;
        Self {
            backend,
            app: TestApp::on(&url, replicas, flags).await,
            proxy,
            url,
            ledger: Ledger::at(&database.url),
            database,
        }
    }

    /// What every new connection says, and none later on.
    fn greeting(&self) -> &'static [u8] {
        match self.backend {
            Backend::Mysql => b"mysql_native_password",
            _ => b"application_name",
        }
    }
}

/// Where a connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// Before COMMIT reaches the server: nothing happened.
    Before,
    /// After the server has carried it out: it happened, and nobody was told.
    After,
}

impl Cut {
    /// Cuts the next commit of a deduction.
    fn arm_for(self, subject: &Proxied, strategy: Strategy) -> Arc<Trigger> {
        let proxy = &subject.proxy;
        match (subject.backend, self) {
            // It needs several round trips.
            _ if strategy == Strategy::ForUpdate => self.arm(subject, 1),
            // One message of five statements; the fifth answer is COMMIT's.
            (Backend::Mysql, Self::Before) => proxy.cut_before(b"\x03SET @available", 1),
            (Backend::Mysql, Self::After) => proxy.cut_answer(b"\x07\0\0\x05\0\0\0\x02\0", 1),
            // One statement, which commits as it ends; one of its parameters is the strategy.
            (_, cut) => {
                let name = strategy.name().as_bytes();
                let parameter = [&[0, 0, 0, u8::try_from(name.len()).unwrap()], name].concat();
                match cut {
                    Self::Before => proxy.cut_before(&parameter, 1),
                    Self::After => proxy.cut_after(&parameter, 1),
                }
            }
        }
    }

    /// Cuts the next `times` messages that are a COMMIT.
    fn arm(self, subject: &Proxied, times: u32) -> Arc<Trigger> {
        let commit = subject.backend.commit_message();
        match self {
            Self::Before => subject.proxy.cut_before(commit, times),
            Self::After => subject.proxy.cut_after(commit, times),
        }
    }
}

/// A database as it is, without the service between.
#[derive(Debug)]
pub(crate) struct Ledger(Arc<dyn StockStore>);

impl Ledger {
    pub(crate) fn at(url: &str) -> Self {
        let options = StoreOptions {
            pool_size: 4,
            wait_limit: SOON,
        };
        Self(connect(url, &options).expect("the URL of a database"))
    }

    async fn movements(&self, sku: &str) -> Vec<Movement> {
        let filter = MovementFilter {
            sku: self::sku(sku),
            warehouse: None,
            kind: None,
            reference: None,
            before: None,
            limit: 1_000_000,
        };
        let found = self.0.movements(&filter).await;
        found.expect("the ledger can be read")
    }

    /// The operations that sold, in no order.
    pub(crate) async fn sales(&self, sku: &str) -> Vec<String> {
        let movements = self.movements(sku).await.into_iter();
        movements
            .filter(|movement| movement.strategy.is_some())
            .map(|movement| movement.operation.to_string())
            .collect()
    }

    pub(crate) async fn audit(&self, sku: &str) -> Audit {
        let audits = self.0.audit(&self::sku(sku)).await;
        let audits = audits.expect("the audit can be read");
        audits.into_iter().next().expect("there is such a SKU")
    }
}

fn sku(name: &str) -> Sku {
    Sku::parse(name).expect("the name of a SKU")
}
