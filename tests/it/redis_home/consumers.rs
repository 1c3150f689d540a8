//! The names of consumers: those of ended processes go from the groups.

use std::collections::{BTreeSet, HashMap};

use redis::Value;
use reqwest::Method;
use serde_json::json;

use crate::faults::{SOON, send, until};
use crate::support::process::Process;
use crate::support::services::{Backend, TestRedis, fresh_database, fresh_redis};

const SKU: &str = "hot";

/// Sells a unit, and returns when it is in the ledger: somebody has consumed it.
async fn sell(replica: &Process) {
    let order = replica.request(Method::POST, "/stock/deduct?strategy=redis-lua");
    let sold = send(order.json(&json!({"sku": SKU}))).await;
    let sold = sold.expect("it answers");
    assert_eq!(sold.status, 200, "{sold:?}");
    until("nothing is pending", SOON, || async {
        let path = format!("/stock/{SKU}/audit");
        let audit = replica.request(Method::GET, &path).send().await;
        let audit: serde_json::Value = audit.expect("it answers").json().await.expect("JSON");
        audit["warehouses"][0]["pending"] == 0
    })
    .await;
}

/// The names in the groups of all journals.
async fn names(redis: &TestRedis) -> BTreeSet<String> {
    let client = redis::Client::open(&*redis.url).expect("its URL is one");
    let connection = client.get_multiplexed_async_connection().await;
    let mut connection = connection.expect("it lets the test in");
    let mut keys = redis::cmd("KEYS");
    let journals = keys.arg("journal:*}").query_async(&mut connection).await;
    let journals: Vec<String> = journals.expect("it answers");
    let mut consumers = redis::pipe();
    for journal in journals {
        let mut info = redis::cmd("XINFO");
        consumers.add_command(info.arg("CONSUMERS").arg(journal).arg("ledger").to_owned());
    }
    let consumers = consumers.query_async(&mut connection).await;
    let consumers: Vec<Vec<HashMap<String, Value>>> = consumers.expect("it answers");
    let name = |consumer: &HashMap<String, Value>| match &consumer["name"] {
        Value::BulkString(name) => String::from_utf8_lossy(name).into_owned(),
        other => panic!("{other:?}"),
    };
    consumers.iter().flatten().map(name).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_names_of_processes_that_have_ended_go() {
    let (database, redis) = (fresh_database(Backend::Sqlite).await, fresh_redis().await);
    let start = || async { Process::lab(&database.url, &[("REDIS_URL", &redis.url)]).await };
    let mut replica = start().await;
    let put = replica.request(Method::PUT, &format!("/stock/{SKU}"));
    let put = put.json(&json!({"on_hand": 10, "home": "redis"}));
    assert_eq!(put.send().await.expect("it answers").status(), 201);
    let mut ended = BTreeSet::new();
    for _ in 0..3 {
        sell(&replica).await;
        let before = ended.len();
        ended.extend(names(&redis).await);
        assert!(ended.len() > before, "it has no name: {ended:?}");
        replica.kill9();
        replica = start().await;
    }
    until("their names are gone", SOON, || async {
        names(&redis).await.is_disjoint(&ended)
    })
    .await;
    // Its own may have gone too while it had nothing to do.
    sell(&replica).await;
    assert_eq!(names(&redis).await.len(), 1);
}
