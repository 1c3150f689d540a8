//! A SKU that `no-lock` oversells shares its journal with another SKU. All movements of both are
//! applied.

use rstest::rstest;
use serde_json::json;
use tokio::task::JoinSet;

use super::{applied_audit_after_outage, assert_sold, create, journal_lengths};
use crate::faults::send;
use crate::support::app::TestApp;
use crate::support::proxy::{Mode, Proxy};
use crate::support::services::{Backend, fresh_database, fresh_redis};

/// Two SKUs of one shard.
const OVERSOLD: &str = "1001";
const NEIGHBOUR: &str = "b";
const STOCK: i64 = 40;
/// How many buy at once.
const BUYERS: usize = 8;

/// Sells out with `no-lock` at both replicas; returns how many units were sold.
async fn oversell(app: &TestApp) -> i64 {
    let mut sold = 0;
    loop {
        let order = |buyer| app.deduct(buyer, "no-lock", &json!({"sku": OVERSOLD}));
        let orders: JoinSet<_> = (0..BUYERS).map(|buyer| send(order(buyer))).collect();
        let mut refused = false;
        for answer in orders.join_all().await {
            match answer.status_and_code() {
                (200, _) => sold += 1,
                (409, "insufficient-stock") => refused = true,
                _ => panic!("{answer:?}"),
            }
        }
        if refused {
            return sold;
        }
        assert!(sold < 1000 * STOCK, "the stock is never sold out");
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oversold_sku_does_not_block_others_in_its_journal(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let (database, redis) = (fresh_database(backend).await, fresh_redis().await);
    let (proxy, url) = Proxy::before(&database.url).await;
    let app = TestApp::on(&url, 2, &["--redis-url", &redis.url]).await;
    let sell = async |replica, strategy: &str, sku: &str| {
        let sold = send(app.deduct(replica, strategy, &json!({"sku": sku}))).await;
        assert_eq!(sold.status, 200, "{sold:?}");
    };
    for sku in [OVERSOLD, NEIGHBOUR] {
        create(&app, sku, STOCK).await;
        for replica in 0..2 {
            // From now on the replica knows the home of the SKU.
            sell(replica, "no-lock", sku).await;
        }
    }
    // Without the database, all movements stay in the journal.
    proxy.set(Mode::Refuse).await;
    let sell_neighbour = async {
        let mut sold = 0;
        for replica in 0..4 {
            for strategy in ["redis-lua", "redis-watch", "no-lock"] {
                sell(replica, strategy, NEIGHBOUR).await;
                sold += 1;
            }
        }
        sold
    };
    let (oversold, sold) = tokio::join!(oversell(&app), sell_neighbour);
    let (oversold, sold) = (oversold + 2, sold + 2);
    assert!(oversold > STOCK, "only {oversold} were sold");
    let waiting = journal_lengths(&redis.url).await;
    assert_eq!(waiting.len(), 1, "they share no journal: {waiting:?}");
    assert!(waiting[0] >= oversold + sold - 4, "{waiting:?}");

    proxy.set(Mode::Pass).await;

    let audit = applied_audit_after_outage(&app, NEIGHBOUR).await;
    assert_sold(&audit, sold);
    assert_eq!(audit["on_hand"], STOCK - sold, "{audit}");
    let audit = applied_audit_after_outage(&app, OVERSOLD).await;
    assert_eq!(audit["sold"], oversold, "{audit}");
    assert_eq!(audit["oversold"], oversold - STOCK, "{audit}");
    app.stop().await;
}
