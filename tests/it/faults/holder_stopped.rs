//! A holder of a lock that is stopped past its lease, and goes on as if nothing had happened.

use std::time::Duration;

use stocklock::stock::Audit;
use stocklock::strategy::Service;
use tokio::time::Instant;

use super::lock_holder::Scene;
use super::{Answer, send};
use crate::support::services::Backend;

const LEASE: Duration = Duration::from_millis(1500);
/// How long after the end of a lease the next one may still wait.
const MARGIN: Duration = Duration::from_secs(2);
/// Both want the last one.
const STOCK: i64 = 1;

/// What came of it.
#[derive(Debug)]
struct Outcome {
    /// What the stopped holder told its buyer.
    told: Answer,
    /// How often it has acquired a lock.
    acquired: u64,
    /// The locks that it found to have lost because the lease was over, and for any reason.
    expired: u64,
    lost: u64,
    /// Its writes that were refused for the fence, and for any reason.
    fenced: u64,
    refused: u64,
    audit: Audit,
    /// What the sales had read.
    read: Vec<Option<i64>>,
}

/// Both replicas sell the last unit, one after the other: the one that had read the level first was
/// stopped before it could write, and goes on when the other has its answer.
async fn outcome(backend: Backend, service: Service, switches: &str) -> Outcome {
    let scene = Scene::open(backend, service, LEASE, STOCK, switches).await;
    let lease = scene.place.granted(LEASE).await;
    scene.holder.stop().await;
    let stopped = Instant::now();
    let sale = send(scene.others_order()).await.expect("it answers");
    assert_eq!(sale.status, 200, "{sale:?}");
    assert!(
        stopped.elapsed() < lease + MARGIN,
        "{:?}",
        stopped.elapsed()
    );

    let labels = format!("{{strategy=\"{}\"", scene.strategy());
    scene.read.let_go();
    scene.holder.resume();
    let told = scene.told.await.unwrap().expect("it is answered");
    let holder = &scene.holder;
    let count = async |counter: &str, reason: &str| {
        holder.counted(&format!("{counter}{labels}{reason}")).await
    };
    let movements = scene.ledger.movements(&scene.sku).await;
    let sales = movements.iter().filter(|it| it.strategy.is_some());
    Outcome {
        told,
        acquired: count("stock_lock_wait_seconds_count", "").await,
        expired: count("stock_locks_lost_total", ",reason=\"expired\"").await,
        lost: count("stock_locks_lost_total", "").await,
        fenced: count("stock_writes_refused_total", ",reason=\"fence\"").await,
        refused: count("stock_writes_refused_total", "").await,
        audit: scene.ledger.audit(&scene.sku).await,
        read: sales.map(|sale| sale.read_version).collect(),
    }
}

impl Outcome {
    /// The holder has noticed the loss, and found under another lock that nothing is left.
    #[track_caller]
    fn assert_nothing_oversold(&self) {
        assert_eq!((self.lost, self.expired), (1, 1), "{self:?}");
        assert_eq!(self.acquired, 2, "{self:?}");
        let told = (self.told.status, self.told.code.as_str());
        assert_eq!(told, (409, "insufficient-stock"), "{self:?}");
        assert_eq!(self.read.len(), 1, "{self:?}");
        assert!(self.audit.consistent(), "{self:?}");
        assert_eq!((self.audit.sold, self.audit.on_hand), (1, 0), "{self:?}");
    }
}

#[rstest::rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_local_check_keeps_it_from_writing(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
    #[values(Service::Redis, Service::Zookeeper)] service: Service,
) {
    let outcome = outcome(backend, service, "").await;
    outcome.assert_nothing_oversold();
    assert_eq!(outcome.refused, 0, "it has not even tried: {outcome:?}");
}

/// The check alone is not enough in general, for a holder can be stopped right after it; here it is
/// all that there is.
#[rstest::rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_local_check_sees_this_much_without_the_guard_too(
    #[values(Service::Redis, Service::Zookeeper)] service: Service,
) {
    let outcome = outcome(Backend::Postgres, service, "&guard=off").await;
    outcome.assert_nothing_oversold();
}

#[rstest::rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_guard_refuses_what_it_writes_without_the_check(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
    #[values(Service::Redis, Service::Zookeeper)] service: Service,
) {
    let outcome = outcome(backend, service, "&check=off").await;
    outcome.assert_nothing_oversold();
    assert_eq!((outcome.refused, outcome.fenced), (1, 1), "{outcome:?}");
}

/// This is how we know that the tests above can see an oversell.
#[rstest::rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_guard_and_check_the_last_unit_is_sold_twice(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
    #[values(Service::Redis, Service::Zookeeper)] service: Service,
) {
    let outcome = outcome(backend, service, "&check=off&guard=off").await;
    assert_eq!(outcome.told.status, 200, "{outcome:?}");
    let audit = &outcome.audit;
    assert_eq!((audit.oversold(), audit.drift()), (1, 1), "{outcome:?}");
    // The lost update itself.
    let [Some(one), Some(other)] = outcome.read[..] else {
        panic!("two sales that had read: {outcome:?}");
    };
    assert_eq!(one, other, "{outcome:?}");
}
