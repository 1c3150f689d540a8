//! The locks that are held on a test's Redis, Redis masters and ZooKeeper and in its database, read
//! without the service.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join_all;
use stocklock::strategy::{Dependency, Strategy};
use stocklock_testkit::eventually;
use stocklock_testkit::servers::vote;
use zookeeper_client::Client;

use crate::support::lock_services::LockServices;
use crate::support::redis::command;
use crate::support::rival::Raw;
use crate::support::services::Backend;

/// Less than the rest of a lease of ten seconds that was renewed, and far more than a release takes.
const AT_ONCE: Duration = Duration::from_secs(6);

/// A lock service, and a database of the ledger.
pub(super) type Place = (Dependency, Backend);

pub(super) fn strategy(service: Dependency) -> Strategy {
    match service {
        Dependency::Database => Strategy::SqlLock,
        Dependency::Redis => Strategy::RedisLock,
        Dependency::RedisMasters => Strategy::Redlock,
        Dependency::Zookeeper => Strategy::ZookeeperLock,
    }
}

/// The test's database, or one of its services.
pub(super) struct LockPlace {
    service: Dependency,
    services: LockServices,
    database: String,
}

impl LockPlace {
    pub(super) async fn fresh(service: Dependency, database: &str) -> Self {
        let services = LockServices::fresh().await;
        let database = database.to_owned();
        Self {
            service,
            services,
            database,
        }
    }

    pub(super) fn variable(&self) -> Option<(&'static str, &str)> {
        let value = match self.service {
            Dependency::Database => return None,
            Dependency::Redis => self.services.redis_url(),
            Dependency::RedisMasters => self.services.redlock_urls(),
            Dependency::Zookeeper => self.services.zookeeper_connect(),
        };
        Some((self.service.variable(), value))
    }

    /// Returns when locks with this lease are granted: a Redis master must have been up for longer.
    pub(super) async fn grants(&self, lease: Duration) {
        if self.service == Dependency::RedisMasters {
            let masters: Vec<_> = self.services.masters().iter().map(|url| &**url).collect();
            vote(&masters, lease).await;
        }
    }

    /// How many locks are held here; on ZooKeeper, waiting clients count, too.
    pub(super) async fn held(&self) -> usize {
        held(&self.services, &self.database, self.service).await
    }
}

async fn held(services: &LockServices, database: &str, service: Dependency) -> usize {
    match service {
        Dependency::Database => held_in_database(database).await,
        Dependency::Redis => {
            // The key of a lock ends with its name in braces; those of tokens and tombstones do not.
            let words = ["KEYS", "stocklock:lock{*}"];
            let keys = command::<Vec<String>>(services.redis_url(), &words);
            keys.await.len()
        }
        Dependency::RedisMasters => {
            let words = ["KEYS", "stocklock:redlock{*}"];
            let masters = services.masters().iter();
            let keys = join_all(masters.map(|url| command::<Vec<String>>(url, &words))).await;
            BTreeSet::from_iter(keys.concat()).len()
        }
        Dependency::Zookeeper => {
            let held = held_on_zookeeper(services.zookeeper_connect()).await;
            held.expect("ZooKeeper answers")
        }
    }
}

async fn held_in_database(url: &str) -> usize {
    const HELD: &str = "SELECT concat(count(*), '') FROM distributed_lock WHERE nonce <> ''";
    let backend = match url.split(':').next() {
        Some("sqlite") => Backend::Sqlite,
        Some("postgres") => Backend::Postgres,
        _ => Backend::Mysql,
    };
    let held = Raw::connect(backend, url).await.text(HELD).await;
    held.expect("a number").parse().expect("a number")
}

/// Returns when no lock is held or waited for, which may be a moment after the answer.
///
/// # Panics
/// If that takes so long that a lease must have expired.
pub(super) async fn assert_locks_released(services: &LockServices, database: &str) {
    use Dependency::{Database, Redis, RedisMasters, Zookeeper};
    for service in [Database, Redis, RedisMasters, Zookeeper] {
        let free = || async { held(services, database, service).await == 0 };
        eventually("every lock is released", AT_ONCE, free).await;
    }
}

async fn held_on_zookeeper(connect: &str) -> Result<usize, zookeeper_client::Error> {
    const ROOT: &str = "/stocklock/locks";
    let client = Client::connect(connect).await?;
    let list = async |path: &str| match client.list_children(path).await {
        // No lock was acquired yet, or the server has removed an empty container.
        Err(zookeeper_client::Error::NoNode) => Ok(Vec::new()),
        children => children,
    };
    let mut held = 0;
    for lock in list(ROOT).await? {
        held += list(&format!("{ROOT}/{lock}")).await?.len();
    }
    Ok(held)
}
