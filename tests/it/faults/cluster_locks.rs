//! Locks in a Redis Cluster: they follow their slot to another master, and to the replica that replaces it.

use serde_json::json;

use super::{KEY, send, until};
use crate::support::app::TestApp;
use crate::support::redis::{RedisCluster, command};
use crate::support::services::Backend;

const SKU: &str = "a";
/// The key of the lock of this level. Its last token stays beside it.
const LOCK: &str = "stocklock:lock{stock:a:main}";

/// Sells one unit, once.
async fn sell(app: &TestApp, key: &str) {
    until("a unit is sold", async || {
        let order = app.deduct(0, "redis-lock", &json!({ "sku": SKU }));
        send(order.header(KEY, key)).await.status == 200
    })
    .await;
}

/// Asserts that the lock was last taken at this master.
async fn assert_locked_at(cluster: &RedisCluster, master: usize) {
    let token = format!("{LOCK}:token");
    let found: i64 = command(cluster.nodes()[master].url(), &["EXISTS", &token]).await;
    assert_eq!(found, 1, "{token}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_follow_their_slot_in_a_cluster() {
    let log = ["--appendonly", "yes", "--appendfsync", "always"];
    let cluster = RedisCluster::start(&log).await;
    let app = TestApp::with_flags(Backend::Sqlite, 1, &["--redis-url", &cluster.url()]).await;
    app.set_level(SKU, 10).await;
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
    let audit = app.audit(SKU).await;
    assert_eq!(
        (&audit["sold"], &audit["consistent"]),
        (&json!(3), &json!(true))
    );
    app.stop().await;
}
