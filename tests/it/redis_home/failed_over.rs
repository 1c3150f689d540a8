//! Another Redis becomes the primary, and has not all writes: what SQL has is not sold again.

use rstest::rstest;
use stocklock::ports::{
    AttemptOutcome, ChangeOutcome, Condition, DeductionStore as _, LevelStore as _, RedisMethod,
};
use stocklock::stock::{LevelChange, Precondition, Revision};

use super::bound::write;
use super::copied::beat;
use super::{assert_deducted, assert_exact, command, deduct, sell};
use crate::faults::session::lock_is_waited_for;
use crate::faults::until;
use crate::store_contract::fixture::{
    Fixture, REDIS, Raw, deduction_with_key, level_change, redis_options,
};
use crate::support::proxy::Proxy;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};
use crate::support::services::PrivateServer;

const SKU: &str = "a";
const NEIGHBOUR: &str = "b";
/// Without it, a primary waits five seconds before it sends its data.
const AT_ONCE: [&str; 2] = ["--repl-diskless-sync-delay", "0"];

async fn fixture(backend: Backend, redis: &PrivateServer) -> Fixture {
    let fixture = Fixture::new(backend).await;
    fixture.with(redis_options(redis.url()))
}

/// Makes a server a replica, until it has the data of the primary.
async fn replicate(replica: &PrivateServer, primary: &PrivateServer) {
    let port = primary.port().to_string();
    command::<()>(replica.url(), &["REPLICAOF", "127.0.0.1", &port]).await;
    until("the replica has the data", async || {
        let info: String = command(replica.url(), &["INFO", "replication"]).await;
        info.contains("master_link_status:up")
    })
    .await;
}

async fn promote(replica: &PrivateServer) {
    command::<()>(replica.url(), &["REPLICAOF", "NO", "ONE"]).await;
}

async fn is_used(fixture: &Fixture) {
    until("the Redis is used", async || {
        fixture.store.confirm_redis(0).await.is_ok()
    })
    .await;
}

/// Sells one unit; `left` remain.
async fn sell_down_to(fixture: &Fixture, left: i64) {
    let sold = deduct(fixture, SKU, RedisMethod::Script).await;
    assert_eq!(sold.expect("no error"), REDIS.done(left));
}

/// Orders one unit, always with the same key.
async fn order(fixture: &Fixture) {
    let order = deduction_with_key(SKU, 1, "k");
    let sold = fixture.store.deduct_in_redis(&order, RedisMethod::Script);
    assert_deducted(&sold.await);
}

/// A server became a replica of another one, got its older data, and is the primary again, all in the
/// same run. The other one has the last beat, or not.
#[rstest]
#[tokio::test]
async fn first_primary_returns_with_older_data(#[values(false, true)] misses_a_beat: bool) {
    let first = PrivateServer::redis(&AT_ONCE).await;
    let second = PrivateServer::redis(&AT_ONCE).await;
    let fixture = fixture(Sqlite, &first).await;
    fixture.put(SKU, 10).await;
    sell(&fixture, SKU, 2).await;
    beat(&fixture.store).await;
    replicate(&second, &first).await;
    promote(&second).await;
    sell(&fixture, SKU, 3).await;
    fixture.settle().await;
    if misses_a_beat {
        beat(&fixture.store).await;
    }
    replicate(&first, &second).await;
    promote(&first).await;

    is_used(&fixture).await;
    sell_down_to(&fixture, 4).await;
    assert_exact(&fixture, SKU, 6, 4).await;
}

/// The replica takes over, sells, and gives way to the first server, which never became its replica. Both have
/// sold what the other one does not have, and SQL does not have the sales of the first. An order with a key was sold by
/// both. Then the replica takes over again.
#[rstest]
#[tokio::test]
async fn sales_of_two_primaries_are_merged(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
    #[values(false, true)] again: bool,
) {
    let first = PrivateServer::redis(&AT_ONCE).await;
    let second = PrivateServer::redis(&AT_ONCE).await;
    let (proxy, url) = Proxy::before(first.url()).await;
    let fixture = Fixture::new(backend).await.with(redis_options(&url));
    let takes_over = async |server: &PrivateServer| {
        proxy.lead_to(format!("127.0.0.1:{}", server.port())).await;
        is_used(&fixture).await;
    };
    for sku in [SKU, NEIGHBOUR] {
        fixture.put(sku, 100).await;
    }
    sell(&fixture, SKU, 2).await;
    fixture.settle().await;
    beat(&fixture.store).await;
    replicate(&second, &first).await;
    promote(&second).await;
    // More than are read at once.
    sell(&fixture, SKU, 40).await;
    sell(&fixture, NEIGHBOUR, 1).await;
    order(&fixture).await;
    let journals: Vec<String> = command(first.url(), &["KEYS", "journal:*"]).await;
    for journal in journals {
        // An entry of another program.
        command::<String>(first.url(), &["XADD", &journal, "*", "a", "b"]).await;
    }
    takes_over(&second).await;
    sell(&fixture, SKU, 4).await;
    order(&fixture).await;
    fixture.settle().await;

    takes_over(&first).await;
    sell_down_to(&fixture, 52).await;
    assert_exact(&fixture, SKU, 48, 52).await;
    if again {
        takes_over(&second).await;
        sell_down_to(&fixture, 51).await;
        assert_exact(&fixture, SKU, 49, 51).await;
    }
    assert_exact(&fixture, NEIGHBOUR, 1, 99).await;
}

