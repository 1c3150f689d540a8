//! Many requests at both replicas for a SKU that Redis has lost.

use serde_json::json;
use tokio::task::JoinSet;

use super::{applied_audit, assert_sold, command, create};
use crate::faults::send;
use crate::support::app::TestApp;
use crate::support::services::{Backend, PrivateServer};

const SKU: &str = "hot";
/// How often Redis loses everything.
const ROUNDS: i64 = 5;
/// More buyers than units.
const BUYERS: usize = 40;
const UNITS: i64 = 30;

/// How often a level was loaded since the last `CONFIG RESETSTAT`. Of the scripts that run here,
/// only the one that loads a level calls `XINFO STREAM`.
async fn loads(url: &str) -> i64 {
    let statistics: String = command(url, &["INFO", "commandstats"]).await;
    let calls = statistics
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_xinfo|stream:calls="));
    let calls = calls.and_then(|rest| rest.split(',').next());
    calls.expect("it was called").parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_level_is_loaded_once_by_two_replicas() {
    let redis = PrivateServer::redis(&[]).await;
    let app = TestApp::with_flags(Backend::Postgres, 2, &["--redis-url", redis.url()]).await;
    create(&app, SKU, UNITS).await;
    for round in 1..=ROUNDS {
        command::<()>(redis.url(), &["FLUSHDB"]).await;
        command::<()>(redis.url(), &["CONFIG", "RESETSTAT"]).await;
        let order = |buyer: usize| {
            let strategy = ["redis-lua", "redis-watch"][buyer / 2 % 2];
            app.deduct(buyer, strategy, &json!({"sku": SKU}))
        };
        let orders: JoinSet<_> = (0..BUYERS).map(|buyer| send(order(buyer))).collect();
        let mut sold = 0;
        for answer in orders.join_all().await {
            match answer.status_and_code() {
                (200, _) => sold += 1,
                (409, "insufficient-stock") => {}
                _ => panic!("{answer:?}"),
            }
        }
        assert_eq!(sold, UNITS);
        assert_eq!(loads(redis.url()).await, 1);
        assert_sold(&applied_audit(&app, SKU).await, round * UNITS);
        app.set_level(SKU, UNITS).await;
        applied_audit(&app, SKU).await;
    }
    app.stop().await;
}
