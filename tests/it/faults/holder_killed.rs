//! A holder of a lock whose process ends, at once or in good order.

use std::time::Duration;

use reqwest::Method;
use stocklock::strategy::Service;
use tokio::time::{Instant, timeout};

use super::lock_holder::Scene;
use super::{SOON, send, until};
use crate::support::services::Backend;

const LEASE: Duration = Duration::from_secs(2);
/// How long after the end of a lease the next one may still wait.
const MARGIN: Duration = Duration::from_secs(2);
/// So long that nobody waits for its end.
const LONG_LEASE: Duration = Duration::from_secs(25);
/// Far less than that, and far more than a deduction takes.
const AT_ONCE: Duration = Duration::from_secs(5);
const STOCK: i64 = 2;

#[rstest::rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_one_sells_once_the_lease_of_a_killed_holder_is_over(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
    #[values(Service::Redis, Service::Zookeeper)] service: Service,
) {
    let mut scene = Scene::open(backend, service, LEASE, STOCK, "").await;
    let lease = scene.place.granted(LEASE).await;
    scene.holder.kill9();
    let killed = Instant::now();
    let sale = send(scene.others_order()).await.expect("it answers");
    let waited = killed.elapsed();
    assert_eq!(sale.status, 200, "{sale:?}");
    assert!(waited < lease + MARGIN, "{waited:?} of {lease:?}");
    // It was renewed after every third, so at least the rest of it was left.
    assert!(waited > lease / 3, "{waited:?} of {lease:?}");

    scene
        .told
        .await
        .unwrap()
        .expect_err("nobody is there to answer");
    assert_eq!(scene.ledger.sales(&scene.sku).await, [sale.id]);
    let audit = scene.ledger.audit(&scene.sku).await;
    assert!(audit.consistent(), "{audit:?}");
}

/// Goal: a process that is told to terminate leaves no lock behind for others to wait for.
///
/// Method: it holds one when it is told, and can go on only after it has closed its door.
#[rstest::rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_terminates_gives_its_lock_back(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
    #[values(Service::Redis, Service::Zookeeper)] service: Service,
) {
    let scene = Scene::open(backend, service, LONG_LEASE, STOCK, "").await;
    scene.holder.terminate();
    until("new connections are refused", SOON, || async {
        let newcomer = scene.holder.request(Method::GET, "/healthz").send().await;
        newcomer.is_err_and(|error| error.is_connect())
    })
    .await;
    assert_eq!(scene.place.held().await, 1, "it is not done yet");
    let order = scene.others_order();
    scene.read.let_go();
    let told = scene.told.await.unwrap().expect("it is answered");
    assert_eq!(told.status, 200, "{told:?}");
    let ended = scene.holder.ended().await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);

    assert_eq!(scene.place.held().await, 0, "{}", ended.stderr);
    let sale = timeout(AT_ONCE, send(order)).await;
    let sale = sale.expect("nobody holds the lock").expect("it answers");
    assert_eq!(sale.status, 200, "{sale:?}");
    assert_eq!(scene.ledger.audit(&scene.sku).await.sold, STOCK);
}
