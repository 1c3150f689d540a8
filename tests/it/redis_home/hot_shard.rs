//! A level is loaded while its shard's journal is busy, and its mirror is read slowly.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use stocklock::stock::{StockLevel, Warehouse};

use super::loading::sell;
use crate::store_contract::fixture::{Fixture, name, redis_options};
use crate::support::proxy::{Mode, Proxy};
use crate::support::services::Backend::Postgres;

/// Two SKUs of one shard.
const HOT: &str = "b";
const LOADED: &str = "1001";

/// A store on a database and a Redis, and one on the same whose answers from the database a test
/// can delay.
struct Pair {
    fixture: Fixture,
    slow: Arc<Fixture>,
    proxy: Proxy,
}

impl Pair {
    async fn start(on_hand: i64) -> Self {
        let fixture = Fixture::in_redis(Postgres, |options| options).await;
        let (proxy, url) = Proxy::before(&fixture.url).await;
        let redis = redis_options(fixture.redis_url().expect("it has one"));
        let slow = Fixture::at(Postgres, url).await.with(redis);
        fixture.put(LOADED, on_hand).await;
        // Where it lives is known from now on.
        slow.level(LOADED).await;
        Self {
            fixture,
            slow: Arc::new(slow),
            proxy,
        }
    }

    async fn lose_level(&self) {
        let key = self.fixture.key(&format!("stock:*:{LOADED}:main")).await;
        self.fixture.redis::<()>(redis::cmd("DEL").arg(key)).await;
    }
}

/// Entries of another level that leave the journal do not keep one from being loaded, however slow
/// the database is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_level_is_loaded_while_another_of_its_shard_sells() {
    let pair = Pair::start(10).await;
    pair.fixture.put(HOT, 1_000_000).await;
    pair.lose_level().await;
    pair.proxy.set(Mode::Delay(Duration::from_millis(50))).await;
    let (loaded, sold) = (AtomicBool::new(false), AtomicI64::new(0));
    let selling = async {
        while !loaded.load(Ordering::SeqCst) {
            sell(&pair.fixture, HOT, 1).await;
            pair.fixture.settle().await;
            sold.fetch_add(1, Ordering::SeqCst);
        }
    };
    let loading = async {
        let level = pair
            .slow
            .store
            .level(&name(LOADED), &Warehouse::default())
            .await;
        loaded.store(true, Ordering::SeqCst);
        level
    };
    let (level, ()) = tokio::join!(loading, selling);
    assert_eq!(level.expect("no error").expect("it is there").on_hand, 10);
    assert!(sold.into_inner() > 1, "the shard was not busy");
}

/// Who read the mirror long ago must not load a level from it that was loaded, sold from, and lost
/// again meanwhile.
#[rstest::rstest]
#[case::the_level_alone(false)]
#[case::everything(true)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_level_that_is_lost_again_while_it_is_loaded_is_not_older_than_sql(
    #[case] everything: bool,
) {
    // Found in the mirror's answer, in the form in which the database sends it.
    const ON_HAND: i64 = 7_654_321;
    let pair = Pair::start(ON_HAND).await;
    pair.lose_level().await;
    if everything {
        pair.fixture.redis::<()>(&redis::cmd("FLUSHDB")).await;
    }
    let answer = pair.proxy.hold_answer(&ON_HAND.to_be_bytes());
    let slow = Arc::clone(&pair.slow);
    let late = tokio::spawn(async move { slow.level(LOADED).await });
    answer.held().await;
    sell(&pair.fixture, LOADED, 3).await;
    pair.fixture.settle().await;
    if everything {
        pair.fixture.redis::<()>(&redis::cmd("FLUSHDB")).await;
    } else {
        pair.lose_level().await;
    }
    answer.let_go();
    let level: StockLevel = late.await.expect("it is loaded");
    assert_eq!(level.on_hand, ON_HAND - 3);
}
