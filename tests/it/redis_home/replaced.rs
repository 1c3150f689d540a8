//! The stock is given to another Redis while a replica still works with the previous one.

use rstest::rstest;
use tokio::task::JoinSet;

use super::{applied_audit, assert_sold, command, create, fixture, journal_lengths, order, sell};
use crate::faults::until;
use crate::support::app::{Answer, send, try_send};
use crate::support::process::Process;
use crate::support::proxy::{Mode, Proxy};
use crate::support::rival::Raw;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};
use crate::support::services::{PrivateServer, fresh_database, fresh_redis};

const SKU: &str = "a";

/// As when another replica takes over with another Redis between the reading and the commit. It has
/// loaded the stock from SQL by then, and the entries would not be in what it has loaded.
#[rstest]
#[tokio::test]
async fn entries_of_a_replaced_redis_are_not_applied(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let fixture = fixture(backend).await;
    let redis = fixture.redis_url().unwrap();
    fixture.put(SKU, 10).await;
    sell(&fixture, SKU, 3).await;
    let mut rival = Raw::connect(backend, &fixture.url).await;
    rival.begin().await;
    let statements = [
        "UPDATE ledger SET id = id",
        "UPDATE redis_binding SET id = 'another'",
    ];
    for statement in statements {
        rival.run(statement).await.expect("it succeeds");
    }
    let take_over = async {
        until("a consumer has read the entries", async || {
            let leases: Vec<String> = command(redis, &["KEYS", "consumer:*"]).await;
            !leases.is_empty() || journal_lengths(redis).await.is_empty()
        })
        .await;
        rival.run("COMMIT").await.expect("it succeeds");
    };
    tokio::join!(fixture.settle(), take_over);
    assert_eq!(journal_lengths(redis).await, [3]);
    let sold = "SELECT kind FROM movement WHERE kind = 'deducted'";
    assert_eq!(rival.text(sold).await, None);
}

/// Why a replica does not notice that another one takes over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// It does not reach SQL.
    NoSql,
    /// It is stopped, with requests that it has received.
    Paused,
}

/// Goal: with `ON_REDIS_LOSS=reload`, no unit is sold in the old Redis after another replica has sold in the
/// new one.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_stops_to_sell_before_another_takes_over(
    #[values(Mysql, Postgres)] backend: Backend,
    #[values(Fault::NoSql, Fault::Paused)] fault: Fault,
) {
    let database = fresh_database(backend).await;
    let (first, second) = (fresh_redis().await, PrivateServer::redis(&[]).await);
    let (proxy, url) = Proxy::before(&database.url).await;
    let replica = async |database: &str, redis: &str| {
        let variables = [("REDIS_URL", redis), ("ON_REDIS_LOSS", "reload")];
        Process::lab(database, &variables).await
    };
    let seller = replica(&url, &first.url).await;
    create(&seller, SKU, 1_000).await;
    buy(&seller).await.ok();
    assert_sold(&applied_audit(&seller, SKU).await, 1);
    let other = replica(&database.url, second.url()).await;
    assert_eq!(buy(&other).await.status, 503);

    match fault {
        Fault::NoSql => proxy.set(Mode::Refuse).await,
        Fault::Paused => seller.stop().await,
    }
    let mut received = JoinSet::new();
    if fault == Fault::Paused {
        for _ in 0..8 {
            received.spawn(try_send(order(&seller, "redis-lua", SKU)));
        }
    }
    let mut sold_without_sql = 0;
    until("the other replica has taken over", async || {
        if fault == Fault::NoSql && buy(&seller).await.status == 200 {
            sold_without_sql += 1;
        }
        buy(&other).await.status == 200
    })
    .await;
    match fault {
        Fault::NoSql => assert!(sold_without_sql > 0, "it stopped at once"),
        Fault::Paused => seller.resume(),
    }
    received.spawn(try_send(order(&seller, "redis-lua", SKU)));
    for answer in received.join_all().await {
        let answer = answer.expect("the replica answers");
        assert_eq!(answer.status, 503, "{answer:?}");
    }
    assert_sold(&applied_audit(&other, SKU).await, 2);
}

async fn buy(replica: &Process) -> Answer {
    send(order(replica, "redis-lua", SKU)).await
}
