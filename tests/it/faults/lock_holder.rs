//! Two replicas, each a process: one holds a lock in the middle of its deduction, the other one
//! wants it.
//!
//! The holder has read the level, and the proxy holds the answer. It therefore stays between its
//! read and its write for as long as a test needs, whatever happens to it.

use std::time::Duration;

use reqwest::{Method, RequestBuilder};
use serde_json::json;
use stocklock::strategy::Dependency;
use tokio::task::JoinHandle;

use super::lock_servers::{LockPlace, Place, strategy};
use super::{Answer, Ledger, try_send};
use crate::support::process::Process;
use crate::support::proxy::{Hold, Proxy};
use crate::support::services::{TestDatabase, fresh_database};

pub(super) struct Scene {
    service: Dependency,
    pub(super) place: LockPlace,
    pub(super) sku: String,
    pub(super) holder: Process,
    pub(super) other: Process,
    pub(super) ledger: Ledger,
    /// The answer to the holder's read of the level, held by the proxy.
    pub(super) read: Hold,
    /// The holder's answer to its client.
    pub(super) answer: JoinHandle<reqwest::Result<Answer>>,
    _proxy: Proxy,
    _database: TestDatabase,
}

impl Scene {
    /// Lets the holder deduct one of `stock` units under a lock with this lease. `switches` turn
    /// off safeguards in the lab.
    pub(super) async fn open(
        (service, backend): Place,
        lease: Duration,
        stock: i64,
        switches: &str,
    ) -> Self {
        let database = fresh_database(backend).await;
        let (proxy, proxied) = Proxy::before(&database.url).await;
        let place = LockPlace::fresh(service, &database.url).await;
        place.grants(lease).await;
        let lease = lease.as_millis().to_string();
        let mut variables = vec![
            ("LOCK_LEASE_MS", &*lease),
            ("WAIT_LIMIT_MS", "20000"),
            ("REQUEST_DEADLINE_MS", "30000"),
        ];
        variables.extend(place.variable());
        let (holder, other) = tokio::join!(
            Process::lab(&proxied, &variables),
            Process::lab(&database.url, &variables)
        );
        // Found by the proxy in what the database answers.
        let sku = "sku-whose-level-is-held".to_owned();
        other.set_level(&sku, stock).await;
        let ledger = Ledger::at(&database.url);

        let read = proxy.hold_answer(sku.as_bytes());
        let answer = tokio::spawn(try_send(order(&holder, service, &sku, switches)));
        read.held().await;
        assert_eq!(place.held().await, 1, "the holder has its lock");
        Self {
            service,
            place,
            sku,
            holder,
            other,
            ledger,
            read,
            answer,
            _proxy: proxy,
            _database: database,
        }
    }

    pub(super) fn others_order(&self) -> RequestBuilder {
        order(&self.other, self.service, &self.sku, "")
    }

    pub(super) fn strategy(&self) -> &'static str {
        strategy(self.service).name()
    }
}

fn order(at: &Process, service: Dependency, sku: &str, switches: &str) -> RequestBuilder {
    let strategy = strategy(service);
    let path = format!("/stock/deduct?strategy={strategy}{switches}");
    at.request(Method::POST, &path).json(&json!({ "sku": sku }))
}
