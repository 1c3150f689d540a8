//! A client of the database that falls silent inside a transaction: its connection is never
//! closed, and nothing passes over it any more.

use std::time::Duration;

use reqwest::Method;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::session::{self, Session};
use super::{Proxied, keyed, send, settle};
use crate::support::app::TestApp;
use crate::support::proxy::Mode;
use crate::support::services::Backend;

/// How long a server lets a transaction of ours be idle, and what it takes to notice.
const FREE_AFTER: Duration = Duration::from_secs(13);
/// The service's own default for the longest wait for an answer, and time to give it.
const DEADLINE: Duration = Duration::from_secs(6);
/// How long the service may take to get rid of its dead connections.
const RECOVERED_WITHIN: Duration = Duration::from_secs(8);
/// For a sale beside the locked row: far less than that row stays locked, and enough for a machine
/// that has other things to do.
const BESIDE_WITHIN: Duration = Duration::from_secs(4);
const STOCK: i64 = 1_000;

/// Goal: the request whose connection fell silent is answered by its deadline; its row is free once
/// the server has had enough; nobody else's row is ever affected; and the service, all of whose
/// pooled connections are dead, soon serves again.
///
/// Method: the row is locked by the test until the deduction waits for it. Then every connection
/// that the service has is stranded, and the row let go: the server gives it to a transaction whose
/// client will never be heard of again.
#[rstest::rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_client_costs_its_row_ten_seconds_and_the_others_nothing(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let subject = Proxied::start(backend, 1, &[]).await;
    let others = TestApp::on_migrated(&subject.database.url, 1, &[]).await;
    let mut holder = Session::open(backend, &subject.database.url).await;
    for sku in ["hot", "cold"] {
        subject.app.set_level(sku, STOCK).await;
    }
    fill_pool(&subject.app).await;
    assert!(holder.try_lock_hot().await, "the row is free");
    let order = keyed(
        subject.app.deduct(0, "for-update", &json!({"sku": "hot"})),
        true,
    );
    let repeat = order.try_clone().expect("the body is in memory");
    let asked = tokio::spawn(timeout(DEADLINE, send(order)));
    session::somebody_waits(backend, &subject.database.url).await;
    subject.proxy.set(Mode::Strand).await;
    holder.unlock().await;

    let (held, ()) = tokio::join!(
        others_sell_until_free(&others, &mut holder),
        serves_again(&subject.app)
    );
    assert!(held > Duration::from_secs(1), "it was not held: {held:?}");
    let answer = asked
        .await
        .unwrap()
        .expect("answered by the deadline")
        .unwrap();
    assert!(matches!(answer.status, 503 | 504), "{answer:?}");

    let answer = settle(repeat).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(subject.ledger.sales("hot").await, [answer.id]);
    for sku in ["hot", "cold"] {
        let audit = subject.ledger.audit(sku).await;
        assert!(audit.consistent(), "{audit:?}");
    }
    others.stop().await;
    let stopping = Instant::now();
    subject.app.stop().await;
    assert!(stopping.elapsed() < DEADLINE, "{:?}", stopping.elapsed());
}

/// Sells so much at once that the pool opens many connections.
async fn fill_pool(app: &TestApp) {
    let order = json!({"sku": "cold"});
    let buying: JoinSet<_> = (0..16)
        .map(|_| settle(app.deduct(0, "single-sql", &order)))
        .collect();
    assert!(
        buying
            .join_all()
            .await
            .iter()
            .all(|answer| answer.status == 200)
    );
}

/// Answers how long the row stayed locked, while others sold what is beside it.
async fn others_sell_until_free(others: &TestApp, holder: &mut Session) -> Duration {
    let started = Instant::now();
    loop {
        let sale = others.deduct(0, "for-update", &json!({"sku": "cold"}));
        let sale = timeout(BESIDE_WITHIN, settle(sale)).await;
        assert_eq!(sale.expect("nobody else waits").status, 200);
        let free = holder.try_lock_hot().await;
        holder.unlock().await;
        if free {
            return started.elapsed();
        }
        assert!(started.elapsed() < FREE_AFTER, "the row stays locked");
        sleep(Duration::from_millis(50)).await;
    }
}

/// Every request is answered in time, reads too, and soon they all succeed again.
async fn serves_again(app: &TestApp) {
    let started = Instant::now();
    let mut in_a_row = 0;
    while in_a_row < 20 {
        let sale = app.deduct(0, "single-sql", &json!({"sku": "cold"}));
        let read = app.request(0, Method::GET, "/stock/cold");
        let (sale, read) =
            tokio::join!(timeout(DEADLINE, send(sale)), timeout(DEADLINE, send(read)));
        let sale = sale.expect("a sale is answered by its deadline").unwrap();
        let read = read.expect("a read is answered by its deadline").unwrap();
        assert!(matches!(sale.status, 200 | 503 | 504), "{sale:?}");
        assert!(matches!(read.status, 200 | 503), "{read:?}");
        let fine = sale.status == 200 && read.status == 200;
        in_a_row = if fine { in_a_row + 1 } else { 0 };
        assert!(
            started.elapsed() < RECOVERED_WITHIN || fine,
            "{sale:?}, {read:?}"
        );
    }
}
