//! A SKU that Redis does not have is asked for by many at once, at both replicas.

use redis::FromRedisValue;
use serde_json::json;
use tokio::task::JoinSet;

use super::requests::{create, settled};
use crate::faults::send;
use crate::support::app::TestApp;
use crate::support::services::{Backend, PrivateServer};

const SKU: &str = "hot";
/// How often Redis loses everything.
const ROUNDS: i64 = 5;
/// How many buy at once, and how many units there are: fewer.
const BUYERS: usize = 40;
const UNITS: i64 = 30;

async fn ask<T: FromRedisValue>(server: &PrivateServer, words: &[&str]) -> T {
    let client = redis::Client::open(server.url()).expect("its URL is one");
    let connection = client.get_multiplexed_async_connection().await;
    let mut connection = connection.expect("it lets the test in");
    let mut command = redis::cmd(words[0]);
    let answer = command.arg(&words[1..]).query_async(&mut connection).await;
    answer.expect("it does as it is told")
}

/// How often a level was loaded since the last `CONFIG RESETSTAT`: the script that does it, once it
/// has found none, is the only one of those that run here that asks what stream there is.
async fn loads(server: &PrivateServer) -> i64 {
    let counted: String = ask(server, &["INFO", "commandstats"]).await;
    let asked = counted
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_xinfo|stream:calls="));
    let calls = asked.and_then(|rest| rest.split(',').next());
    calls.expect("it was called").parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sku_is_loaded_once_by_whichever_replica_comes_first() {
    let redis = PrivateServer::redis(&[]).await;
    let app = TestApp::with_flags(Backend::Postgres, 2, &["--redis-url", redis.url()]).await;
    create(&app, SKU, UNITS).await;
    for round in 1..=ROUNDS {
        for command in [&["FLUSHDB"][..], &["CONFIG", "RESETSTAT"]] {
            ask::<()>(&redis, command).await;
        }
        let mut orders = JoinSet::new();
        for buyer in 0..BUYERS {
            let strategy = ["redis-lua", "redis-watch"][buyer / 2 % 2];
            orders.spawn(send(app.deduct(buyer, strategy, &json!({"sku": SKU}))));
        }
        let mut sold = 0;
        for answer in orders.join_all().await {
            let answer = answer.expect("it answers");
            sold += i64::from(answer.status == 200);
            let refused = (answer.status, &*answer.code) == (409, "insufficient-stock");
            assert!(answer.status == 200 || refused, "{answer:?}");
        }
        assert_eq!(sold, UNITS);
        assert_eq!(loads(&redis).await, 1);
        let audit = settled(&app, SKU).await;
        assert_eq!(audit["sold"], round * UNITS, "{audit}");
        assert_eq!(audit["consistent"], true, "{audit}");
        app.set_level(SKU, UNITS).await;
        settled(&app, SKU).await;
    }
    app.stop().await;
}
