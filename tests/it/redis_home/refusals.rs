//! What a Redis says when it will not work: nothing happens, and everybody is told so.

use std::sync::Arc;

use redis::{Cmd, FromRedisValue};
use rstest::rstest;
use stocklock::store::{Attempt, InRedis, StoreError};
use tokio::task::JoinSet;

use super::loading::sell;
use crate::faults::until;
use crate::store_contract::fixture::{Fixture, SOON, deduction, redis_options};
use crate::support::services::Backend::Sqlite;
use crate::support::services::PrivateServer;

pub(super) struct Private {
    server: PrivateServer,
    pub(super) fixture: Fixture,
}

impl Private {
    pub(super) async fn start(arguments: &[&str]) -> Self {
        let server = PrivateServer::redis(arguments).await;
        let fixture = Fixture::new(Sqlite).await.with(redis_options(server.url()));
        fixture.put("a", 10).await;
        sell(&fixture, "a", 1).await;
        Self { server, fixture }
    }

    pub(super) async fn tell(&self, words: &[&str]) {
        self.ask::<()>(words).await;
    }

    async fn ask<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let client = redis::Client::open(self.server.url()).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let mut command: Cmd = redis::cmd(words[0]);
        let answer = command.arg(&words[1..]).query_async(&mut connection).await;
        answer.unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// How many connections it has, the one that asks included.
    async fn connections(&self) -> usize {
        let list: String = self.ask(&["CLIENT", "LIST"]).await;
        list.lines().count()
    }
}

#[rstest]
#[case::a_replica_since_the_failover(
    &["REPLICAOF", "127.0.0.1", "1"], &["REPLICAOF", "NO", "ONE"], "READONLY"
)]
#[case::out_of_memory(
    &["CONFIG", "SET", "maxmemory", "1"], &["CONFIG", "SET", "maxmemory", "0"], "OOM"
)]
#[case::too_few_replicas(
    &["CONFIG", "SET", "min-replicas-to-write", "1"],
    &["CONFIG", "SET", "min-replicas-to-write", "0"],
    "NOREPLICAS"
)]
#[case::a_right_that_is_missing(
    &["ACL", "SETUSER", "default", "-hset"], &["ACL", "SETUSER", "default", "+hset"], "CAN'T RUN THIS COMMAND"
)]
#[tokio::test]
async fn a_server_that_refuses_changes_nothing_and_serves_again(
    #[case] refuse: &[&str],
    #[case] serve: &[&str],
    #[case] code: &str,
) {
    let redis = Private::start(&[]).await;
    let store = &redis.fixture.store;
    redis.tell(refuse).await;
    for how in [InRedis::Script, InRedis::Watch] {
        let refused = store.deduct_in_redis(&deduction("a", 1), how).await;
        let Err(StoreError::Unavailable(why)) = &refused else {
            panic!("{how:?}: {refused:?}");
        };
        // The driver has words of its own for what refuses a transaction.
        let told = why.to_string().to_uppercase();
        assert!(
            told.contains(code) || told.contains("ABORT"),
            "{how:?}: {told}"
        );
    }
    redis.tell(serve).await;
    assert_eq!(redis.fixture.level("a").await.on_hand, 9);
    sell(&redis.fixture, "a", 9).await;
    assert!(redis.fixture.audit("a").await.consistent());
}

#[rstest]
#[tokio::test]
async fn a_server_that_cannot_save_is_unavailable(
    #[values(InRedis::Script, InRedis::Watch)] how: InRedis,
) {
    let redis = Private::start(&["--enable-protected-configs", "yes"]).await;
    // A directory where no file can be created.
    redis.tell(&["CONFIG", "SET", "dir", "/proc"]).await;
    redis.tell(&["CONFIG", "SET", "save", "3600 1"]).await;
    redis.fixture.put("b", 10_000).await;
    redis.tell(&["BGSAVE"]).await;
    let store = &redis.fixture.store;
    let mut sold = 0;
    let refused = async {
        loop {
            match store.deduct_in_redis(&deduction("b", 1), how).await {
                Ok(Attempt::Journaled { .. }) => sold += 1,
                refused => return refused,
            }
        }
    };
    let refused = tokio::time::timeout(SOON, refused).await;
    let Err(StoreError::Unavailable(why)) = refused.expect("it notices soon") else {
        panic!("it is not unavailable");
    };
    let told = why.to_string().to_uppercase();
    // The driver has words of its own for what refuses a transaction.
    assert!(told.contains("MISCONF") || told.contains("ABORT"), "{told}");
    assert_eq!(redis.fixture.level("b").await.on_hand, 10_000 - sold);
}

