//! Redis fails over during a race: the race counts the sales that the new master never had.

use std::collections::BTreeSet;

use rstest::rstest;
use stocklock::lab::race::{Entrants, RacePlan, TableStyle, Verdict, run};
use stocklock::stock::Home;
use stocklock::strategy::Strategy;

use super::pair::Pair;
use super::{command, line};
use crate::faults::{Ledger, until};
use crate::support::app::TestApp;
use crate::support::proxy::{Mode, Proxy};
use crate::support::services::{Backend, PrivateServer, fresh_database};

/// Far more than is sold before Redis fails over.
const STOCK: i64 = 20_000;
const BUYERS: usize = 8;
/// The orders of each buyer: more than the stock, because some fail.
const ORDERS: usize = 3_000;

/// The units of the only level, if there is one.
async fn units(server: &PrivateServer) -> Option<i64> {
    let levels: Vec<String> = command(server.url(), &["KEYS", "stock:*"]).await;
    match &levels[..] {
        [level] => command(server.url(), &["HGET", level, "units"]).await,
        _ => None,
    }
}

/// Kills the master when it has so many sales that neither the replica nor SQL has. Returns the operations that
/// the new master has.
async fn fail_over(pair: &Pair, database: &Proxy, uncopied: i64) -> BTreeSet<String> {
    let [master, replica] = &pair.servers;
    until("both servers have sales", async || {
        units(master).await.is_some_and(|left| left < STOCK - 50)
    })
    .await;
    database.set(Mode::Refuse).await;
    line(master.url(), "ACL SETUSER default -psync -sync").await;
    line(master.url(), "CLIENT KILL TYPE replica").await;
    let copied = units(replica).await.expect("the replica has the level");
    until("only the master has some sales", async || {
        units(master)
            .await
            .is_some_and(|left| left <= copied - uncopied)
    })
    .await;
    let received = pair.fail_over(true).await;
    database.set(Mode::Pass).await;
    received
}

/// Goal: a race does not call lost sales exact. With `WAIT` none is lost, and the race says so.
#[rstest]
#[case(Strategy::RedisLua, "0")]
#[case(Strategy::RedisWatch, "0")]
#[case(Strategy::RedisLua, "1")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn race_counts_the_sales_that_a_failover_loses(
    #[case] strategy: Strategy,
    #[case] wait: &str,
) {
    let (pair, database) = (Pair::start().await, fresh_database(Backend::Postgres).await);
    let (proxy, url) = Proxy::before(&database.url).await;
    let redis = pair.url();
    let flags = ["--redis-url", &redis, "--redis-wait-replicas", wait];
    let app = TestApp::on(&url, 1, &flags).await;
    let mut plan = RacePlan::new(STOCK, BUYERS, ORDERS);
    plan.home = Home::Redis;
    plan.strategies = Entrants::Only(vec![strategy]);
    let race = run(&plan, app.targets(), &|_| {});
    // With `WAIT`, the first batch that is not copied waits for the replica, and the others for that batch.
    let uncopied = if wait == "0" { 5 } else { 1 };
    let (report, received) = tokio::join!(race, fail_over(&pair, &proxy, uncopied));

    let report = report.expect("the race runs");
    let table = report.table(TableStyle::default());
    let [row] = &report.rows[..] else {
        panic!("{table}")
    };
    let (lost, audit) = (row.mismatch.lost, &row.audit);
    assert_eq!(
        (audit.sold, audit.drift, audit.on_hand),
        (STOCK, 0, 0),
        "{table}"
    );
    assert_eq!(row.answers.sold, STOCK + lost, "{table}");
    let recorded = Ledger::at(&database.url).sales(&row.sku).await;
    for id in row.mismatch.lost_ids.iter().map(ToString::to_string) {
        let is_kept = received.contains(&id) || recorded.iter().any(|(sale, _)| *sale == id);
        assert!(!is_kept, "{id} is not lost: {table}");
    }
    let replaced = "Redis was restarted or replaced";
    assert!(
        row.remarks
            .iter()
            .any(|remark| remark.starts_with(replaced)),
        "{table}"
    );
    if wait == "0" {
        assert!(lost >= uncopied, "{table}");
        assert_eq!(row.verdict, Verdict::DataLost, "{table}");
        assert!(table.contains(&format!(
            "{lost} orders answered 200 that are not in the ledger"
        )));
        assert!(report.broken(), "a race in CI fails");
    } else {
        assert_eq!((lost, row.verdict), (0, Verdict::Exact), "{table}");
    }
    app.stop().await;
}
