//! A slot of a Redis Cluster is left half moved: each of two masters has a part of its keys.
//!
//! No sale of its levels can have all keys that it needs, because a script names buckets of dedup entries that
//! do not exist. So each is refused, and changes nothing, until an operator ends the move or rolls it back.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use rstest::rstest;
use stocklock_testkit::run::rng;
use stocklock_testkit::servers::RedisCluster;

use super::cluster::LOGGED;
use super::{applied_audit, assert_sold, command, create, gauge, order};
use crate::faults::{Answer, KEY, send, until};
use crate::support::app::TestApp;
use crate::support::services::Backend;

const STRATEGIES: [&str; 3] = ["redis-lua", "redis-watch", "no-lock"];
/// The service's default deadline of a request.
const DEADLINE: Duration = Duration::from_secs(5);
const UNITS: i64 = 100;
/// In different shards, and none in that of the binding.
const SKUS: [&str; 4] = ["a", "1001", "1001-redis", "上海仓"];

/// Whether a key is that of a level.
fn is_level(key: &str) -> bool {
    key.starts_with("stock:")
}

/// A cluster, a replica of the service, and two levels that have sold one unit each.
struct Shop {
    cluster: RedisCluster,
    app: TestApp,
    /// The level whose slot is half moved, its slot, the master of it, and the one that gets it.
    half: &'static str,
    slot: u16,
    from: usize,
    to: usize,
    /// A level in another slot.
    whole: &'static str,
}

impl Shop {
    async fn open() -> Self {
        let cluster = RedisCluster::start(&LOGGED).await;
        let url = cluster.url();
        let app = TestApp::with_flags(Backend::Postgres, 1, &["--redis-url", &url]).await;
        for sku in SKUS {
            create(&app, sku, UNITS).await;
            send(order(&app, "redis-lua", sku).header(KEY, "first"))
                .await
                .ok();
            assert_sold(&applied_audit(&app, sku).await, 1);
        }
        // Two tags may have the same slot.
        let binding = slot_of(&cluster, "binding:*").await;
        let mut slots = BTreeMap::new();
        for sku in SKUS {
            slots.insert(slot_of(&cluster, &format!("stock:*:{sku}:*")).await, sku);
        }
        slots.remove(&binding);
        let (slot, half) = slots.pop_first().expect("a level");
        let (_, whole) = slots.pop_first().expect("another level");
        let from = cluster.master_of(slot).await;
        let mut others = cluster.masters().await;
        others.retain(|&master| master != from);
        let to = others[rng().usize(..others.len())];
        Self {
            cluster,
            app,
            half,
            slot,
            from,
            to,
            whole,
        }
    }

    /// Leaves the slot half moved: the level moves, or all other keys.
    async fn half_move(&self, moves_level: bool) {
        let chosen = |key: &str| is_level(key) == moves_level;
        self.cluster
            .half_move_slot(self.slot, self.to, chosen)
            .await;
    }

    async fn sell(&self, sku: &str, strategy: &str, key: &str) -> Answer {
        send(order(&self.app, strategy, sku).header(KEY, key)).await
    }

    /// Repeats a sale until it is made.
    async fn sell_until_made(&self, sku: &str, strategy: &str, key: &str) -> Answer {
        let mut last = None;
        until("the stock is sold", async || {
            let answer = self.sell(sku, strategy, key).await;
            let is_made = answer.status == 200;
            last = Some(answer);
            is_made
        })
        .await;
        last.expect("an answer")
    }

    /// The keys of the half moved slot, and their values, without leases and what is kept for readers, which may
    /// expire.
    async fn contents(&self) -> BTreeMap<String, Vec<u8>> {
        let mut contents = self.cluster.contents(self.slot).await;
        contents.retain(|key, _| !key.starts_with("consumer:") && !key.starts_with("cached:"));
        contents
    }
}

/// The slot of the only key that matches a pattern.
async fn slot_of(cluster: &RedisCluster, pattern: &str) -> u16 {
    for master in cluster.masters().await {
        let url = cluster.nodes()[master].url();
        let keys: Vec<String> = command(url, &["KEYS", pattern]).await;
        if let Some(key) = keys.first() {
            return cluster.slot_of(key).await;
        }
    }
    panic!("no master has {pattern}");
}

