//! The database killed while buyers buy, and started again.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use reqwest::{Method, RequestBuilder};
use rstest::rstest;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::buyers::{Buyers, Keys, PLENTY};
use super::{Answer, Ledger, in_time, send_within, until};
use crate::support::app::TestApp;
use crate::support::services::{Backend, PrivateServer};

const BUYERS: usize = 12;
const STRATEGIES: [&str; 5] = [
    "single-sql",
    "for-update",
    "optimistic",
    "group-commit",
    "sql-lock",
];
/// What each strategy must sell before, between and after the kills.
const SALES: usize = 20;
const KILLS: usize = 2;
/// The default wait limit of the service.
const WAIT_LIMIT: Duration = Duration::from_secs(2);
const SECOND: Duration = Duration::from_secs(1);

/// Goal: each acknowledged sale is in the ledger once, and nothing else is. While the database is
/// down, the service stays alive, is not ready, and never answers 500. It recovers by itself.
///
/// Method: 60 buyers under five strategies at two replicas; `kill -9` of every process of the
/// server while they buy, twice.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn database_killed_during_sales_loses_and_doubles_nothing(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let server = PrivateServer::start(backend).await;
    // Fewer connections than buyers, so that some buyers wait for one when the server is killed.
    let app = TestApp::on(server.url(), 2, &["--database-pool-size", "4"]).await;
    app.set_level("cold", PLENTY).await;
    let down_since = Arc::new(Mutex::new(None::<Instant>));
    let mut buyers = Vec::new();
    for strategy in STRATEGIES {
        app.set_level(strategy, PLENTY).await;
        let order = |number| app.deduct(number, strategy, &json!({ "sku": strategy }));
        let down_since = Arc::clone(&down_since);
        // With four connections the service may be overloaded, but while the database is down that
        // is not the cause.
        let check = move |answer: &Answer, took: Duration| {
            let down_since = *down_since.lock().expect("no panic");
            if down_since.is_some_and(|down_since| down_since.elapsed() > took) {
                assert_ne!(answer.code, "overloaded");
            }
        };
        let orders = (0..BUYERS).map(order);
        buyers.push(Buyers::start(strategy, Keys::Half, orders, check));
    }
    let all_sell = || join_all(buyers.iter().map(|buyers| buyers.sell(SALES)));
    for _ in 0..KILLS {
        all_sell().await;
        server.kill9();
        *down_since.lock().expect("no panic") = Some(Instant::now());
        tokio::join!(alive_but_not_ready(&app, 0), alive_but_not_ready(&app, 1));
        *down_since.lock().expect("no panic") = None;
        server.restart().await;
        let holds = async || app.get("/readyz").await.status == 200;
        until("the service is ready again", holds).await;
    }
    all_sell().await;
    let ledger = Ledger::at(server.url());
    for buyers in buyers {
        buyers.stop().await.assert_exact(&ledger).await;
    }
}

/// Asks four times in a second: a replica without a database is alive, not ready, and refuses
/// deductions in time.
async fn alive_but_not_ready(app: &TestApp, replica: usize) {
    let mut requests = JoinSet::new();
    for _ in 0..4 {
        let get = |path| app.request(replica, Method::GET, path);
        requests.spawn(expect(get("/healthz"), 200, "", SECOND));
        requests.spawn(expect(get("/readyz"), 503, "not-ready", SECOND));
        for strategy in ["single-sql", "sql-lock"] {
            let order = app.deduct(replica, strategy, &json!({"sku": "cold"}));
            requests.spawn(expect(order, 503, "unavailable", WAIT_LIMIT + SECOND));
        }
        sleep(SECOND / 4).await;
    }
    requests.join_all().await;
}

async fn expect(request: RequestBuilder, status: u16, code: &'static str, within: Duration) {
    let answer = send_within(in_time(within), request).await;
    assert_eq!(answer.status_and_code(), (status, code));
    assert_eq!(answer.retry_after, code == "unavailable");
}