#[tokio::test]
async fn settings_of_redis_that_lose_sales_are_told() {
    let redis = Private::start(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let told = async || redis.fixture.store.unsafe_settings().await.unwrap();
    assert_eq!(told().await, [""; 0]);
    for (setting, value, word) in [
        ("appendfsync", "everysec", "set appendfsync always"),
        ("appendonly", "no", "set appendonly yes"),
    ] {
        redis.tell(&["CONFIG", "SET", setting, value]).await;
        let told = told().await;
        assert!(matches!(&told[..], [one] if one.contains(word)), "{told:?}");
    }
    // It is told beside what is wrong with the log.
    for (policy, lost) in [
        ("allkeys-lru", "journals"),
        ("volatile-ttl", "remembers of sales"),
    ] {
        redis
            .tell(&["CONFIG", "SET", "maxmemory-policy", policy])
            .await;
        let told = told().await;
        let [_, evicts] = &told[..] else {
            panic!("{told:?}")
        };
        for word in [policy, lost, "set maxmemory-policy noeviction"] {
            assert!(evicts.contains(word), "{evicts}");
        }
    }
}

/// After a failover, each of the connections for `WATCH` leads to the replica of now: they are given
/// up together, and not one by one at the cost of a refusal each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_connection_that_leads_to_a_replica_speaks_for_all() {
    let redis = Private::start(&[]).await;
    redis.fixture.put("b", 1_000).await;
    let mut buyers = JoinSet::new();
    for _ in 0..40 {
        let store = Arc::clone(&redis.fixture.store);
        buyers.spawn(async move {
            store
                .deduct_in_redis(&deduction("b", 1), InRedis::Watch)
                .await
        });
    }
    buyers.join_all().await;
    let before = redis.connections().await;
    assert!(before > 4, "{before} connections are no pool");
    redis.tell(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let sale = deduction("a", 1);
    let refused = redis
        .fixture
        .store
        .deduct_in_redis(&sale, InRedis::Watch)
        .await;
    assert!(
        matches!(refused, Err(StoreError::Unavailable(_))),
        "{refused:?}"
    );
    // That of the scripts, and the one that asks.
    until("they are closed", SOON, || async {
        redis.connections().await <= 2
    })
    .await;
}

#[tokio::test]
async fn a_cluster_is_told_to_be_none_of_ours() {
    let server = PrivateServer::redis(&["--cluster-enabled", "yes"]).await;
    let fixture = Fixture::new(Sqlite).await.with(redis_options(server.url()));
    let told = fixture.store.unsafe_settings().await.unwrap();
    let of_cluster = told.iter().filter(|one| one.contains("Cluster"));
    assert_eq!(of_cluster.count(), 1, "{told:?}");
}

#[tokio::test]
async fn a_server_that_does_not_know_the_scripts_is_sent_their_text() {
    let redis = Private::start(&[]).await;
    redis.tell(&["SCRIPT", "FLUSH"]).await;
    sell(&redis.fixture, "a", 2).await;
    assert!(redis.fixture.audit("a").await.consistent());
}

#[tokio::test]
async fn a_server_that_was_killed_is_unavailable_until_it_is_back() {
    let redis = Private::start(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    sell(&redis.fixture, "a", 2).await;
    for how in [InRedis::Script, InRedis::Watch] {
        let sold = redis
            .fixture
            .store
            .deduct_in_redis(&deduction("a", 1), how)
            .await;
        assert!(matches!(sold, Ok(Attempt::Journaled { .. })), "{sold:?}");
    }
    redis.server.kill9();
    for how in [InRedis::Script, InRedis::Watch] {
        // The first may still find the connection that has died.
        for _ in 0..2 {
            let refused = redis
                .fixture
                .store
                .deduct_in_redis(&deduction("a", 1), how)
                .await;
            let told = matches!(
                refused,
                Err(StoreError::Unavailable(_)
                    | StoreError::ConnectionLost(_)
                    | StoreError::OutcomeUnknown(_))
            );
            assert!(told, "{refused:?}");
        }
    }
    redis.server.restart().await;
    assert_eq!(redis.fixture.level("a").await.on_hand, 5);
    sell(&redis.fixture, "a", 5).await;
    let audit = redis.fixture.audit("a").await;
    assert_eq!((audit.sold, audit.consistent()), (10, true), "{audit:?}");
}