/// Goal: a sale in a half moved slot is refused in time and writes nothing, and the other shards sell on, and
/// their entries reach SQL. After the move, each refused attempt that is repeated sells once.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_moved_slot_refuses_and_others_sell(#[values(true, false)] moves_level: bool) {
    let shop = Shop::open().await;
    shop.half_move(moves_level).await;
    let before = shop.contents().await;
    let refused = STRATEGIES.map(async |strategy| shop.sell(shop.half, strategy, strategy).await);
    let others = async {
        for (sold, strategy) in (2..).zip(STRATEGIES) {
            shop.sell(shop.whole, strategy, strategy).await.ok();
            assert_sold(&applied_audit(&shop.app, shop.whole).await, sold);
        }
    };
    let (refused, ()) = tokio::join!(join_all(refused), others);
    for name in ["journal_waiting_movements", "journal_rejected_entries"] {
        assert_eq!(gauge(&shop.app, name).await, None, "{name}");
    }
    for (answer, strategy) in refused.iter().zip(STRATEGIES) {
        assert_eq!(answer.status, 503, "{strategy}: {answer:?}");
        assert!(answer.after < DEADLINE, "{strategy}: {answer:?}");
    }
    assert_eq!(shop.contents().await, before, "half written");

    shop.cluster.move_slot(shop.slot, shop.to).await;
    until("the gauge is there again", async || {
        gauge(&shop.app, "journal_waiting_movements")
            .await
            .is_some()
    })
    .await;
    for strategy in STRATEGIES {
        let made = shop.sell_until_made(shop.half, strategy, strategy).await;
        assert!(!made.replayed, "{made:?}");
        let again = shop.sell(shop.half, strategy, strategy).await;
        again.ok();
        assert!(again.replayed, "{again:?}");
    }
    for sku in [shop.half, shop.whole] {
        let audit = applied_audit(&shop.app, sku).await;
        assert_sold(&audit, 4);
        assert_eq!(audit["on_hand"], UNITS - 4, "{audit}");
    }
    shop.app.stop().await;
}

/// Goal: if a master of a half moved slot fails, nothing is sold until the move has ended: the new master does
/// not know of the move, and the level that it lacks is not lost.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn master_of_a_half_moved_slot_fails(
    #[values("source", "target")] fails: &str,
    #[values(true, false)] rolls_back: bool,
) {
    let shop = Shop::open().await;
    shop.half_move(true).await;
    let before = shop.contents().await;
    let (mut to, cluster) = (shop.to, &shop.cluster);
    if fails == "source" {
        cluster.replace(shop.from, true).await;
    } else {
        to = cluster.replace(to, true).await;
    }

    for strategy in STRATEGIES {
        let answer = shop.sell(shop.half, strategy, strategy).await;
        assert_eq!(answer.status, 503, "{strategy}: {answer:?}");
    }
    cluster.take_up_move(shop.slot, to).await;
    // All nodes answer, so only the binding refuses this.
    until("the service knows of the new master", async || {
        shop.sell(shop.whole, "redis-lua", "first").await.status == 503
    })
    .await;
    for sku in [shop.half, shop.whole] {
        let answers = STRATEGIES.map(async |strategy| shop.sell(sku, strategy, strategy).await);
        for answer in join_all(answers).await {
            assert_eq!(answer.status, 503, "{sku}: {answer:?}");
        }
    }
    assert_eq!(shop.contents().await, before, "changed");

    if rolls_back {
        cluster.roll_back_move(shop.slot, to).await;
    } else {
        cluster.move_slot(shop.slot, to).await;
    }
    for sku in [shop.half, shop.whole] {
        for strategy in STRATEGIES {
            shop.sell_until_made(sku, strategy, strategy).await;
        }
        let audit = applied_audit(&shop.app, sku).await;
        assert_sold(&audit, 4);
        assert_eq!(audit["on_hand"], UNITS - 4, "{audit}");
    }
    shop.app.stop().await;
}
