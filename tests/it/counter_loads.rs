//! A counter in Redis that is missing costs a replica one read of the database, also if many deductions
//! wait for it.

use serde_json::json;
use tokio::task::JoinSet;

use crate::faults::until;
use crate::store_contract::fixture::Raw;
use crate::support::app::{TestApp, send};
use crate::support::services::{Backend, fresh_database, fresh_redis};

const BUYERS: u64 = 40;

/// The reads of a level that wait for a lock in the database.
const WAITING_READS: &str = "SELECT count(*)::text FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock'
        AND query LIKE '%FROM stock WHERE sku = $1 AND warehouse = $2'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_counter_costs_a_replica_one_read() {
    let (database, redis) = (fresh_database(Backend::Postgres).await, fresh_redis().await);
    let flags = [
        "--redis-url",
        &redis.url,
        "--wait-limit-ms=60000",
        "--request-deadline-ms=120000",
    ];
    let app = TestApp::on(&database.url, 1, &flags).await;
    app.set_level("hot", 100).await;

    // No read of the database ends before all deductions wait for it.
    let mut locked = Raw::connect(Backend::Postgres, &database.url).await;
    let lock = locked.run("BEGIN; LOCK TABLE stock IN ACCESS EXCLUSIVE MODE");
    lock.await.expect("the table can be locked");
    let mut buyers = JoinSet::new();
    for _ in 0..BUYERS {
        buyers.spawn(send(app.deduct(0, "redis-lua", &json!({"sku": "hot"}))));
    }
    let all = format!("counter_asks_total{{answer=\"loaded\"}} {BUYERS}");
    until("all deductions wait", async || {
        let metrics = app.get("/metrics").await.text().await;
        metrics.expect("a text").contains(&all)
    })
    .await;
    let mut watch = Raw::connect(Backend::Postgres, &database.url).await;
    until("the replica reads the database", async || {
        watch.text(WAITING_READS).await.as_deref() != Some("0")
    })
    .await;
    assert_eq!(watch.text(WAITING_READS).await.as_deref(), Some("1"));
    locked.run("COMMIT").await.expect("it is committed");
    for answer in buyers.join_all().await {
        answer.ok();
    }
    assert_eq!(app.audit("hot").await["sold"], BUYERS);
    app.stop().await;
}
