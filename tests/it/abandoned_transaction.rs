//! Abandoned transactions: sqlx 0.9.0 reuses a connection that is still inside a `BEGIN` whose
//! future was dropped (<https://github.com/transact-rs/sqlx/issues/4385>). A statement executed on
//! such a connection succeeds and is never committed.
//!
//! The first test shows this loss on a plain pool of sqlx. If it fails, sqlx has fixed the bug, and
//! the stores no longer need to roll back abandoned transactions. The others show that the stores
//! lose nothing and leave no transaction open.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use rstest::rstest;
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::SqlitePoolOptions;
use stocklock::lab::delay::DelayedServers;
use stocklock::ports::{AttemptOutcome, StoreError};
use stocklock::stock::{MovementKind, Warehouse};
use stocklock_testkit::assert_matches;
use tokio::time::timeout;

use crate::faults::session::Session;
use crate::store_contract::fixture::{Fixture, SOON, all_of, deduction, name, open};
use crate::support::distant;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

/// Drops `future` after `polls` polls that returned pending; returns whether it was dropped.
async fn abandon<T>(future: impl Future<Output = T>, polls: u32) -> bool {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|context| {
        if future.as_mut().poll(context).is_ready() {
            return Poll::Ready(false);
        }
        left -= 1;
        if left == 0 {
            Poll::Ready(true)
        } else {
            Poll::Pending
        }
    })
    .await
}

/// Asks until a connection is free. On MariaDB, a connection that was abandoned while a statement
/// was being prepared is closed, and the service notices that only after some time.
async fn once_free<T>(ask: impl AsyncFn() -> Result<T, StoreError>) -> T {
    let answer = async {
        loop {
            match ask().await {
                Err(StoreError::Exhausted | StoreError::Unavailable(..)) => {}
                answer => return answer.expect("no other error"),
            }
        }
    };
    timeout(SOON, answer)
        .await
        .expect("a connection is free soon")
}

/// A URL of the fixture's database at which a server answers with a delay, so that a future is
/// pending at least once for each answer.
async fn distant(fixture: &Fixture) -> (Option<DelayedServers>, String) {
    if fixture.backend == Sqlite {
        return (None, fixture.url.clone());
    }
    let (proxy, url) = distant::distant(&fixture.url, Duration::from_millis(2)).await;
    (Some(proxy), url)
}

/// Abandons a `begin`, then updates a level on the same connection. Evaluates to whether the
/// `begin` was abandoned, and how many rows were updated.
macro_rules! update_after_an_abandoned_begin {
    ($options:expr, $url:expr) => {{
        let pool = $options
            .max_connections(1)
            // The test would be sent first, and the `begin` not at all.
            .test_before_acquire(false)
            .connect($url)
            .await
            .expect("a connection");
        let abandoned = abandon(pool.begin(), 1).await;
        let updated = sqlx::query("UPDATE stock SET on_hand = on_hand - 1 WHERE sku = 'a'")
            .execute(&pool)
            .await
            .expect("acknowledged");
        pool.close().await;
        (abandoned, updated.rows_affected())
    }};
}

#[rstest]
#[tokio::test]
async fn plain_pool_of_sqlx_loses_acknowledged_updates(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let fixture = Fixture::with(backend, "a", 100).await;
    let (_proxy, url) = distant(&fixture).await;
    let mut lost = 0;
    for _ in 0..10 {
        let before = fixture.level("a").await.on_hand;
        let (abandoned, updated) = match backend {
            Sqlite => update_after_an_abandoned_begin!(SqlitePoolOptions::new(), &url),
            Mysql => update_after_an_abandoned_begin!(MySqlPoolOptions::new(), &url),
            Postgres => update_after_an_abandoned_begin!(PgPoolOptions::new(), &url),
        };
        let is_abandoned = abandoned || backend == Sqlite;
        assert!(is_abandoned, "the server answered too soon");
        assert_eq!(updated, 1);
        lost += 1 - (before - fixture.level("a").await.on_hand);
    }
    // The driver for SQLite rolls back a transaction whose `begin` was dropped.
    assert_eq!(lost, if backend == Sqlite { 0 } else { 10 });
}

