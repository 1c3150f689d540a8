//! Faults: one file for each thing that can fail around the service.
//!
//! The tests read the ledger directly from the database, not through the service or a proxy. What a
//! test breaks can therefore not falsify its evidence.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use reqwest::RequestBuilder;
use stocklock::stock::{Audit, Movement, MovementFilter};
use stocklock::store::Store;
use stocklock::strategy::Strategy;
use stocklock_testkit::eventually;
use stocklock_testkit::run::variable;
use tokio::time::{Instant, sleep, timeout};

use crate::store_contract::fixture::{all_of, name, open_waiting};
use crate::support::app::TestApp;
pub(crate) use crate::support::app::{Answer, send, try_send};
use crate::support::proxy::{Proxy, Trigger};
use crate::support::services::{Backend, TestDatabase, fresh_database};

pub(crate) mod buyers;
mod connections_cut;
mod database_killed;
mod database_unreachable;
mod disconnect;
mod failover;
mod full {
    mod half_open;
    mod memory;
}
mod holder_stopped;
mod kills;
mod late_messages;
mod late_transactions;
mod level_changes;
mod lock_holder;
mod lock_server_killed;
mod lock_servers;
mod locks_seen;
mod memory;
pub(crate) mod session;
mod sessions_ended;
mod standby_away;
mod unknown_commit;

/// A bound for what takes milliseconds on an idle machine.
pub(crate) const SOON: Duration = Duration::from_mins(1);

/// The promised time if `TEST_TIMES` is set. Otherwise a bound that only ends a hang.
pub(crate) fn in_time(promised: Duration) -> Duration {
    match variable("TEST_TIMES") {
        Some(_) => promised,
        None => promised + SOON,
    }
}

/// Polls until `holds` returns true.
///
/// # Panics
/// If it is still false after [`SOON`].
pub(crate) async fn until(what: &str, holds: impl AsyncFnMut() -> bool) {
    eventually(what, SOON, holds).await;
}

/// Sends a request once.
///
/// # Panics
/// If no complete response comes within `limit`.
pub(crate) async fn send_within(limit: Duration, request: RequestBuilder) -> Answer {
    let answer = timeout(limit, send(request)).await;
    answer.unwrap_or_else(|_| panic!("no answer within {limit:?}"))
}

/// Sends a request and repeats it until the answer is final.
///
/// # Panics
/// If the outcome is unknown and the request has no key to repeat it with, or after [`SOON`].
pub(crate) async fn send_until_final(request: RequestBuilder) -> Answer {
    let built = copy(&request).build().expect("the request is valid");
    let keyed = built.headers().contains_key(KEY);
    let started = Instant::now();
    loop {
        let answer = send(copy(&request)).await;
        if !answer.asks_for_retry() {
            return answer;
        }
        assert!(keyed || answer.status != 504, "{answer:?}");
        assert!(started.elapsed() < SOON, "still {answer:?}");
        sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) fn copy(request: &RequestBuilder) -> RequestBuilder {
    request.try_clone().expect("the body is in memory")
}

/// The header that makes a repeat safe.
pub(crate) const KEY: &str = "idempotency-key";

/// An idempotency key that no other request of this run has.
pub(crate) fn new_key() -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    format!("key-{}", LAST.fetch_add(1, Ordering::Relaxed))
}

pub(crate) fn add_key_if(with_key: bool, request: RequestBuilder) -> RequestBuilder {
    if with_key {
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

    /// Cuts every new connection at its first message until the trigger is disarmed.
    fn refuse_new_connections(&self) -> Arc<Trigger> {
        let greeting: &[u8] = match self.backend {
            Backend::Mysql => b"mysql_native_password",
            _ => b"application_name",
        };
        self.proxy.cut_before(greeting, u32::MAX)
    }
}

/// When a connection is cut, relative to a COMMIT on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// Before the COMMIT reaches the server: the transaction is rolled back.
    Before,
    /// After the server has committed, before the answer reaches the service.
    After,
}

impl Cut {
    /// Every other round is cut after the commit.
    fn of(round: usize) -> Self {
        [Self::Before, Self::After][round % 2]
    }

    /// Cuts the next commit of a deduction.
    fn arm_for(self, subject: &Proxied, strategy: Strategy) -> Arc<Trigger> {
        let proxy = &subject.proxy;
        // One statement or call; the strategy's name is one of its parameters.
        let name = strategy.name().as_bytes();
        let parameter = [&[u8::try_from(name.len()).unwrap()], name].concat();
        match self {
            // Its COMMIT is a message of its own.
            _ if strategy == Strategy::ForUpdate => self.arm(subject),
            Self::Before => proxy.cut_before(&parameter, 1),
            Self::After => proxy.cut_after(&parameter, 1),
        }
    }

    /// Cuts the next message that is a COMMIT.
    fn arm(self, subject: &Proxied) -> Arc<Trigger> {
        let commit = subject.backend.commit_message();
        match self {
            Self::Before => subject.proxy.cut_before(commit, 1),
            Self::After => subject.proxy.cut_after(commit, 1),
        }
    }
}

/// A database, read without the service.
#[derive(Debug)]
pub(crate) struct Ledger(Arc<dyn Store>);

impl Ledger {
    pub(crate) fn at(url: &str) -> Self {
        Self(open_waiting(url, 4, SOON))
    }

    /// All movements of a SKU, newest first. A database that was restarted has ended the connections.
    async fn movements(&self, sku: &str) -> Vec<Movement> {
        let filter = MovementFilter {
            limit: 1_000_000,
            ..all_of(sku)
        };
        let mut movements = None;
        until("the ledger can be read", async || {
            let page = self.0.movements(&filter).await;
            movements = page.ok().map(|page| page.movements);
            movements.is_some()
        })
        .await;
        movements.expect("they were read")
    }

    /// The operations and units of all sales, newest first; no operation is recorded twice.
    pub(crate) async fn sales(&self, sku: &str) -> Vec<(String, i64)> {
        let movements = self.movements(sku).await.into_iter();
        let sales = movements.filter(|movement| movement.strategy.is_some());
        let sales: Vec<_> = sales
            .map(|sale| (sale.operation.to_string(), -sale.delta))
            .collect();
        let operations: BTreeSet<_> = sales.iter().map(|(operation, _)| operation).collect();
        assert_eq!(operations.len(), sales.len(), "{sku}: recorded twice");
        sales
    }

    pub(crate) async fn sold(&self, sku: &str) -> Vec<String> {
        let sales = self.sales(sku).await.into_iter();
        sales.map(|(operation, _)| operation).collect()
    }

    /// Asserts that the sales in the ledger are these operations, each once, and no others.
    pub(crate) async fn assert_sold(&self, sku: &str, expected: &[String]) {
        let (mut sold, mut expected) = (self.sold(sku).await, expected.to_vec());
        sold.sort();
        expected.sort();
        assert_eq!(sold, expected, "{sku}");
    }

    pub(crate) async fn audit(&self, sku: &str) -> Audit {
        let mut audit = None;
        until("the audit can be read", async || {
            let audits = self.0.audit(&name(sku)).await;
            audit = audits.ok().map(|audits| audits.into_iter().next());
            audit.is_some()
        })
        .await;
        audit.flatten().expect("the SKU exists")
    }

    /// The audit of a SKU whose level agrees with its ledger.
    pub(crate) async fn assert_consistent(&self, sku: &str) -> Audit {
        let audit = self.audit(sku).await;
        assert!(audit.consistent(), "{sku}: {audit:?}");
        audit
    }
}
