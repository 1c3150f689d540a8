//! A database that cannot be reached: what callers are told, and how soon.

use std::time::Duration;

use reqwest::{Method, RequestBuilder};
use serde_json::json;
use tokio::time::timeout;

use super::{Answer, Proxied, send, settle};
use crate::support::app::TestApp;
use crate::support::proxy::Mode;
use crate::support::services::Backend;

/// The service's own default for the wait limit, and a second.
const TOLD_WITHIN: Duration = Duration::from_secs(3);
const STOCK: i64 = 1_000;

async fn told(request: RequestBuilder) -> Answer {
    let answer = timeout(TOLD_WITHIN, send(request)).await;
    let answer = answer.expect("it comes within the wait limit and a second");
    answer.expect("it comes")
}

#[track_caller]
fn assert_unavailable(answer: &Answer) {
    let told = (answer.status, answer.code.as_str(), answer.retry_after);
    assert_eq!(told, (503, "unavailable", true));
}

#[rstest::rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_starts_without_its_database_says_so_until_it_is_there(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
    #[values(Mode::Refuse, Mode::Blackhole)] away: Mode,
) {
    let subject = Proxied::start(backend, 1, &[]).await;
    subject.app.set_level("hot", STOCK).await;
    subject.proxy.set(away).await;
    // It has not a single connection yet.
    let app = TestApp::on_migrated(&subject.url, 1, &[]).await;
    let order = app.deduct(0, "single-sql", &json!({"sku": "hot"}));
    let (bought, read, healthy, ready) = tokio::join!(
        told(order),
        told(app.request(0, Method::GET, "/stock/hot")),
        told(app.request(0, Method::GET, "/healthz")),
        told(app.request(0, Method::GET, "/readyz")),
    );
    assert_unavailable(&bought);
    assert_unavailable(&read);
    assert_eq!((healthy.status, ready.status), (200, 503));

    subject.proxy.set(Mode::Pass).await;
    let order = app.deduct(0, "single-sql", &json!({"sku": "hot"}));
    assert_eq!(settle(order).await.status, 200);
    app.stop().await;
    subject.app.stop().await;
}

/// Nothing was changed, and not because others were faster.
#[rstest::rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_lost_again_and_again_are_not_called_contention(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let subject = Proxied::start(backend, 1, &[]).await;
    subject.app.set_level("hot", STOCK).await;
    let begin: &[u8] = match backend {
        Backend::Mysql => b"\x03BEGIN",
        _ => b"BEGIN\0",
    };
    let cut = subject.proxy.cut_before(begin, u32::MAX);
    let order = subject.app.deduct(0, "for-update", &json!({"sku": "hot"}));
    let answer = told(order).await;
    assert_unavailable(&answer);
    // It has not given up at the first one.
    assert!(cut.fired() > 1, "{}", cut.fired());
    cut.disarm();
    assert!(subject.ledger.sales("hot").await.is_empty());
    subject.app.stop().await;
}
