//! A lock holder whose process is killed or asked to stop.

use std::time::Duration;

use rstest::rstest;
use stocklock::strategy::Dependency;
use tokio::time::Instant;

use super::lock_holder::Scene;
use super::{send, send_within};
use crate::drain::refuses_connections;
use crate::support::services::Backend;

const LEASE: Duration = Duration::from_secs(2);
/// How long the next client may wait after the end of the lease.
const MARGIN: Duration = Duration::from_secs(2);
/// A lease that does not end during the test.
const LONG_LEASE: Duration = Duration::from_secs(25);
/// Far less than that, and far more than a deduction takes.
const AT_ONCE: Duration = Duration::from_secs(5);
const STOCK: i64 = 2;

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next_client_sells_after_the_lease_of_a_killed_holder(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
    #[values(
        Dependency::Database,
        Dependency::Redis,
        Dependency::RedisMasters,
        Dependency::Zookeeper
    )]
    service: Dependency,
) {
    let mut scene = Scene::open(backend, service, LEASE, STOCK, "").await;
    let lease = scene.place.granted(LEASE).await;
    scene.holder.kill9();
    let killed = Instant::now();
    let sale = send(scene.others_order()).await;
    let waited = killed.elapsed();
    assert_eq!(sale.status, 200, "{sale:?}");
    assert!(waited < lease + MARGIN, "{waited:?} of {lease:?}");
    // The holder renews its lease after each third, so at least one third of it was left.
    assert!(waited > lease / 3, "{waited:?} of {lease:?}");

    let answer = scene.answer.await.unwrap();
    answer.expect_err("a killed process does not answer");
    assert_eq!(scene.ledger.sold(&scene.sku).await, [sale.id]);
    scene.ledger.assert_consistent(&scene.sku).await;
}

/// Goal: a process that is asked to stop leaves no lock behind that others must wait for.
///
/// Method: it holds a lock when it is asked, and can continue only after it refuses connections.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_holder_releases_its_lock(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
    #[values(
        Dependency::Database,
        Dependency::Redis,
        Dependency::RedisMasters,
        Dependency::Zookeeper
    )]
    service: Dependency,
) {
    let scene = Scene::open(backend, service, LONG_LEASE, STOCK, "").await;
    scene.holder.terminate();
    refuses_connections(&scene.holder).await;
    assert_eq!(scene.place.held().await, 1, "the deduction is not done yet");
    let order = scene.others_order();
    scene.read.let_go();
    let answer = scene.answer.await.unwrap().expect("the holder answers");
    assert_eq!(answer.status, 200, "{answer:?}");
    let ended = scene.holder.ended().await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);

    assert_eq!(scene.place.held().await, 0, "{}", ended.stderr);
    let sale = send_within(AT_ONCE, order).await;
    assert_eq!(sale.status, 200, "{sale:?}");
    assert_eq!(scene.ledger.audit(&scene.sku).await.sold, STOCK);
}
