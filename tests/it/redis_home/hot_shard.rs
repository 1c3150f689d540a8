//! A level is loaded from a slow database while the journal of its shard is busy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rstest::rstest;

use super::{flush, lose_level, sell};
use crate::store_contract::fixture::{Fixture, redis_options};
use crate::support::proxy::{Mode, Proxy};
use crate::support::services::Backend::Postgres;

/// Two SKUs of one shard.
const HOT: &str = "b";
const LOADED: &str = "1001";

/// A store on a database and a Redis, and a second one whose answers from the same database a test
/// can delay.
struct Pair {
    fixture: Fixture,
    slow: Arc<Fixture>,
    proxy: Proxy,
}

impl Pair {
    async fn start(on_hand: i64) -> Self {
        let fixture = super::fixture(Postgres).await;
        let (proxy, url) = Proxy::before(&fixture.url).await;
        let redis = redis_options(fixture.redis_url().expect("stock lives in Redis"));
        let slow = Fixture::at(Postgres, url).await.with(redis);
        fixture.put(LOADED, on_hand).await;
        // From now on the slow store knows the home of the SKU.
        slow.level(LOADED).await;
        Self {
            fixture,
            slow: Arc::new(slow),
            proxy,
        }
    }
}

/// Entries of another level that are applied during the load do not prevent it, however slow the
/// database is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn level_is_loaded_while_another_of_its_shard_sells() {
    let pair = Pair::start(10).await;
    pair.fixture.put(HOT, 1_000_000).await;
    lose_level(&pair.fixture, LOADED).await;
    pair.proxy.set(Mode::Delay(Duration::from_millis(50))).await;
    let loaded = AtomicBool::new(false);
    let sell_hot = async {
        let mut sold = 0;
        while !loaded.load(Ordering::SeqCst) {
            sell(&pair.fixture, HOT, 1).await;
            pair.fixture.settle().await;
            sold += 1;
        }
        sold
    };
    let load = async {
        let level = pair.slow.level(LOADED).await;
        loaded.store(true, Ordering::SeqCst);
        level
    };
    let (level, sold) = tokio::join!(load, sell_hot);
    assert_eq!(level.on_hand, 10);
    assert!(sold > 1, "the shard was not busy");
}

/// A store that has read SQL long ago must not load that level into Redis if the level was loaded,
/// sold and lost again since.
#[rstest]
#[case::only_the_level(false)]
#[case::everything(true)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn level_lost_again_during_its_load_is_not_older_than_sql(#[case] everything: bool) {
    // The proxy finds it in the answer of the database, in PostgreSQL's format.
    const ON_HAND: i64 = 7_654_321;
    let pair = Pair::start(ON_HAND).await;
    let lose = async || {
        if everything {
            flush(&pair.fixture).await;
        } else {
            lose_level(&pair.fixture, LOADED).await;
        }
    };
    lose().await;
    let answer = pair.proxy.hold_answer(&ON_HAND.to_be_bytes());
    let slow = Arc::clone(&pair.slow);
    let late = tokio::spawn(async move { slow.level(LOADED).await });
    answer.held().await;
    sell(&pair.fixture, LOADED, 3).await;
    pair.fixture.settle().await;
    lose().await;
    answer.let_go();
    let level = late.await.expect("the level is loaded");
    assert_eq!(level.on_hand, ON_HAND - 3);
}
