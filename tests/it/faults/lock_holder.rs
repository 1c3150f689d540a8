//! A scene with two replicas, each a process: one holds a lock in the middle of its work, the other
//! would like to have it.
//!
//! The holder has asked for the level, and the proxy keeps the answer. So it stands between its
//! read and its write for as long as a test wants, whatever then happens to it.

use std::time::Duration;

use reqwest::{Method, RequestBuilder};
use serde_json::json;
use stocklock::strategy::Service;
use tokio::task::JoinHandle;

use super::lock_servers::{LockPlace, strategy};
use super::{Answer, Ledger, send};
use crate::support::process::Process;
use crate::support::proxy::{Hold, Proxy};
use crate::support::services::{Backend, TestDatabase, fresh_database};

/// The two replicas, and what they share.
pub(super) struct Scene {
    service: Service,
    pub(super) sku: String,
    pub(super) holder: Process,
    pub(super) other: Process,
    pub(super) place: LockPlace,
    pub(super) ledger: Ledger,
    /// What the holder has asked for, on its way.
    pub(super) read: Hold,
    /// What the holder's buyer will be told.
    pub(super) told: JoinHandle<Result<Answer, reqwest::Error>>,
    _proxy: Proxy,
    _database: TestDatabase,
}

impl Scene {
    /// Has the holder asked for one of `stock` units, under a lock with this lease; `switches` are
    /// what the lab can turn off.
    pub(super) async fn open(
        backend: Backend,
        service: Service,
        lease: Duration,
        stock: i64,
        switches: &str,
    ) -> Self {
        let database = fresh_database(backend).await;
        let (proxy, proxied) = Proxy::before(&database.url).await;
        let place = LockPlace::fresh(service).await;
        let lease = lease.as_millis().to_string();
        let variables = [
            (service.variable(), place.url()),
            ("LOCK_LEASE_MS", &lease),
            ("WAIT_LIMIT_MS", "20000"),
            ("REQUEST_DEADLINE_MS", "30000"),
        ];
        let (holder, other) = tokio::join!(
            Process::lab(&proxied, &variables),
            Process::lab(&database.url, &variables)
        );
        let sku = format!("sku-{:016x}", fastrand::u64(..));
        other.set_level(&sku, stock).await;
        let ledger = Ledger::at(&database.url);

        // It reads once where the SKU lives, and that is not to be what is held.
        let too_many = holder.request(Method::POST, "/stock/deduct?strategy=no-lock");
        let too_many = too_many
            .json(&json!({"sku": sku, "quantity": 10_000}))
            .send();
        assert_eq!(too_many.await.expect("it answers").status(), 409);
        let read = proxy.hold_answer(sku.as_bytes());
        let told = tokio::spawn(send(order(&holder, service, &sku, switches)));
        read.held().await;
        assert_eq!(place.held().await, 1, "the holder has its lock");
        Self {
            service,
            sku,
            holder,
            other,
            place,
            ledger,
            read,
            told,
            _proxy: proxy,
            _database: database,
        }
    }

    /// A deduction of the same at the other replica.
    pub(super) fn others_order(&self) -> RequestBuilder {
        order(&self.other, self.service, &self.sku, "")
    }

    /// The strategy's name.
    pub(super) fn strategy(&self) -> &'static str {
        strategy(self.service).name()
    }
}

fn order(at: &Process, service: Service, sku: &str, switches: &str) -> RequestBuilder {
    let strategy = strategy(service);
    let path = format!("/stock/deduct?strategy={strategy}{switches}");
    at.request(Method::POST, &path).json(&json!({ "sku": sku }))
}