#[rstest]
#[tokio::test]
async fn stores_keep_acknowledged_sales_after_abandoned_requests(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    const REQUESTS: u32 = 100;
    let fixture = Fixture::with(backend, "a", 1000).await;
    // One connection, so that each request gets the one that was abandoned before.
    let (_proxy, url) = distant(&fixture).await;
    let store = open(&url, 1);
    let mut acknowledged = BTreeSet::new();
    let mut abandoned = BTreeSet::new();
    for request in 0..REQUESTS {
        let dropped = deduction("a", 1);
        // Dropped at each step in turn. On a server the steps are the wait for the connection and
        // one statement.
        let polls = request % 3 + 1;
        if abandon(store.deduct(&dropped), polls).await {
            abandoned.insert(dropped.id);
        } else {
            acknowledged.insert(dropped.id);
        }
        let deduction = deduction("a", 1);
        let attempt = once_free(async || store.deduct(&deduction).await).await;
        assert_matches!(attempt, AttemptOutcome::Deducted { .. });
        acknowledged.insert(deduction.id);
    }
    store.close().await;

    assert!(abandoned.len() > 30, "{} abandoned", abandoned.len());
    // The fixture has other connections, so it reads only what was committed.
    let sales = fixture.movements("a").await.into_iter();
    let sales = sales.filter(|sale| sale.kind == MovementKind::Deducted);
    let recorded: BTreeSet<_> = sales.map(|sale| sale.operation).collect();
    let lost = acknowledged.difference(&recorded).count();
    assert_eq!(lost, 0, "of {} acknowledged sales", acknowledged.len());
    // An abandoned deduction may have happened, but only completely.
    let known = acknowledged.union(&abandoned).copied().collect();
    assert!(recorded.is_subset(&known));
    assert!(fixture.audit("a").await.consistent());
}

/// An open transaction would hold its locks, and keep the server from cleaning up, until the
/// connection is used again.
#[rstest]
#[tokio::test]
async fn abandoned_begin_leaves_no_transaction_open(#[values(Mysql, Postgres)] backend: Backend) {
    let fixture = Fixture::with(backend, "a", 1000).await;
    fixture.store.close().await;
    let (_proxy, url) = distant(&fixture).await;
    let store = open(&url, 1);
    let mut observer = Session::open(backend, &fixture.url).await;
    // After this, no statement needs to be prepared.
    store.deduct(&deduction("a", 1)).await.unwrap();
    store.levels(("", ""), 1).await.unwrap();
    // Dropped at each step: whether the connection is back decides which of them is the `BEGIN`.
    for polls in (1..=4).cycle().take(12) {
        abandon(store.deduct(&deduction("a", 1)), polls).await;
        // MariaDB lists an open transaction only after its first statement.
        once_free(async || store.levels(("", ""), 1).await).await;
        let closed = async { while observer.open_transaction().await.is_some() {} };
        // Well before the server itself would end it.
        let closed = timeout(Duration::from_secs(8), closed).await;
        assert!(closed.is_ok(), "a transaction stays open");
    }
}

/// A connection on which a statement was abandoned while it was being prepared still receives the
/// answers to it. The next request must not read them as its own.
#[rstest]
#[tokio::test]
async fn next_request_does_not_read_answers_of_an_abandoned_one(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let fixture = Fixture::with(backend, "a", 7).await;
    fixture.put("b", 9).await;
    let (_proxy, url) = distant(&fixture).await;
    for polls in 1..=6 {
        for question in 0..4 {
            // A new connection, on which no statement is prepared yet.
            let store = open(&url, 1);
            store.check_writable().await.unwrap();
            let main = Warehouse::default();
            let (sku, filter) = (name("a"), all_of("a"));
            match question {
                0 => abandon(store.level(&sku, &main), polls).await,
                1 => abandon(store.movements(&filter), polls).await,
                2 => abandon(store.audit(&sku), polls).await,
                _ => abandon(store.levels(("", ""), 10), polls).await,
            };
            let sku = name("b");
            let level = once_free(async || store.level(&sku, &main).await).await;
            let level = level.expect("it exists");
            assert_eq!(level.on_hand, 9);
            let levels = once_free(async || store.levels_of(&sku).await).await;
            assert_eq!(levels, [level]);
            let filter = all_of("b");
            let movements = once_free(async || store.movements(&filter).await).await;
            let movements = movements.movements;
            assert_eq!(movements.len(), 1);
            assert_eq!(movements[0].sku, sku);
            store.close().await;
        }
    }
}
