//! A Redis that refuses to write, as the store sees it: nothing changes, and the error says why.

use std::sync::Arc;

use reqwest::Url;
use rstest::rstest;
use stocklock::ports::{AttemptOutcome, DeductionStore as _, RedisMethod, StoreError};
use stocklock_testkit::assert_matches;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{assert_exact, command, deduct, deduct_until_decided, line, sell};
use crate::faults::until;
use crate::store_contract::fixture::{Fixture, SOON, assert_deducted, deduction, redis_options};
use crate::support::services::Backend::Sqlite;
use crate::support::services::PrivateServer;

/// A Redis of one test and a store on it, with a SKU `a` that has 9 of 10 units left.
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

    pub(super) async fn run(&self, command: &str) {
        line(self.server.url(), command).await;
    }

    /// How many connections the server has, including the one that asks.
    async fn connections(&self) -> usize {
        let list: String = command(self.server.url(), &["CLIENT", "LIST"]).await;
        list.lines().count()
    }

    /// The warnings of the store about the server's settings.
    async fn warnings(&self) -> Vec<String> {
        self.fixture.store.unsafe_settings().await.unwrap()
    }
}

/// The text of an error which says that nothing was changed.
#[track_caller]
fn reason(refused: Result<AttemptOutcome, StoreError>) -> String {
    match refused {
        Err(StoreError::Unavailable(_, reason)) => reason.to_string().to_uppercase(),
        other => panic!("{other:?}"),
    }
}

/// The driver replaces the server's reason for refusing a transaction by this.
const ABORTED: &str = "ABORT";

#[rstest]
#[case::replica_since_failover("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", "READONLY")]
#[case::out_of_memory("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0", "OOM")]
#[case::too_few_replicas(
    "CONFIG SET min-replicas-to-write 1",
    "CONFIG SET min-replicas-to-write 0",
    "NOREPLICAS"
)]
#[case::missing_permission(
    "ACL SETUSER default -hset",
    "ACL SETUSER default +hset",
    "CAN'T RUN THIS COMMAND"
)]
#[tokio::test]
async fn server_that_refuses_writes_changes_nothing(
    #[case] refuse: &str,
    #[case] accept: &str,
    #[case] code: &str,
) {
    let redis = Private::start(&[]).await;
    let fixture = &redis.fixture;
    let earlier = deduction("a", 1);
    let sold = fixture.store.deduct_in_redis(&earlier, RedisMethod::Script);
    assert_deducted(&sold.await);
    redis.run(refuse).await;
    for how in [RedisMethod::Script, RedisMethod::Watch] {
        let again = fixture.store.deduct_in_redis(&earlier, how).await;
        assert_matches!(again, Ok(AttemptOutcome::Duplicate));
        let reason = reason(deduct(fixture, "a", how).await);
        let aborted = how == RedisMethod::Watch && reason.contains(ABORTED);
        assert!(reason.contains(code) || aborted, "{how:?}: {reason}");
    }
    redis.run(accept).await;
    assert_eq!(fixture.level("a").await.on_hand, 8);
    sell(fixture, "a", 8).await;
    assert!(fixture.audit("a").await.consistent());
}

#[rstest]
#[tokio::test]
async fn server_that_cannot_save_is_unavailable(
    #[values(RedisMethod::Script, RedisMethod::Watch)] how: RedisMethod,
) {
    let redis = Private::start(&["--enable-protected-configs", "yes"]).await;
    let fixture = &redis.fixture;
    // A directory in which no file can be created.
    redis.run("CONFIG SET dir /proc").await;
    redis.run("CONFIG SET save 3600_1").await;
    fixture.put("b", 10_000).await;
    redis.run("BGSAVE").await;
    let mut sold = 0;
    let sell_until_refused = async {
        loop {
            match deduct(fixture, "b", how).await {
                Ok(AttemptOutcome::Deducted { .. }) => sold += 1,
                refused => return reason(refused),
            }
        }
    };
    let reason = timeout(SOON, sell_until_refused).await;
    let reason = reason.expect("the save fails soon");
    assert!(reason.contains("MISCONF"), "{reason}");
    assert_eq!(fixture.level("b").await.on_hand, 10_000 - sold);
}

#[tokio::test]
async fn settings_that_can_lose_sales_are_warned_of() {
    let persistent = ["--appendonly", "yes", "--appendfsync", "always"];
    let flags = [&persistent[..], &["--lazyfree-lazy-expire", "yes"]].concat();
    let redis = Private::start(&flags).await;
    assert_eq!(redis.warnings().await, [""; 0]);
    for (setting, advice) in [
        ("lazyfree-lazy-expire no", "set lazyfree-lazy-expire yes"),
        ("appendfsync everysec", "set appendfsync always"),
        ("appendonly no", "set appendonly yes"),
    ] {
        redis.run(&format!("CONFIG SET {setting}")).await;
        let warnings = redis.warnings().await;
        let [warning] = &warnings[..] else {
            panic!("{warnings:?}")
        };
        assert!(warning.contains(advice), "{warning}");
        redis.run("CONFIG SET lazyfree-lazy-expire yes").await;
    }
    // In addition to the warning about `appendonly`.
    for (policy, lost) in [
        ("allkeys-lru", "journals"),
        ("volatile-ttl", "dedup entries"),
    ] {
        redis
            .run(&format!("CONFIG SET maxmemory-policy {policy}"))
            .await;
        let warnings = redis.warnings().await;
        let [_, warning] = &warnings[..] else {
            panic!("{warnings:?}")
        };
        for word in [policy, lost, "set maxmemory-policy noeviction"] {
            assert!(warning.contains(word), "{warning}");
        }
    }
}

