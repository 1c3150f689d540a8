//! A lock holder that is stopped (`SIGSTOP`) past its lease and then continues, or that is asked to stop
//! (`SIGTERM`).

use std::time::Duration;

use rstest::rstest;
use stocklock::stock::Audit;
use stocklock::strategy::Dependency::{Database, Redis, RedisMasters, Zookeeper};

use super::lock_holder::Scene;
use super::lock_servers::Place;
use super::{Answer, send, send_within};
use crate::drain::refuses_connections;
use crate::support::services::Backend::{Mysql, Postgres};

const LEASE: Duration = Duration::from_millis(1500);
/// A lease that does not end during the test.
const LONG_LEASE: Duration = Duration::from_secs(25);
/// Far less than that, and far more than a deduction takes.
const AT_ONCE: Duration = Duration::from_secs(12);
/// Both replicas want the last unit.
const STOCK: i64 = 1;

#[derive(Debug)]
struct Outcome {
    answer: Answer,
    acquired: u64,
    /// How many locks the holder has lost because the lease expired, and for any reason.
    expired: u64,
    lost: u64,
    /// How many writes of the holder were refused because of the fence, and for any reason.
    fenced: u64,
    refused: u64,
    audit: Audit,
    read_versions: Vec<Option<i64>>,
}

/// Both replicas sell the last unit. The holder has read the level and is stopped before it writes;
/// it continues after the other replica has sold.
async fn outcome(place: Place, switches: &str) -> Outcome {
    let scene = Scene::open(place, LEASE, STOCK, switches).await;
    scene.holder.stop().await;
    send(scene.others_order()).await.ok();

    let labels = format!("{{strategy=\"{}\"", scene.strategy());
    scene.read.let_go();
    scene.holder.resume();
    let answer = scene.answer.await.unwrap().expect("the holder answers");
    let holder = &scene.holder;
    let count = async |counter: &str, reason: &str| {
        holder.counted(&format!("{counter}{labels}{reason}")).await
    };
    let movements = scene.ledger.movements(&scene.sku).await;
    let sales = movements.iter().filter(|it| it.strategy.is_some());
    Outcome {
        answer,
        acquired: count("stock_lock_wait_seconds_count", "").await,
        expired: count("stock_locks_lost_total", ",reason=\"expired\"").await,
        lost: count("stock_locks_lost_total", "").await,
        fenced: count("stock_writes_refused_total", ",reason=\"fence\"").await,
        refused: count("stock_writes_refused_total", "").await,
        audit: scene.ledger.audit(&scene.sku).await,
        read_versions: sales.map(|sale| sale.read_version).collect(),
    }
}

/// Goal: the holder notices the loss of its lock before it writes, or its write is refused. It then
/// finds that nothing is left.
///
/// The local check alone is not safe in general: a holder can also be stopped right after it.
///
/// Without a fencing token, the version refuses the write. That does not tell the holder that it lost its
/// lock, so it asks for no second one.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_holder_does_not_oversell(
    #[values((Database, Mysql), (Redis, Postgres), (RedisMasters, Mysql), (Zookeeper, Postgres))]
    place: Place,
    #[values(("", 0), ("&guard=off", 0), ("&check=off", 1))] off: (&str, u64),
) {
    let (switches, refused_writes) = off;
    let outcome = outcome(place, switches).await;
    assert_eq!((outcome.lost, outcome.expired), (1, 1), "{outcome:?}");
    let has_tokens = place.0 != RedisMasters;
    let refused = (outcome.refused, outcome.fenced);
    let fenced = if has_tokens { refused_writes } else { 0 };
    assert_eq!(refused, (refused_writes, fenced), "{outcome:?}");
    let knows_of_loss = has_tokens || refused_writes == 0;
    let acquired = if knows_of_loss { 2 } else { 1 };
    assert_eq!(outcome.acquired, acquired, "{outcome:?}");
    let expected = (409, "insufficient-stock");
    assert_eq!(outcome.answer.status_and_code(), expected, "{outcome:?}");
    assert_eq!(outcome.read_versions.len(), 1, "{outcome:?}");
    let audit = &outcome.audit;
    assert!(audit.consistent(), "{outcome:?}");
    assert_eq!((audit.sold, audit.on_hand), (1, 0), "{outcome:?}");
}

/// Proves that the test above can detect an oversell.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_guard_and_check_the_last_unit_is_sold_twice(
    #[values((Database, Mysql), (Redis, Postgres), (RedisMasters, Mysql), (Zookeeper, Postgres))]
    place: Place,
) {
    let outcome = outcome(place, "&check=off&guard=off").await;
    assert_eq!(outcome.answer.status, 200, "{outcome:?}");
    let audit = &outcome.audit;
    assert_eq!((audit.oversold(), audit.drift()), (1, 1), "{outcome:?}");
    // The lost update: both sales had read the same version.
    let [Some(one), Some(other)] = outcome.read_versions[..] else {
        panic!("not two sales with a read version: {outcome:?}");
    };
    assert_eq!(one, other, "{outcome:?}");
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
    let scene = Scene::open(place, LONG_LEASE, 2, "").await;
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
    assert_eq!(scene.ledger.audit(&scene.sku).await.sold, 2);
}

full! {
    stopped_holder_does_not_oversell(
        place: Place [(Database, Postgres), (Redis, Mysql), (RedisMasters, Postgres), (Zookeeper, Mysql)],
        off: (&str, u64) [("", 0), ("&guard=off", 0), ("&check=off", 1)]
    );
    without_guard_and_check_the_last_unit_is_sold_twice(
        place: Place [(Database, Postgres), (Redis, Mysql), (RedisMasters, Postgres), (Zookeeper, Mysql)]
    );
    stopping_holder_releases_its_lock(
        place: Place [(Database, Postgres), (Redis, Mysql), (RedisMasters, Postgres), (Zookeeper, Mysql)]
    );
}
