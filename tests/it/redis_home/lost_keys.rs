//! Redis loses everything after SQL has the sales: a retry gets its first answer, although no unit is
//! left. It loses everything while SQL records the sales: no unit is sold twice.

use std::time::Duration;

use rstest::rstest;
use serde_json::json;
use stocklock::stock::{OperationFilter, OperationId, OperationStatus};
use tokio::time::timeout;

use super::{applied_audit, assert_sold, command, create, fixture, flush, order, run, sell};
use crate::faults::session::lock_is_waited_for;
use crate::faults::{KEY, send, until};
use crate::store_contract::fixture::Raw;
use crate::support::app::TestApp;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};
use crate::support::services::{fresh_database, fresh_redis};

/// What takes the last unit.
enum Change {
    Sale(&'static str),
    Adjustment,
}

/// Goal: a retry is not refused because its own first attempt took the last unit.
#[rstest]
#[case(Change::Sale("redis-lua"))]
#[case(Change::Sale("redis-watch"))]
#[case(Change::Sale("redis-lock"))]
#[case(Change::Sale("local-mutex"))]
#[case(Change::Sale("no-lock"))]
#[case(Change::Adjustment)]
#[tokio::test]
async fn retry_after_a_loss_is_not_refused_as_sold_out(#[case] change: Change) {
    let redis = fresh_redis().await;
    let app = TestApp::with_flags(Sqlite, 1, &["--redis-url", &redis.url]).await;
    create(&app, "a", 1).await;
    let request = |key| {
        let request = match change {
            Change::Sale(strategy) => app.deduct(0, strategy, &json!({"sku": "a"})),
            Change::Adjustment => app.adjust(0, "a", &json!({"delta": -1, "reason": "x"})),
        };
        send(request.header(KEY, key))
    };
    let first = request("k").await;
    assert_eq!((first.status, first.replayed), (200, false), "{first:?}");
    applied_audit(&app, "a").await;
    command::<()>(&redis.url, &["FLUSHDB"]).await;

    let retried = request("k").await;
    assert_eq!(
        (retried.status, retried.replayed),
        (200, true),
        "{retried:?}"
    );
    assert_eq!(retried.id, first.id);
    let refused = request("other").await;
    assert_eq!(refused.status_and_code(), (409, "insufficient-stock"));
    let audit = applied_audit(&app, "a").await;
    assert_eq!(audit["on_hand"], 0, "{audit}");
    if let Change::Sale(_) = change {
        assert_sold(&audit, 1);
    }
    app.stop().await;
}

/// A transaction with sales waits for a lock while Redis loses them. Their units are not on sale again.
#[rstest]
#[tokio::test]
async fn sales_that_sql_records_during_a_loss_are_subtracted(
    #[values(Mysql, Postgres)] backend: Backend,
) {
    let (database, redis) = (fresh_database(backend).await, fresh_redis().await);
    let app = TestApp::on(&database.url, 1, &["--redis-url", &redis.url]).await;
    create(&app, "a", 10).await;
    send(order(&app, "redis-lua", "a")).await.ok();
    applied_audit(&app, "a").await;
    let mut other = Raw::connect(backend, &database.url).await;
    other.run("BEGIN").await.unwrap();
    let lock = "SELECT on_hand FROM stock WHERE sku = 'a' FOR UPDATE";
    other.run(lock).await.unwrap();
    for _ in 0..3 {
        send(order(&app, "redis-lua", "a")).await.ok();
    }
    lock_is_waited_for(backend, &database.url).await;
    command::<()>(&redis.url, &["FLUSHDB"]).await;
    // Loads the level, or waits until it may be loaded.
    let sale = send(order(&app, "redis-lua", "a"));
    let _ = timeout(Duration::from_millis(500), sale).await;
    other.run("ROLLBACK").await.unwrap();

    until("the SKU is sold out", async || {
        let answer = send(order(&app, "redis-lua", "a")).await;
        answer.status_and_code() == (409, "insufficient-stock")
    })
    .await;
    let audit = applied_audit(&app, "a").await;
    assert_eq!(audit["on_hand"], 0, "{audit}");
    assert_sold(&audit, 10);
    app.stop().await;
}

/// A consumer may still be recording an operation of a journal that Redis has lost.
#[tokio::test]
async fn operation_is_pending_until_redis_is_bound_again() {
    let fixture = fixture(Sqlite).await;
    let of = OperationFilter::Id(OperationId::mint());
    let status = async || {
        let found = fixture.store.operations(&of, Some(0)).await;
        found.expect("the servers answer").0
    };
    assert_eq!(status().await, OperationStatus::NotRecorded);
    fixture.put("a", 10).await;
    sell(&fixture, "a", 1).await;
    assert_eq!(status().await, OperationStatus::NotRecorded);
    flush(&fixture).await;
    assert_eq!(status().await, OperationStatus::Pending);
    fixture.store.confirm_redis(0).await.expect("it is bound");
    assert_eq!(status().await, OperationStatus::NotRecorded);
}

/// A replica sent the key when the ledger was bound. The message arrives after Redis has lost its data. Then
/// SQL refuses what was sold before.
#[tokio::test]
async fn key_that_was_written_late_is_replaced() {
    let fixture = fixture(Sqlite).await;
    fixture.put("a", 10).await;
    sell(&fixture, "a", 1).await;
    let seen = fixture.store.confirm_redis(0).await.expect("it is bound");
    fixture
        .store
        .confirm_redis(seen)
        .await
        .expect("it is bound");
    let key = fixture.key("binding:*").await;
    let value: String = run(&fixture, &["GET", &key]).await;
    let (id, _) = value.split_once(' ').expect("an id and a beat");
    flush(&fixture).await;
    run::<()>(&fixture, &["SET", &key, &format!("{id} 0")]).await;

    sell(&fixture, "a", 1).await;
    let replaced: String = run(&fixture, &["GET", &key]).await;
    assert!(!replaced.starts_with(id), "{value}, then {replaced}");
}