/// A client and a writer have read a level whose last sales are lost everywhere. As many sales later, it has
/// the same units again.
#[tokio::test]
async fn state_that_was_read_before_a_failover_is_refused() {
    let redis = PrivateServer::redis(&[]).await;
    let fixture = fixture(Sqlite, &redis).await;
    fixture.put(SKU, 10).await;
    sell(&fixture, SKU, 2).await;
    fixture.settle().await;
    command::<()>(redis.url(), &["SAVE"]).await;
    sell(&fixture, SKU, 2).await;
    let read = fixture.level(SKU).await;
    redis.kill9();
    redis.restart().await;
    is_used(&fixture).await;
    sell(&fixture, SKU, 2).await;
    let now = fixture.level(SKU).await;
    assert_eq!((now.on_hand, read.on_hand), (6, 6));

    let write = fixture.write_back(&read, Condition::Version).await;
    assert_eq!(write.expect("no error"), AttemptOutcome::Conflict);
    let change = LevelChange {
        precondition: Some(Precondition::OneOf(vec![Revision::of(&[read])])),
        ..level_change(SKU, 20)
    };
    let changed = fixture.store.set_level(&change).await;
    assert_eq!(
        changed.expect("no error"),
        ChangeOutcome::PreconditionFailed
    );
    assert_exact(&fixture, SKU, 4, 6).await;
}

/// A consumer that had read entries of the earlier run commits them while another replica compares the
/// levels of the new run with SQL.
#[rstest]
#[tokio::test]
async fn entries_are_applied_during_the_comparison(#[values(Mysql, Postgres)] backend: Backend) {
    let redis = PrivateServer::redis(&[]).await;
    let fixture = fixture(backend, &redis).await;
    fixture.put(SKU, 10).await;
    sell(&fixture, SKU, 2).await;
    fixture.settle().await;
    command::<()>(redis.url(), &["SAVE"]).await;
    sell(&fixture, SKU, 3).await;
    let mut consumer = Raw::connect(backend, &fixture.url).await;
    consumer.begin().await;
    let share = match backend {
        Mysql => "SELECT id FROM ledger LOCK IN SHARE MODE",
        _ => "SELECT id FROM ledger FOR SHARE",
    };
    let apply = "UPDATE stock SET on_hand = on_hand - 3, version = version + 3";
    for statement in [share, apply] {
        consumer.run(statement).await.expect("it succeeds");
    }
    redis.kill9();
    redis.restart().await;

    let commit = async {
        lock_is_waited_for(backend, &fixture.url).await;
        consumer.run("COMMIT").await.expect("it succeeds");
    };
    tokio::join!(is_used(&fixture), commit);
    sell_down_to(&fixture, 4).await;
}

/// A replica ends between the two writes of the row.
#[tokio::test]
async fn comparison_is_ended_by_another_replica() {
    let redis = PrivateServer::redis(&[]).await;
    let fixture = fixture(Sqlite, &redis).await;
    fixture.put(SKU, 10).await;
    sell(&fixture, SKU, 5).await;
    fixture.settle().await;
    let interrupted = "UPDATE redis_binding SET run_id = 'comparing ' || run_id";
    write(&fixture, interrupted).await;
    let levels: Vec<String> = command(redis.url(), &["KEYS", "stock:*"]).await;
    let older = ["HSET", &levels[0], "units", "8", "version", "1"];
    command::<()>(redis.url(), &older).await;

    is_used(&fixture).await;
    sell_down_to(&fixture, 4).await;
    assert_exact(&fixture, SKU, 6, 4).await;
}
