//! The primary of a cluster of databases is killed, paused or replaced, while 64 buyers with keys buy at two replicas
//! of the service. The replicas reach the primary through HAProxy, or find it among the hosts of their URL. Clusters and HAProxy have the configuration files
//! of `deploy/`.
//!
//! `TEST_FAILOVER_KILLS`, `TEST_FAILOVER_PAUSES` and `TEST_SWITCHOVERS` are how often. With `TEST_TIMES`, the promised
//! times are checked.

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::{Client, Method, RequestBuilder};
use stocklock_testkit::eventually;
use stocklock_testkit::run::{number, rng};
use tokio::time::{Instant, sleep};

use crate::faults::buyers::{Buyers, Keys, PLENTY, SCARCE, restock};
use crate::faults::{Ledger, in_time};
use crate::support::client::client;
use crate::support::process::Process;
use crate::support::services::{Cluster, NODES};

mod galera;
mod patroni;

const BUYERS: usize = 64;
/// The maximum number of sales between two steps of a round.
const SALES: usize = 300;
/// How soon sales must go on after a new primary commits.
const SELLS_WITHIN: Duration = Duration::from_secs(2);
/// How soon `/readyz` must notice that there is no primary.
const NOTICED_WITHIN: Duration = Duration::from_secs(1);
/// More than an answer takes, and less than half of the time in which a cluster notices that its primary is cut off.
const ON_THE_WAY: Duration = Duration::from_secs(1);
/// Upper bound on the time until there is a new primary. Patroni needs 20 s.
const REPLACED_WITHIN: Duration = Duration::from_mins(2);

/// What happens to the primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// `kill -9`. It is started again when there is a new primary.
    Kill,
    /// All its processes are stopped, and continue when there is a new primary.
    Pause,
    /// An administrator makes another node the primary.
    Switchover,
}

/// The faults of a test, in a random order.
fn faults() -> Vec<Fault> {
    let all = [
        (Fault::Kill, number("TEST_FAILOVER_KILLS", 1)),
        (Fault::Pause, number("TEST_FAILOVER_PAUSES", 0)),
        (Fault::Switchover, number("TEST_SWITCHOVERS", 0)),
    ];
    let mut faults = all.map(|(fault, times)| vec![fault; times]).concat();
    rng().shuffle(&mut faults);
    faults
}

/// What a fault did to sales.
struct Outage {
    fault: Fault,
    /// For how long there was no sale.
    stopped: Duration,
    /// For how much of that a new primary could commit.
    with_primary: Duration,
}

/// Two replicas of the service.
struct Shop {
    replicas: [Process; 2],
    client: Client,
}

impl Shop {
    async fn open(database: &str) -> Self {
        Self {
            replicas: [
                Process::lab(database, &[]).await,
                Process::lab(database, &[]).await,
            ],
            client: client(),
        }
    }

    fn request(&self, replica: usize, method: Method, path: &str) -> RequestBuilder {
        let replica = &self.replicas[replica % self.replicas.len()];
        self.client.request(method, replica.url(path))
    }

    /// Half of the buyers buy a SKU of which there are enough units; the others a scarce one.
    async fn sell(&self, round: usize) -> [Buyers; 2] {
        let goods = [
            ("plenty", Keys::All, PLENTY),
            ("scarce", Keys::AllScarce, SCARCE),
        ];
        let buyers = goods.map(async |(name, keys, units)| {
            let sku = format!("{name}-{round}");
            self.replicas[0].set_level(&sku, units).await;
            let order = |buyer| self.request(buyer, Method::POST, "/stock/deduct");
            let orders = (0..BUYERS / 2).map(order);
            Buyers::start(&sku, keys, orders, |_, _| ())
        });
        let [plenty, scarce] = buyers;
        tokio::join!(plenty, scarce).into()
    }

    /// Returns in the middle of sales.
    async fn sells(&self, round: usize, [plenty, scarce]: &[Buyers; 2]) {
        let path = format!("/stock/scarce-{round}");
        restock(self.request(round, Method::PUT, &path)).await;
        plenty.sell(rng().usize(1..=SALES)).await;
        scarce.sell(1).await;
    }

    /// Whether each replica says that it is ready.
    async fn are_ready(&self) -> [bool; 2] {
        let answers = self
            .replicas
            .each_ref()
            .map(|replica| replica.get("/readyz"));
        let [first, second] = answers;
        let (first, second) = tokio::join!(first, second);
        [first.status == 200, second.status == 200]
    }

    /// Returns when `/readyz` of both replicas has answered 503, and 200 later. It must not answer 200 while writes are
    /// refused.
    async fn tell_the_truth<C: Cluster>(&self, cluster: &C, old: usize) {
        if C::REFUSES_WRITES {
            let notice = async || self.are_ready().await == [false; 2];
            eventually("no replica is ready", in_time(NOTICED_WITHIN), notice).await;
        }
        eventually("both replicas are ready", REPLACED_WITHIN, async || {
            let are_ready = self.are_ready().await;
            let is_true =
                !C::REFUSES_WRITES || are_ready == [false; 2] || has_other(cluster, old).await;
            assert!(is_true, "ready without a primary: {are_ready:?}");
            are_ready == [true; 2]
        })
        .await;
    }

    /// Returns when both replicas are ready.
    async fn become_ready(&self) {
        let ready = async || self.are_ready().await == [true; 2];
        eventually("both replicas are ready", REPLACED_WITHIN, ready).await;
    }

