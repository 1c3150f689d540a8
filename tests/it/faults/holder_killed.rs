//! A lock holder whose process is killed or asked to stop.

use std::time::Duration;

use rstest::rstest;
use stocklock::strategy::Dependency::{Database, Redis, RedisMasters, Zookeeper};

use super::lock_holder::Scene;
use super::lock_servers::Place;
use super::{send, send_within, until};
use crate::drain::refuses_connections;
use crate::support::services::Backend::{Mysql, Postgres};

const LEASE: Duration = Duration::from_secs(2);
/// A lease that does not end during the test.
const LONG_LEASE: Duration = Duration::from_secs(25);
/// Far less than that, and far more than a deduction takes.
const AT_ONCE: Duration = Duration::from_secs(12);
const STOCK: i64 = 2;

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next_client_sells_after_the_lease_of_a_killed_holder(
    #[values((Database, Mysql), (Redis, Postgres), (RedisMasters, Mysql), (Zookeeper, Postgres))]
    place: Place,
) {
    let mut scene = Scene::open(place, LEASE, STOCK, "").await;
    let sale = tokio::spawn(send(scene.others_order()));
    let strategy = scene.strategy();
    let busy = format!("stock_lock_attempts_total{{strategy=\"{strategy}\",outcome=\"busy\"");
    let waits = async || scene.other.counted(&busy).await > 0;
    until("the other replica finds the lock held", waits).await;
    scene.holder.kill9();
    let sale = sale.await.unwrap();
    sale.ok();
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
    #[values((Database, Mysql), (Redis, Postgres), (RedisMasters, Mysql), (Zookeeper, Postgres))]
    place: Place,
) {
    let scene = Scene::open(place, LONG_LEASE, STOCK, "").await;
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

full! {
    next_client_sells_after_the_lease_of_a_killed_holder(
        place: Place [(Database, Postgres), (Redis, Mysql), (RedisMasters, Postgres), (Zookeeper, Mysql)]
    );
    stopping_holder_releases_its_lock(
        place: Place [(Database, Postgres), (Redis, Mysql), (RedisMasters, Postgres), (Zookeeper, Mysql)]
    );
}
