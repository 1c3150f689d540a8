//! The lock server is killed during sales, and restarted.

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::{Method, RequestBuilder};
use rstest::rstest;
use serde_json::json;
use stocklock::strategy::Dependency::{self, Redis, RedisMasters, Zookeeper};
use stocklock::strategy::Strategy;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::buyers::{Buyers, Keys, PLENTY};
use super::lock_servers::Place;
use super::{Answer, Ledger, in_time, lock_servers, send_within, until};
use crate::support::process::Process;
use crate::support::services::Backend::{Mysql, Postgres};
use crate::support::services::{PrivateServer, fresh_database};

const LOCKING: usize = 24;
const OTHERS: usize = 6;
/// Minimum sales under the lock before, between and after the kills.
const SALES: usize = 60;
/// Minimum sales without a lock while the server is down.
const OTHER_SALES: usize = 20;
/// The default wait limit of the service.
const WAIT_LIMIT: Duration = Duration::from_secs(2);
const SECOND: Duration = Duration::from_secs(1);

/// Asserts a 503 with `Retry-After` that names the unavailable service and its variable.
#[track_caller]
fn assert_names(answer: &Answer, service: Dependency) {
    answer.assert_is(503, "strategy-unavailable");
    assert!(answer.retry_after, "{answer:?}");
    assert!(answer.detail.contains(service.title()), "{answer:?}");
    assert!(answer.detail.contains(service.variable()), "{answer:?}");
}

/// Two replicas in lab mode, where each request names its strategy. Readiness depends on the
/// configured strategy: that of `locking` needs the lock service, that of `other` does not.
struct Replicas {
    service: Dependency,
    locking: Process,
    other: Process,
}

impl Replicas {
    async fn start(database: &str, service: Dependency, server: &str) -> Self {
        let strategy = ("STRATEGY", lock_servers::strategy(service).name());
        // Restarted Redis masters grant no lock for that long.
        let lease = match service {
            RedisMasters => ("LOCK_LEASE_MS", "5000"),
            _ => ("LOCK_LEASE_MS", "10000"),
        };
        let variables = [(service.variable(), server), lease, strategy];
        let (locking, other) = tokio::join!(
            Process::lab(database, &variables),
            Process::lab(database, &variables[..2])
        );
        Self {
            service,
            locking,
            other,
        }
    }

    fn order(&self, number: usize, strategy: Strategy, sku: &str) -> RequestBuilder {
        let replica = [&self.locking, &self.other][number % 2];
        let path = format!("/stock/deduct?strategy={strategy}");
        let order = replica.request(Method::POST, &path);
        order.json(&json!({ "sku": sku }))
    }

    /// Checks four times within a second, while the server is down: both replicas are alive, but
    /// only `other` is ready. Both refuse deductions under a lock in time.
    async fn assert_down(&self) {
        let service = self.service;
        let mut requests = JoinSet::new();
        for number in 0..4 {
            for (replica, ready) in [(&self.locking, 503), (&self.other, 200)] {
                let health = replica.request(Method::GET, "/healthz");
                let readiness = replica.request(Method::GET, "/readyz");
                for (request, status) in [(health, 200), (readiness, ready)] {
                    requests.spawn(async move {
                        let answer = send_within(in_time(SECOND), request).await;
                        assert_eq!(answer.status, status, "{answer:?}");
                    });
                }
            }
            let order = self.order(number, lock_servers::strategy(service), "cold");
            requests.spawn(async move {
                let answer = send_within(in_time(WAIT_LIMIT + SECOND), order).await;
                assert_names(&answer, service);
            });
            sleep(SECOND / 4).await;
        }
        requests.join_all().await;
    }
}

/// Goal: while the lock server is down, the service refuses strategies that need it in time, and
/// others continue. Sales under the lock resume by themselves after the restart. Each acknowledged
/// sale is in the ledger once, and no refused sale is.
///
/// Method: 24 buyers under the lock and 6 without one at two replicas; `kill -9` of the server
/// while they buy, twice for Redis. Of three Redis masters, two are killed.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_server_killed_during_sales_loses_and_doubles_nothing(
    #[values((Redis, Mysql), (RedisMasters, Postgres), (Zookeeper, Mysql))] place: Place,
) {
    let (service, backend) = place;
    // ZooKeeper is killed only once, because its restart takes many seconds.
    let (servers, kills) = match service {
        Redis => (vec![PrivateServer::redis(&[]).await], 2),
        RedisMasters => {
            let start = |_| PrivateServer::redis(&[]);
            (join_all((0..3).map(start)).await, 2)
        }
        _ => (vec![PrivateServer::zookeeper().await], 1),
    };
    let killed = &servers[servers.len() / 2..];
    let database = fresh_database(backend).await;
    let urls: Vec<_> = servers.iter().map(PrivateServer::url).collect();
    let replicas = Replicas::start(&database.url, service, &urls.join(",")).await;
    for sku in ["cold", "hot", "other"] {
        replicas.locking.set_level(sku, PLENTY).await;
    }
    let orders = |count, strategy, sku| {
        let replicas = &replicas;
        (0..count).map(move |number| replicas.order(number, strategy, sku))
    };
    let strategy = lock_servers::strategy(service);
    let under_lock = Buyers::start(
        "hot",
        Keys::Half,
        orders(LOCKING, strategy, "hot"),
        move |answer, took| {
            if answer.code == "strategy-unavailable" {
                assert_names(answer, service);
                assert!(took < in_time(WAIT_LIMIT + SECOND), "{took:?}");
            }
        },
    );
    let others = orders(OTHERS, Strategy::SingleSql, "other");
    // Only a slow machine may delay the database, and then the answer is `contended`. The lock
    // server must have no effect here.
    let others = Buyers::start("other", Keys::Half, others, |answer, _| {
        assert_eq!(answer.code, "contended", "{answer:?}");
    });
    for _ in 0..kills {
        under_lock.sell(SALES).await;
        killed.iter().for_each(PrivateServer::kill9);
        tokio::join!(replicas.assert_down(), others.sell(OTHER_SALES));
        join_all(killed.iter().map(PrivateServer::restart)).await;
        let is_ready = async || replicas.locking.get("/readyz").await.status == 200;
        until("the service is ready again", is_ready).await;
    }
    under_lock.sell(SALES).await;

    let ledger = Ledger::at(&database.url);
    under_lock.stop().await.assert_exact(&ledger).await;
    others.stop().await.assert_exact(&ledger).await;
    assert!(ledger.sold("cold").await.is_empty());
}

full! {
    lock_server_killed_during_sales_loses_and_doubles_nothing(
        place: Place [(Redis, Postgres), (RedisMasters, Mysql), (Zookeeper, Postgres)]
    );
}
