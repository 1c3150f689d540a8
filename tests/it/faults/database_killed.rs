//! The database killed in the middle of a race, and started again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use reqwest::{Method, RequestBuilder};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::{KEY, Ledger, SOON, new_key, send, until};
use crate::support::app::TestApp;
use crate::support::services::{Backend, PrivateServer};

/// How many buy at once, for each strategy.
const BUYERS: usize = 12;
const STRATEGIES: [&str; 3] = ["single-sql", "for-update", "optimistic"];
const STOCK: i64 = 100_000;
/// What must be sold before, between and after the kills.
const SALES: usize = 60;
/// How often the server is killed.
const KILLS: usize = 2;
/// The service's own default, from its command line.
const WAIT_LIMIT: Duration = Duration::from_secs(2);
const SECOND: Duration = Duration::from_secs(1);

/// What the buyers share.
#[derive(Debug, Default)]
struct Race {
    sold: AtomicUsize,
    over: AtomicBool,
    /// Whether the database is away.
    away: AtomicBool,
}

/// Buys until the race is over, each unit under a key of its own, which is repeated for as long as
/// the outcome is not clear. Answers the operations that were acknowledged.
async fn buyer(order: RequestBuilder, race: Arc<Race>) -> Vec<String> {
    let mut acknowledged = Vec::new();
    while !race.over.load(Ordering::SeqCst) {
        let id = buy(&order, &new_key(), &race.away).await;
        acknowledged.push(id);
        race.sold.fetch_add(1, Ordering::SeqCst);
    }
    acknowledged
}

async fn buy(order: &RequestBuilder, key: &str, away: &AtomicBool) -> String {
    let started = Instant::now();
    loop {
        let was_away = away.load(Ordering::SeqCst);
        let copy = order.try_clone().expect("the body is in memory");
        let answer = send(copy.header(KEY, key)).await;
        let answer = answer.expect("a replica always answers");
        if answer.status == 200 {
            return answer.id;
        }
        assert!(answer.asks_for_retry(), "{answer:?}");
        // With four connections for all of them it may have too much to do, but that is not what
        // is wrong while the database is away.
        if was_away && away.load(Ordering::SeqCst) {
            assert_ne!(answer.code, "overloaded");
        }
        assert!(started.elapsed() < 2 * SOON, "still {answer:?}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// Goal: what was acknowledged is there once and nothing else is; nobody is told of a defect; the
/// service itself stays up, says that it is not ready, and works again without being restarted.
///
/// Method: 36 buyers under three strategies at two replicas; `kill -9` of every process of the
/// server while they buy, twice.
#[rstest::rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_sold_twice_when_the_database_is_killed(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let server = PrivateServer::start(backend).await;
    // Fewer connections than buyers, so that some wait for one when the server goes.
    let app = TestApp::on(server.url(), 2, &["--database-pool-size", "4"]).await;
    app.set_level("cold", STOCK).await;
    let race = Arc::new(Race::default());
    let mut buyers: Vec<JoinSet<Vec<String>>> = Vec::new();
    for strategy in STRATEGIES {
        app.set_level(strategy, STOCK).await;
        let order = json!({ "sku": strategy });
        buyers.push(
            (0..BUYERS)
                .map(|number| buyer(app.deduct(number, strategy, &order), Arc::clone(&race)))
                .collect(),
        );
    }
    for _ in 0..KILLS {
        more_is_sold(&race).await;
        server.kill9();
        race.away.store(true, Ordering::SeqCst);
        tokio::join!(up_but_not_ready(&app, 0), up_but_not_ready(&app, 1));
        race.away.store(false, Ordering::SeqCst);
        server.restart().await;
        until("the service is ready again", SOON, || async {
            app.get("/readyz").await.status() == 200
        })
        .await;
    }
    more_is_sold(&race).await;
    race.over.store(true, Ordering::SeqCst);

    let ledger = Ledger::at(server.url());
    for (strategy, buyers) in STRATEGIES.into_iter().zip(buyers) {
        let acknowledged = buyers.join_all().await.concat();
        let once: BTreeSet<_> = acknowledged.iter().cloned().collect();
        assert_eq!(once.len(), acknowledged.len(), "{strategy}: answered twice");
        let recorded: BTreeSet<_> = ledger.sales(strategy).await.into_iter().collect();
        assert_eq!(recorded, once, "{strategy}");
        let audit = ledger.audit(strategy).await;
        assert!(audit.consistent(), "{strategy}: {audit:?}");
        assert_eq!(audit.on_hand, STOCK - audit.sold, "{strategy}");
    }
    app.stop().await;
}

async fn more_is_sold(race: &Race) {
    let before = race.sold.load(Ordering::SeqCst);
    until("buyers buy", 2 * SOON, || async {
        race.sold.load(Ordering::SeqCst) >= before + SALES
    })
    .await;
}

/// While the database is away: alive, not ready, and honest to who buys, from the first moment on
/// and again and again.
async fn up_but_not_ready(app: &TestApp, replica: usize) {
    let mut asked = JoinSet::new();
    for _ in 0..4 {
        let healthy = app.request(replica, Method::GET, "/healthz");
        asked.spawn(expect(healthy, 200, "", SECOND));
        let ready = app.request(replica, Method::GET, "/readyz");
        asked.spawn(expect(ready, 503, "not-ready", SECOND));
        let order = app.deduct(replica, "single-sql", &json!({"sku": "cold"}));
        asked.spawn(expect(order, 503, "unavailable", WAIT_LIMIT + SECOND));
        sleep(SECOND / 4).await;
    }
    asked.join_all().await;
}

async fn expect(request: RequestBuilder, status: u16, code: &str, within: Duration) {
    let answer = timeout(within, send(request)).await;
    let answer = answer.expect("it comes in time").expect("it comes");
    assert_eq!((answer.status, answer.code.as_str()), (status, code));
    assert_eq!(answer.retry_after, code == "unavailable");
}