    /// A fault, and everything until the cluster is as before. Each answer must agree with the ledger.
    async fn survives(&self, cluster: &impl Cluster, fault: Fault, round: usize) -> Outage {
        let buyers = self.sell(round).await;
        self.sells(round, &buyers).await;
        let old = cluster.primary().await.expect("there is a primary");
        buyers[0].watch();
        let replaced = is_replaced(cluster, old);
        let new_primary = match fault {
            Fault::Kill => {
                cluster.supervisor(old).kill9().expect("it runs");
                tokio::join!(replaced, self.tell_the_truth(cluster, old)).0
            }
            Fault::Pause => {
                let frozen = cluster.supervisor(old).freeze().await;
                frozen.expect("it runs");
                tokio::join!(replaced, self.tell_the_truth(cluster, old)).0
            }
            Fault::Switchover => {
                let (at, done) = tokio::join!(replaced, cluster.switch_over());
                done.expect("the switchover is possible");
                at
            }
        };
        self.sells(round, &buyers).await;
        let pause = buyers[0].longest_pause();
        match fault {
            Fault::Kill => cluster.supervisor(old).start(),
            Fault::Pause => cluster.supervisor(old).thaw(),
            Fault::Switchover => Ok(()),
        }
        .expect("the supervisor runs");
        self.sells(round, &buyers).await;
        let whole = cluster.is_whole().await;
        whole.unwrap_or_else(|error| panic!("after a {fault:?}: {error:#}"));
        self.sells(round, &buyers).await;
        self.become_ready().await;
        let primary = cluster.primary().await.expect("there is a primary");
        let ledger = Ledger::at(&cluster.url_of(primary));
        for purchases in join_all(buyers.map(Buyers::stop)).await {
            purchases.assert_exact(&ledger).await;
        }
        Outage {
            fault,
            stopped: pause.length,
            with_primary: pause.end.saturating_duration_since(new_primary),
        }
    }
}

/// Returns when a node other than `old` commits.
async fn is_replaced(cluster: &impl Cluster, old: usize) -> Instant {
    let commits = async || {
        let others = (0..NODES).filter(|node| *node != old);
        let commit = join_all(others.map(|node| cluster.commits(node)));
        commit.await.contains(&true)
    };
    eventually("another node commits", REPLACED_WITHIN, commits).await;
    Instant::now()
}

/// Whether there is a primary besides `old`, which may not answer.
async fn has_other(cluster: &impl Cluster, old: usize) -> bool {
    let others = (0..NODES).filter(|node| *node != old);
    join_all(others.map(|node| cluster.is_primary(node)))
        .await
        .contains(&true)
}

/// Goal: each answer agrees with the ledger after each fault: an acknowledged sale is there once, a refused one is not,
/// and nothing is oversold. `/readyz` tells the truth.
async fn every_fault_is_survived(cluster: &impl Cluster, url: &str, name: &str) {
    let shop = Shop::open(url).await;
    let mut outages = Vec::new();
    for (round, fault) in faults().into_iter().enumerate() {
        let outage = shop.survives(cluster, fault, round).await;
        println!(
            "{name}: a {fault:?} stopped sales for {:.1?}, {:.1?} after a new primary commits",
            outage.stopped, outage.with_primary
        );
        assert!(outage.with_primary < in_time(SELLS_WITHIN), "{fault:?}");
        outages.push(outage);
    }
    for fault in [Fault::Kill, Fault::Pause, Fault::Switchover] {
        let of_kind = outages.iter().filter(|outage| outage.fault == fault);
        let (stopped, with_primary): (Vec<_>, Vec<_>) =
            of_kind.map(|it| (it.stopped, it.with_primary)).unzip();
        if stopped.is_empty() {
            continue;
        }
        println!(
            "figure: {name}, {} times {fault:?}: sales stop for at most {:.1?}, of which {:.1?} after a new primary commits",
            stopped.len(),
            stopped.iter().max().unwrap_or(&Duration::ZERO),
            with_primary.iter().max().unwrap_or(&Duration::ZERO),
        );
    }
    let audited = Process::run(
        &["audit", "--all", "--fail-on-drift"],
        &[("DATABASE_URL", url)],
    )
    .await;
    assert_eq!(audited.code, Some(0), "{}", audited.stdout);
}

/// Goal: a primary that is cut off from the others sells nothing more, although the replicas reach it, and nothing of its
/// attempts appears later.
///
/// Method: buyers go on all the time. The node is connected again when another one sells.
async fn primary_that_is_cut_off_sells_nothing(cluster: &impl Cluster, name: &str) {
    let shop = Shop::open(&cluster.url()).await;
    let buyers = shop.sell(0).await;
    shop.sells(0, &buyers).await;
    let old = cluster.primary().await.expect("there is a primary");
    buyers[0].watch();
    cluster.cut_off(old).await.expect("it can be cut off");
    // Answers that were on the way.
    sleep(ON_THE_WAY).await;
    let before = buyers.each_ref().map(Buyers::sales);
    sleep(ON_THE_WAY).await;
    assert!(!has_other(cluster, old).await, "it was replaced too soon");
    assert_eq!(buyers.each_ref().map(Buyers::sales), before);
    let replaced = is_replaced(cluster, old).await;
    shop.sells(0, &buyers).await;
    let pause = buyers[0].longest_pause();
    println!(
        "figure: {name}, primary cut off: sales stop for {:.1?}, of which {:.1?} after a new primary commits",
        pause.length,
        pause.end.saturating_duration_since(replaced)
    );
    cluster.connect_again(old).await.expect("it answers");
    cluster.is_whole().await.expect("the nodes find each other");
    shop.sells(0, &buyers).await;
    shop.become_ready().await;
    let primary = cluster.primary().await.expect("there is a primary");
    let ledger = Ledger::at(&cluster.url_of(primary));
    for purchases in join_all(buyers.map(Buyers::stop)).await {
        purchases.assert_exact(&ledger).await;
    }
}
