//! An upgrade while stock in Redis is sold: replicas of the previous release share the journals by a
//! consumer group, those of this one by leases. A level that this release has used is not sold by the
//! previous one.
//!
//! `TEST_OLD_BINARY` is the program of the previous release. Without it, this build takes its place.

use std::collections::BTreeMap;
use std::time::Duration;

use rstest::rstest;
use stocklock_testkit::eventually;
use stocklock_testkit::run::variable;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::{applied_audit, assert_sold, command, create, journal_lengths, journals, order};
use crate::faults::{Ledger, SOON, send};
use crate::support::process::{Process, this_build};
use crate::support::proxy::{Mode, Proxy};
use crate::support::services::Backend::{self, Mysql, Postgres};
use crate::support::services::{fresh_database, fresh_redis};

const SKUS: [&str; 3] = ["a", "b", "c"];
const STOCK: i64 = 100_000;
/// How often a unit of each SKU is sold while both releases run.
const ROUNDS: usize = 60;

/// Sales, by SKU.
#[derive(Default)]
struct Sold(BTreeMap<&'static str, Vec<String>>);

impl Sold {
    /// Sells a unit of each SKU at each replica, all at once.
    async fn sell(&mut self, replicas: &[&Process]) {
        let mut orders = JoinSet::new();
        for replica in replicas {
            for sku in SKUS {
                let order = order(*replica, "redis-lua", sku);
                orders.spawn(async move { (sku, send(order).await) });
            }
        }
        for (sku, answer) in orders.join_all().await {
            assert_eq!(answer.status, 200, "{answer:?}");
            self.0.entry(sku).or_default().push(answer.id);
        }
    }
}

/// Asserts that the replica refuses to sell each SKU.
async fn assert_refused(replica: &Process) {
    for sku in SKUS {
        let answer = send(order(replica, "redis-lua", sku)).await;
        assert_eq!(answer.status, 503, "{answer:?}");
    }
}

/// Goal: every sale is recorded once, whichever release applies it.
///
/// Method: a replica of the previous release is killed between reading entries and committing them.
/// Another one applies entries side by side with a replica of this release, and then ends.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_releases_share_the_journals(#[values(Mysql, Postgres)] backend: Backend) {
    let old_program = variable("TEST_OLD_BINARY");
    let program = old_program.clone().unwrap_or_else(this_build);
    let (database, redis) = (fresh_database(backend).await, fresh_redis().await);
    let (proxy, distant) = Proxy::before(&database.url).await;
    let start = async |url: &str| {
        let variables = [("DATABASE_URL", url), ("REDIS_URL", &redis.url)];
        let mut old = Process::start_program(&program, &["lab"], &variables);
        old.is_ready().await;
        old
    };
    let old = start(&database.url).await;
    for sku in SKUS {
        create(&old, sku, STOCK).await;
    }
    let mut victim = start(&distant).await;
    let mut sold = Sold::default();
    sold.sell(&[&old, &victim]).await;
    let variables = [("DATABASE_URL", &*database.url)];
    let migrated = Process::run(&["migrate"], &variables).await;
    assert_eq!(migrated.code, Some(0), "{}", migrated.stderr);

    let held = proxy.hold_request(backend.commit_message());
    let started = Instant::now();
    while timeout(Duration::from_millis(5), held.held())
        .await
        .is_err()
    {
        sold.sell(&[&old]).await;
        assert!(started.elapsed() < SOON, "the consumer reads no entries");
    }
    victim.kill9();
    proxy.set(Mode::Refuse).await;
    drop(held);
    let new = Process::lab(&database.url, &[("REDIS_URL", &redis.url)]).await;
    for _ in 0..ROUNDS {
        sold.sell(&[&new]).await;
    }
    if old_program.is_some() {
        assert_refused(&old).await;
        for journal in journals(&redis.url).await {
            let groups: Vec<redis::Value> =
                command(&redis.url, &["XINFO", "GROUPS", &journal]).await;
            assert_eq!(groups.len(), 1, "{groups:?}");
        }
    }
    old.terminate();
    let ended = old.ended().await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    sold.sell(&[&new]).await;

    let ledger = Ledger::at(&database.url);
    for (sku, operations) in &sold.0 {
        let audit = applied_audit(&new, sku).await;
        let units = i64::try_from(operations.len()).expect("not so many");
        assert_sold(&audit, units);
        assert_eq!(audit["on_hand"], STOCK - units, "{audit}");
        ledger.assert_sold(sku, operations).await;
    }
    eventually("the journals are empty", SOON, async || {
        journal_lengths(&redis.url).await.is_empty()
    })
    .await;
    println!(
        "figure: {backend:?}: {} entries were applied by both releases",
        new.counted("journal_repeated_entries_total").await
    );
}
