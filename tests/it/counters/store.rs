//! Each call of the counters, on one Redis.

use std::sync::Arc;
use std::time::Duration;

use redis::FromRedisValue;
use rstest::rstest;
use stocklock::ports::CounterAnswer::{self, Admitted, Conflict, Missing, Refused};
use stocklock::ports::CounterMethod::{self, GetSet, Script, Watch};
use stocklock::ports::{CounterError, CounterStore as _};
use stocklock::stock::{Sku, Warehouse};
use stocklock::store::{RedisCounters, RedisOptions, migrate};
use tokio::task::JoinSet;

use super::{SKU, key_in, open};
use crate::faults::{SOON, until};
use crate::support::redis::command;
use crate::support::services::Backend::Sqlite;
use crate::support::services::{TestDatabase, TestRedis, fresh_database, fresh_redis};

type Result<T> = std::result::Result<T, CounterError>;

/// How long a counter lives, in milliseconds.
const LIFE: i64 = 500;

/// The counter of [`SKU`] in a fresh ledger.
pub(super) struct Subject {
    url: String,
    counters: RedisCounters,
    key: String,
    _redis: Option<TestRedis>,
    _database: TestDatabase,
}

impl Subject {
    /// In an empty Redis, which may be busy.
    async fn fresh() -> Self {
        let redis = fresh_redis().await;
        let subject = Self::with_limit(&redis.url, SOON, 8).await;
        Self {
            _redis: Some(redis),
            ..subject
        }
    }

