//! Locks and stock in one Redis Cluster: `REDIS_URL` names it, and `LOCK_REDIS_URL` is not set.

use stocklock_testkit::servers::RedisCluster;

use super::cluster::LOGGED;
use super::{applied_audit, assert_sold, command, create, order};
use crate::faults::{KEY, send, until};
use crate::support::app::TestApp;
use crate::support::services::Backend;

const SKU: &str = "a";
/// The key of the lock of this level. Its last token stays beside it.
const LOCK: &str = "stocklock:lock{stock:a:main}";

/// Sells one unit, once.
async fn sell(app: &TestApp, key: &str) {
    until("a unit is sold", async || {
        let order = order(app, "redis-lock", SKU).header(KEY, key);
        send(order).await.status == 200
    })
    .await;
}

/// Asserts that the lock was last taken at this master.
async fn assert_locked_at(cluster: &RedisCluster, master: usize) {
    let token = format!("{LOCK}:token");
    let found: i64 = command(cluster.nodes()[master].url(), &["EXISTS", &token]).await;
    assert_eq!(found, 1, "{token}");
}

/// Goal: the locks follow their slot to another master, and to the replica that replaces it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_and_stock_share_a_cluster() {
    let cluster = RedisCluster::start(&LOGGED).await;
    let app = TestApp::with_flags(Backend::Sqlite, 1, &["--redis-url", &cluster.url()]).await;
    create(&app, SKU, 10).await;
    let slot = cluster.slot_of(LOCK).await;
    let old = cluster.master_of(slot).await;
    sell(&app, "before").await;
    assert_locked_at(&cluster, old).await;

    let masters = cluster.masters().await;
    let to = masters.into_iter().find(|&master| master != old);
    let to = to.expect("there are three masters");
    cluster.move_slot(slot, to).await;
    sell(&app, "moved").await;
    assert_locked_at(&cluster, to).await;

    let new = cluster.fail_over(to, false).await;
    sell(&app, "failed-over").await;
    assert_locked_at(&cluster, new).await;
    assert_sold(&applied_audit(&app, SKU).await, 3);
    app.stop().await;
}
