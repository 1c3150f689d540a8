//! The database refuses whatever comes from the journals: that is told without a flood, tried again
//! without haste, and over as soon as it takes them.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::faults::{SOON, send, until};
use crate::store_contract::fixture::Raw;
use crate::support::process::Process;
use crate::support::services::{Backend, fresh_database, fresh_redis};

const SKU: &str = "hot";
/// More entries than are complained of, in several batches.
const SALES: usize = 600;
/// Lines about entries, the one that there are more included.
const LINES: usize = 101;

async fn pending(replica: &Process) -> Value {
    let path = format!("/stock/{SKU}/audit");
    let audit = replica.request(Method::GET, &path).send().await;
    let audit: Value = audit.expect("it answers").json().await.expect("JSON");
    audit["warehouses"][0].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_refuses_every_entry_is_told_of_and_recovered_from() {
    let (database, redis) = (fresh_database(Backend::Sqlite).await, fresh_redis().await);
    let replica = Process::lab(&database.url, &[("REDIS_URL", &redis.url)]).await;
    let put = replica.request(Method::PUT, &format!("/stock/{SKU}"));
    let put = put.json(&json!({"on_hand": SALES, "home": "redis"}));
    assert_eq!(put.send().await.expect("it answers").status(), 201);
    let mut raw = Raw::connect(Backend::Sqlite, &database.url).await;
    let refuse = "CREATE TRIGGER refuse BEFORE INSERT ON movement
        BEGIN SELECT RAISE(ABORT, 'no'); END";
    raw.run(refuse).await.expect("it can be created");
    for _ in 0..SALES / 20 {
        let mut orders = JoinSet::new();
        for _ in 0..20 {
            let order = replica.request(Method::POST, "/stock/deduct?strategy=redis-lua");
            orders.spawn(send(order.json(&json!({"sku": SKU}))));
        }
        for sold in orders.join_all().await {
            assert_eq!(sold.expect("it answers").status, 200);
        }
    }
    until("it is told as a failure", SOON, || async {
        replica
            .stderr()
            .contains("the ledger does not follow the journals")
    })
    .await;
    // Long enough for each of them to be tried again.
    sleep(Duration::from_secs(5)).await;
    let told = replica.stderr();
    let lines = told
        .lines()
        .filter(|line| line.contains("cannot be recorded"));
    let lines = lines.count();
    assert!((1..=LINES).contains(&lines), "{lines} lines: {told}");
    assert_eq!(pending(&replica).await["pending"], SALES);

    raw.run("DROP TRIGGER refuse").await.expect("it is there");
    until("nothing is pending", SOON, || async {
        pending(&replica).await["pending"] == 0
    })
    .await;
    let audit = pending(&replica).await;
    assert_eq!(
        (&audit["sold"], &audit["consistent"]),
        (&json!(SALES), &json!(true)),
        "{audit}"
    );
}
