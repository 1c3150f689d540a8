//! The names of consumers in the groups of the journals: those of ended processes are removed.

use std::collections::{BTreeSet, HashMap};

use redis::Value;

use super::{applied_audit, command, create, journals, order};
use crate::faults::{send, until};
use crate::support::process::Process;
use crate::support::services::{Backend, TestRedis, fresh_database, fresh_redis};

const SKU: &str = "hot";

/// Sells a unit and returns when the replica's consumer has applied it.
async fn sell(replica: &Process) {
    let sold = send(order(replica, "redis-lua", SKU)).await;
    assert_eq!(sold.status, 200, "{sold:?}");
    applied_audit(replica, SKU).await;
}

/// The names in the groups of all journals.
async fn names(redis: &TestRedis) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for journal in journals(&redis.url).await {
        let info = ["XINFO", "CONSUMERS", &journal, "ledger"];
        let consumers: Vec<HashMap<String, Value>> = command(&redis.url, &info).await;
        for consumer in consumers {
            let Value::BulkString(name) = &consumer["name"] else {
                panic!("{consumer:?}")
            };
            names.insert(String::from_utf8_lossy(name).into_owned());
        }
    }
    names
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumer_names_of_ended_processes_are_removed() {
    let (database, redis) = (fresh_database(Backend::Sqlite).await, fresh_redis().await);
    let start = || async { Process::lab(&database.url, &[("REDIS_URL", &redis.url)]).await };
    let mut replica = start().await;
    create(&replica, SKU, 10).await;
    let mut ended = BTreeSet::new();
    for _ in 0..3 {
        sell(&replica).await;
        let before = ended.len();
        ended.extend(names(&redis).await);
        assert!(ended.len() > before, "no new name: {ended:?}");
        replica.kill9();
        replica = start().await;
    }
    let holds = async || names(&redis).await.is_disjoint(&ended);
    until("the names of ended processes are removed", holds).await;
    // The running replica's name may have been removed, too, while the journals were empty.
    sell(&replica).await;
    assert_eq!(names(&redis).await.len(), 1);
}
