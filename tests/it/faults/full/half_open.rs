//! A connection to the database that goes silent inside a transaction: neither side closes it, and
//! nothing arrives on it any more.

use std::time::Duration;

use reqwest::Method;
use rstest::rstest;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::faults::session::Session;
use crate::faults::{Proxied, add_key_if, copy, send_until_final, send_within};
use crate::support::app::TestApp;
use crate::support::proxy::Mode;
use crate::support::rival::lock_is_waited_for;
use crate::support::services::Backend;

/// How long a server keeps an idle transaction of the service, plus the time to notice.
const FREE_AFTER: Duration = Duration::from_secs(13);
/// The default request deadline of the service, plus the time to answer.
const DEADLINE: Duration = Duration::from_secs(6);
/// How long the service may take to replace its dead connections.
const RECOVERED_WITHIN: Duration = Duration::from_secs(8);
/// For a sale of another row: far less than the row stays locked, enough for a busy machine.
const OTHER_ROW_WITHIN: Duration = Duration::from_secs(4);
const STOCK: i64 = 1_000;

/// Goal: the request whose connection went silent is answered by its deadline. Its row is unlocked
/// when the server's limit for idle transactions has passed, and no other row is ever locked. The
/// service, whose pooled connections are all dead, soon serves again.
///
/// Method: the test locks the row until the deduction waits for it. It then strands every
/// connection of the service and unlocks the row. The server gives the lock to a transaction whose
/// client will never be heard of again.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connection_locks_its_row_for_ten_seconds_only(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let subject = Proxied::start(backend, 1, &[]).await;
    let others = TestApp::on_migrated(&subject.database.url, 1, &[]).await;
    let mut holder = Session::open(backend, &subject.database.url).await;
    for sku in ["hot", "cold"] {
        subject.app.set_level(sku, STOCK).await;
    }
    fill_pools(&subject.app).await;
    assert!(holder.try_lock_hot().await, "the row is free");
    let order = subject.app.deduct(0, "for-update", &json!({"sku": "hot"}));
    let order = add_key_if(true, order);
    let first = tokio::spawn(send_within(DEADLINE, copy(&order)));
    lock_is_waited_for(backend, &subject.database.url).await;
    subject.proxy.set(Mode::Strand).await;
    holder.unlock().await;

    let (locked, ()) = tokio::join!(
        others_sell_until_unlocked(&others, &mut holder),
        serves_again(&subject.app)
    );
    assert!(locked > Duration::from_secs(1), "only {locked:?}");
    let answer = first.await.unwrap();
    answer.assert_is(504, "outcome-unknown");

    let answer = send_until_final(order).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(subject.ledger.sold("hot").await, [answer.id]);
    for sku in ["hot", "cold"] {
        subject.ledger.assert_consistent(sku).await;
    }
    others.stop().await;
    let stopping = Instant::now();
    subject.app.stop().await;
    assert!(stopping.elapsed() < DEADLINE, "{:?}", stopping.elapsed());
}

/// Sells so much at once that the pool opens many connections, and reads once.
async fn fill_pools(app: &TestApp) {
    let order = json!({"sku": "cold"});
    let sales = (0..16).map(|_| send_until_final(app.deduct(0, "single-sql", &order)));
    let answers = sales.collect::<JoinSet<_>>().join_all().await;
    assert!(answers.iter().all(|answer| answer.status == 200));
    app.get("/stock/cold").await.ok();
}

/// Sells another SKU until `hot` is unlocked; returns how long that took.
async fn others_sell_until_unlocked(others: &TestApp, holder: &mut Session) -> Duration {
    let started = Instant::now();
    loop {
        let sale = others.deduct(0, "for-update", &json!({"sku": "cold"}));
        let sale = timeout(OTHER_ROW_WITHIN, send_until_final(sale)).await;
        assert_eq!(sale.expect("the other row is not locked").status, 200);
        let unlocked = holder.try_lock_hot().await;
        holder.unlock().await;
        if unlocked {
            return started.elapsed();
        }
        assert!(started.elapsed() < FREE_AFTER, "the row stays locked");
        sleep(Duration::from_millis(50)).await;
    }
}

/// Every sale and every read is answered in time, and soon all of them succeed again.
async fn serves_again(app: &TestApp) {
    let started = Instant::now();
    let mut in_a_row = 0;
    while in_a_row < 20 {
        let sale = app.deduct(0, "single-sql", &json!({"sku": "cold"}));
        let read = app.request(0, Method::GET, "/stock/cold");
        let (sale, read) = tokio::join!(send_within(DEADLINE, sale), send_within(DEADLINE, read));
        let expected = [(200, ""), (503, "unavailable"), (504, "outcome-unknown")];
        assert!(expected.contains(&sale.status_and_code()), "{sale:?}");
        assert!(expected[..2].contains(&read.status_and_code()), "{read:?}");
        let both = sale.status == 200 && read.status == 200;
        in_a_row = if both { in_a_row + 1 } else { 0 };
        let in_time = started.elapsed() < RECOVERED_WITHIN || both;
        assert!(in_time, "{sale:?}, {read:?}");
    }
}
