//! A database that refuses every journal entry: the log is bounded, the entries are tried again
//! without haste, and they are applied as soon as the database takes them.

use std::collections::BTreeSet;

use tokio::task::JoinSet;

use super::{applied_audit, assert_sold, audit, command, create, journals, order};
use crate::faults::{send, until};
use crate::store_contract::fixture::Raw;
use crate::support::process::Process;
use crate::support::services::{Backend, fresh_database, fresh_redis};

const SKU: &str = "hot";
/// More entries than are logged, in several batches.
const SALES: i64 = 600;
/// The most lines about entries, including the one which says that there are more.
const LINES: usize = 101;

/// The tokens that a consumer had for the journal's lease: one for each batch.
async fn see_token(url: &str, tokens: &mut BTreeSet<String>) {
    let lease = journals(url).await[0].replace("journal", "consumer");
    tokens.extend(command::<Option<String>>(url, &["GET", &lease]).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_entries_are_logged_a_hundred_times_and_applied_later() {
    let (database, redis) = (fresh_database(Backend::Sqlite).await, fresh_redis().await);
    let replica = Process::lab(&database.url, &[("REDIS_URL", &redis.url)]).await;
    create(&replica, SKU, SALES).await;
    let mut raw = Raw::connect(Backend::Sqlite, &database.url).await;
    let refuse = "CREATE TRIGGER refuse BEFORE INSERT ON movement
        BEGIN SELECT RAISE(ABORT, 'no'); END";
    raw.run(refuse).await.expect("the trigger can be created");
    for _ in 0..SALES / 20 {
        let orders = (0..20).map(|_| send(order(&replica, "redis-lua", SKU)));
        for sold in orders.collect::<JoinSet<_>>().join_all().await {
            assert_eq!(sold.status, 200, "{sold:?}");
        }
    }
    until("the failure is logged", || async {
        let log = replica.stderr();
        log.contains("the ledger does not follow the journals")
    })
    .await;
    let mut tokens = BTreeSet::new();
    until("the entries were tried in several batches", async || {
        see_token(&redis.url, &mut tokens).await;
        tokens.len() > 4
    })
    .await;
    let log = replica.stderr();
    let lines = log.lines().filter(|it| it.contains("cannot be recorded"));
    let lines = lines.count();
    assert!((1..=LINES).contains(&lines), "{lines} lines: {log}");
    assert_eq!(audit(&replica, SKU).await["pending"], SALES);

    let accepted = raw.run("DROP TRIGGER refuse").await;
    accepted.expect("the trigger exists");
    assert_sold(&applied_audit(&replica, SKU).await, SALES);
}