/// Goal: a failover loses no more sales than the operator has accepted.
#[tokio::test]
async fn primary_that_would_sell_without_its_replica_is_warned_of() {
    let persistent = ["--appendonly", "yes", "--appendfsync", "always"];
    let fast = [
        "--lazyfree-lazy-expire",
        "yes",
        "--repl-diskless-sync-delay",
        "0",
    ];
    let flags = [persistent, fast].concat();
    let redis = Private::start(&flags).await;
    let replica = PrivateServer::redis(&[]).await;
    let port = Url::parse(redis.server.url())
        .expect("a URL")
        .port()
        .expect("a port");
    line(replica.url(), &format!("REPLICAOF 127.0.0.1 {port}")).await;
    let is_warned_of = async |advice: &str| {
        let warnings = redis.warnings().await;
        warnings.iter().any(|warning| warning.contains(advice))
    };
    until("the replica is connected", async || {
        is_warned_of("set min-replicas-to-write 1").await
    })
    .await;
    redis.run("CONFIG SET min-replicas-to-write 1").await;
    assert_eq!(redis.warnings().await, [""; 0]);
    until("the replica is up to date", async || {
        deduct(&redis.fixture, "a", RedisMethod::Script)
            .await
            .is_ok()
    })
    .await;

    replica.kill9();

    until("the replica is missed", async || {
        is_warned_of("start the replicas").await
    })
    .await;
    until("sales are refused", async || {
        deduct(&redis.fixture, "a", RedisMethod::Script)
            .await
            .is_err()
    })
    .await;
    for how in [RedisMethod::Script, RedisMethod::Watch] {
        let reason = reason(deduct(&redis.fixture, "a", how).await);
        assert!(
            reason.contains("NOREPLICAS") || reason.contains(ABORTED),
            "{reason}"
        );
    }
}

/// After a failover, every pooled connection for `WATCH` may lead to the replica of now. They are
/// closed together; otherwise each of them would cost one refusal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_only_error_closes_all_pooled_connections() {
    let redis = Private::start(&[]).await;
    redis.fixture.put("b", 1_000).await;
    let buyers: JoinSet<_> = (0..40)
        .map(|_| {
            let store = Arc::clone(&redis.fixture.store);
            deduct_until_decided(store, "b".into(), RedisMethod::Watch)
        })
        .collect();
    buyers.join_all().await;
    let before = redis.connections().await;
    assert!(before > 4, "{before} connections are no pool");
    redis.run("REPLICAOF 127.0.0.1 1").await;
    reason(deduct(&redis.fixture, "a", RedisMethod::Watch).await);
    // The connection for scripts stays, and the one that asks.
    until("the pooled connections are closed", async || {
        redis.connections().await <= 2
    })
    .await;
}

#[tokio::test]
async fn url_of_one_node_of_a_cluster_is_warned_of() {
    let server = PrivateServer::redis(&["--cluster-enabled", "yes"]).await;
    let fixture = Fixture::new(Sqlite).await.with(redis_options(server.url()));
    let warnings = fixture.store.unsafe_settings().await.unwrap();
    let of_cluster = warnings
        .iter()
        .filter(|one| one.contains("redis+cluster://"));
    assert_eq!(of_cluster.count(), 1, "{warnings:?}");
}

#[tokio::test]
async fn server_that_has_lost_the_scripts_gets_their_text() {
    let redis = Private::start(&[]).await;
    redis.run("SCRIPT FLUSH").await;
    sell(&redis.fixture, "a", 2).await;
    assert!(redis.fixture.audit("a").await.consistent());
}

#[tokio::test]
async fn killed_server_is_unavailable_until_it_is_restarted() {
    let redis = Private::start(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    sell(&redis.fixture, "a", 2).await;
    for how in [RedisMethod::Script, RedisMethod::Watch] {
        assert_deducted(&deduct(&redis.fixture, "a", how).await);
    }
    redis.server.kill9();
    for how in [RedisMethod::Script, RedisMethod::Watch] {
        // The first one may still use the connection that was open.
        for _ in 0..2 {
            let refused = deduct(&redis.fixture, "a", how).await;
            assert_matches!(
                refused,
                Err(StoreError::Unavailable(..)
                    | StoreError::ConnectionLost(..)
                    | StoreError::OutcomeUnknown(..))
            );
        }
    }
    redis.server.restart().await;
    assert_eq!(redis.fixture.level("a").await.on_hand, 5);
    sell(&redis.fixture, "a", 5).await;
    assert_exact(&redis.fixture, "a", 10, 0).await;
}
