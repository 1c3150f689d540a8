//! A SKU that `no-lock` oversells shares its journal with others, whose movements stand between its
//! own: all of them arrive.

use std::sync::atomic::{AtomicI64, Ordering};

use rstest::rstest;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::requests::{create, settled};
use crate::faults::{SOON, send, until};
use crate::support::app::TestApp;
use crate::support::proxy::{Mode, Proxy};
use crate::support::services::{Backend, TestRedis, fresh_database, fresh_redis};

/// Two SKUs of one shard.
const OVERSOLD: &str = "1001";
const NEIGHBOUR: &str = "b";
const STOCK: i64 = 40;
/// How many buy at once.
const BUYERS: usize = 8;

/// Sells out with `no-lock`, at both replicas at once; answers how many units were sold.
async fn oversell(app: &TestApp) -> i64 {
    let mut sold = 0;
    loop {
        let mut orders = JoinSet::new();
        for buyer in 0..BUYERS {
            orders.spawn(send(app.deduct(
                buyer,
                "no-lock",
                &json!({"sku": OVERSOLD}),
            )));
        }
        let mut refused = false;
        for answer in orders.join_all().await {
            let answer = answer.expect("it answers");
            sold += i64::from(answer.status == 200);
            refused |= answer.code == "insufficient-stock";
            assert!(answer.status == 200 || refused, "{answer:?}");
        }
        if refused {
            return sold;
        }
        assert!(sold < 1000 * STOCK, "it is never sold out");
    }
}

/// How many entries stand in each of the journals that have any.
async fn entries(redis: &TestRedis) -> Vec<i64> {
    let client = redis::Client::open(&*redis.url).expect("its URL is one");
    let connection = client.get_multiplexed_async_connection().await;
    let mut connection = connection.expect("it lets the test in");
    let mut keys = redis::cmd("KEYS");
    let journals = keys.arg("journal:*}").query_async(&mut connection).await;
    let journals: Vec<String> = journals.expect("it answers");
    let mut lengths = redis::pipe();
    for journal in journals {
        lengths.cmd("XLEN").arg(journal);
    }
    let lengths: Vec<i64> = lengths
        .query_async(&mut connection)
        .await
        .expect("it answers");
    lengths.into_iter().filter(|length| *length > 0).collect()
}

/// The audit once nothing is pending any more; the database may have come back just now.
async fn arrived(app: &TestApp, sku: &str) -> Value {
    until("the database is back", SOON, || async {
        app.get(&format!("/stock/{sku}/audit")).await.status() == 200
    })
    .await;
    settled(app, sku).await
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_lock_oversells_holds_up_no_neighbour(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let (database, redis) = (fresh_database(backend).await, fresh_redis().await);
    let (proxy, url) = Proxy::before(&database.url).await;
    let app = TestApp::on(&url, 2, &["--redis-url", &redis.url]).await;
    let order = |replica, strategy: &str, sku| {
        let order = app.deduct(replica, strategy, &json!({"sku": sku}));
        async move {
            let sold = send(order).await.expect("it answers");
            assert_eq!(sold.status, 200, "{sold:?}");
        }
    };
    for sku in [OVERSOLD, NEIGHBOUR] {
        create(&app, sku, STOCK).await;
        for replica in 0..2 {
            // It knows from now on where the SKU lives.
            order(replica, "no-lock", sku).await;
        }
    }
    // All that is sold now meets in the journal.
    proxy.set(Mode::Refuse).await;
    let of_the_neighbour = AtomicI64::new(2);
    let neighbour = async {
        for replica in 0..4 {
            for strategy in ["redis-lua", "redis-watch", "no-lock"] {
                order(replica, strategy, NEIGHBOUR).await;
                of_the_neighbour.fetch_add(1, Ordering::SeqCst);
            }
        }
    };
    let (oversold, ()) = tokio::join!(oversell(&app), neighbour);
    let (oversold, sold) = (oversold + 2, of_the_neighbour.into_inner());
    assert!(oversold > STOCK, "only {oversold} were sold");
    let waiting = entries(&redis).await;
    assert_eq!(waiting.len(), 1, "they share no journal: {waiting:?}");
    assert!(waiting[0] >= oversold + sold - 4, "{waiting:?}");

    proxy.set(Mode::Pass).await;

    let audit = arrived(&app, NEIGHBOUR).await;
    assert_eq!(
        (&audit["sold"], &audit["on_hand"], &audit["consistent"]),
        (&json!(sold), &json!(STOCK - sold), &json!(true)),
        "{audit}"
    );
    let audit = arrived(&app, OVERSOLD).await;
    assert_eq!(audit["sold"], oversold, "{audit}");
    assert_eq!(audit["oversold"], oversold - STOCK, "{audit}");
    app.stop().await;
}