    /// In the Redis of this URL, with a wait limit and a number of connections for `WATCH`.
    pub(super) async fn with_limit(url: &str, wait_limit: Duration, pool_size: u32) -> Self {
        let database = fresh_database(Sqlite).await;
        migrate(&database.url).await.expect("the database is empty");
        let options = RedisOptions {
            url: url.into(),
            wait_limit,
            pool_size,
        };
        Self {
            url: url.to_owned(),
            counters: RedisCounters::open(&options, open(&database.url))
                .expect("the URL of a Redis"),
            key: key_in(&database.url).await,
            _redis: None,
            _database: database,
        }
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    pub(super) async fn take(&self, units: i64, method: CounterMethod) -> Result<CounterAnswer> {
        self.counters.take(&sku(), &main(), units, method).await
    }

    /// Takes a unit, again after each conflict. Returns all answers.
    async fn take_until_decided(self: Arc<Self>, method: CounterMethod) -> Vec<CounterAnswer> {
        let mut answers = Vec::new();
        while answers.is_empty() || answers.ends_with(&[Conflict]) {
            answers.push(self.take(1, method).await.unwrap());
        }
        answers
    }

    /// Loads the counter as if the level was read now.
    pub(super) async fn load(&self, available: i64) -> Result<()> {
        self.load_at(available, self.now().await?).await
    }

    async fn now(&self) -> Result<i64> {
        self.counters.now(&sku(), &main()).await
    }

    async fn load_at(&self, available: i64, read_at: i64) -> Result<()> {
        let (sku, warehouse) = (sku(), main());
        let loading = self.counters.load(&sku, &warehouse, available, read_at);
        loading.await
    }

    pub(super) async fn give_back(&self, units: i64) {
        self.counters.give_back(&sku(), &main(), units).await;
    }

    /// Runs a command on the counter's key without the subject.
    async fn ask<T: FromRedisValue>(&self, name: &str, arguments: &[&str]) -> T {
        command(&self.url, &[&[name, &self.key], arguments].concat()).await
    }

    /// The units in the key, and when it expires.
    async fn read(&self) -> (Option<i64>, i64) {
        let script = "return {redis.call('GET', KEYS[1]), redis.call('PEXPIRETIME', KEYS[1])}";
        command(&self.url, &["EVAL", script, "1", &self.key]).await
    }
}

fn sku() -> Sku {
    Sku::parse(SKU).expect("the name of a SKU")
}

fn main() -> Warehouse {
    Warehouse::default()
}

#[rstest]
#[tokio::test]
async fn counter_expires_half_a_second_after_the_read(
    #[values(GetSet, Watch, Script)] method: CounterMethod,
) {
    let subject = Subject::fresh().await;
    // On a busy machine the counter may expire before the last call.
    until("all calls find the counter", async || {
        let read_at = subject.now().await.unwrap();
        subject.load_at(10, read_at).await.unwrap();
        let taken = subject.take(3, method).await.unwrap();
        subject.give_back(2).await;
        subject.load_at(99, read_at).await.unwrap();
        let refused = subject.take(10, method).await.unwrap();
        let (units, expires) = subject.read().await;
        if units.is_some() {
            let expected = (Admitted { left: 7 }, Refused { available: 9 });
            assert_eq!((taken, refused), expected);
            assert_eq!((units, expires), (Some(9), read_at + LIFE));
        }
        units.is_some()
    })
    .await;
}

#[tokio::test]
async fn level_that_was_read_too_long_ago_is_not_loaded() {
    let subject = Subject::fresh().await;
    let read_at = subject.now().await.unwrap() - LIFE - 1;
    subject.load_at(5, read_at).await.unwrap();
    for method in [GetSet, Watch, Script] {
        assert_eq!(subject.take(1, method).await.unwrap(), Missing);
    }
    assert_eq!(subject.read().await, (None, -2));
}

#[tokio::test]
async fn units_that_come_back_create_no_counter() {
    let subject = Subject::fresh().await;
    subject.give_back(1).await;
    assert_eq!(subject.read().await, (None, -2));
}

/// The clock was set back, or another program wrote the key.
#[rstest]
#[case::too_long(&["PX", "60000"])]
#[case::unlimited(&[])]
#[tokio::test]
async fn counter_that_lives_too_long_is_replaced(#[case] life: &[&str]) {
    let subject = Subject::fresh().await;
    let set = [&["3"], life].concat();
    for method in [GetSet, Watch, Script] {
        until("the new counter is found", async || {
            subject.ask::<()>("SET", &set).await;
            assert_eq!(subject.take(1, method).await.unwrap(), Missing);
            assert_eq!(subject.ask::<String>("GET", &[]).await, "3");
            subject.load(7).await.unwrap();
            let life: i64 = subject.ask("PTTL", &[]).await;
            assert!(life == -2 || (0..=LIFE).contains(&life), "{life}");
            match subject.take(1, method).await.unwrap() {
                Missing => false,
                answer => answer == Admitted { left: 6 } || panic!("{answer:?}"),
            }
        })
        .await;
    }
}

#[tokio::test]
async fn ledgers_that_share_a_redis_have_their_own_counters() {
    let one = Subject::fresh().await;
    let other = Subject::with_limit(&one.url, SOON, 8).await;
    until("the counter has not expired", async || {
        one.load(5).await.unwrap();
        assert_eq!(other.take(1, Script).await.unwrap(), Missing);
        one.take(1, Script).await.unwrap() == Admitted { left: 4 }
    })
    .await;
}

/// Loads `units`, and lets takers take one each, again after a conflict. Returns what was left after each
/// admission, and the number of conflicts; or nothing if the counter expired in between.
async fn race(
    subject: &Arc<Subject>,
    takers: usize,
    units: i64,
    method: CounterMethod,
) -> Option<(Vec<i64>, usize)> {
    subject.load(units).await.unwrap();
    let taker = |_| Arc::clone(subject).take_until_decided(method);
    let takers: JoinSet<_> = (0..takers).map(taker).collect();
    let (mut lefts, mut conflicts) = (Vec::new(), 0);
    for answer in takers.join_all().await.into_iter().flatten() {
        match answer {
            Admitted { left } => lefts.push(left),
            Refused { available } => assert_eq!(available, 0),
            Conflict => conflicts += 1,
            Missing => return None,
        }
    }
    lefts.sort_unstable();
    Some((lefts, conflicts))
}

/// As many as there are units, each once.
#[rstest]
#[case::watch(Watch, 32, 20)]
#[case::script(Script, 64, 50)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn atomic_method_admits_exactly_the_units(
    #[case] method: CounterMethod,
    #[case] takers: usize,
    #[case] units: i64,
) {
    let subject = Arc::new(Subject::fresh().await);
    until("a race ends before the counter expires", async || {
        let Some((lefts, conflicts)) = race(&subject, takers, units, method).await else {
            return false;
        };
        assert_eq!(lefts, (0..units).collect::<Vec<_>>());
        assert!(conflicts == 0 || method == Watch, "{conflicts} conflicts");
        conflicts > 0 || method == Script
    })
    .await;
}

/// The test above can notice that units are admitted twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn get_and_set_admit_the_same_unit_twice() {
    let subject = Arc::new(Subject::fresh().await);
    until("a unit is admitted twice", async || {
        let lefts = race(&subject, 64, 50, GetSet).await.unwrap_or_default().0;
        lefts.windows(2).any(|pair| pair[0] == pair[1])
    })
    .await;
}
