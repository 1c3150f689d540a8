//! A database that cannot be reached: what the service answers, and how soon.

use std::time::Duration;

use reqwest::Method;
use rstest::rstest;
use serde_json::json;

use super::{Proxied, in_time, send_until_final, send_within};
use crate::support::app::TestApp;
use crate::support::proxy::Mode;
use crate::support::services::Backend;

const WAIT_LIMIT: &str = "--wait-limit-ms=1000";
const LIMIT: Duration = Duration::from_secs(2);
const STOCK: i64 = 1_000;

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_without_database_answers_503_until_it_is_back(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
    #[values(Mode::Refuse, Mode::Blackhole)] outage: Mode,
) {
    let subject = Proxied::start(backend, 1, &[WAIT_LIMIT]).await;
    subject.app.set_level("hot", STOCK).await;
    subject.proxy.set(outage).await;
    // A second replica, which has no open connection yet.
    let app = TestApp::on_migrated(&subject.url, 1, &[WAIT_LIMIT]).await;
    let order = || app.deduct(0, "single-sql", &json!({"sku": "hot"}));
    let get = |path| send_within(in_time(LIMIT), app.request(0, Method::GET, path));
    let (bought, read, health, ready) = tokio::join!(
        send_within(in_time(LIMIT), order()),
        get("/stock/hot"),
        get("/healthz"),
        get("/readyz"),
    );
    for refused in [bought, read] {
        refused.assert_refused_for_now("unavailable");
    }
    assert_eq!((health.status, ready.status), (200, 503));

    subject.proxy.set(Mode::Pass).await;
    assert_eq!(send_until_final(order()).await.status, 200);
}

/// The cause is the database, not other buyers: the code must not be `contended`.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_lost_repeatedly_are_answered_unavailable(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let subject = Proxied::start(backend, 1, &[WAIT_LIMIT]).await;
    subject.app.set_level("hot", STOCK).await;
    let begin: &[u8] = match backend {
        Backend::Mysql => b"\x03BEGIN",
        _ => b"BEGIN\0",
    };
    let cut = subject.proxy.cut_before(begin, u32::MAX);
    let order = subject.app.deduct(0, "for-update", &json!({"sku": "hot"}));
    let refused = send_within(in_time(LIMIT), order).await;
    refused.assert_refused_for_now("unavailable");
    assert!(cut.fired() > 1, "the service did not try again");
    cut.disarm();
    assert!(subject.ledger.sales("hot").await.is_empty());
}
