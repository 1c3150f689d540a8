//! The transaction that nobody ends: sqlx 0.9.0 hands out connections that are still inside a
//! `BEGIN` whose future was dropped (<https://github.com/transact-rs/sqlx/issues/4385>). What a
//! single statement then changes on such a connection is acknowledged and never committed.
//!
//! First the loss itself, on a pool as sqlx makes it: should that test fail, sqlx has been mended,
//! and the stores need no longer roll back what was abandoned. Then that our stores lose nothing, and leave
//! no such transaction behind.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use rstest::rstest;
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::SqlitePoolOptions;
use stocklock::stock::{MovementKind, OperationId, Warehouse};
use stocklock::store::{Attempt, StoreError};
use tokio::time::{sleep, timeout};

use crate::store_contract::fixture::{Fixture, Raw, SOON, all_of, deduction, name, open};
use crate::support::proxy::{Mode, Proxy};
use crate::support::services::Backend;
use crate::support::services::Backend::{Mysql, Postgres, Sqlite};

/// Drops `future` after so many polls that each found it waiting; answers whether it was dropped.
async fn abandon<T>(future: impl Future<Output = T>, polls: u32) -> bool {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(_) => Poll::Ready(false),
        Poll::Pending => {
            left -= 1;
            if left == 0 {
                Poll::Ready(true)
            } else {
                Poll::Pending
            }
        }
    })
    .await
}

/// Asks until a connection is free: one that was abandoned while a statement was being prepared is
/// out of step, on MariaDB, and is not used again; it takes its time to be found out.
async fn once_free<T>(ask: impl AsyncFn() -> Result<T, StoreError>) -> T {
    let answer = async {
        loop {
            match ask().await {
                Err(StoreError::Exhausted | StoreError::Unavailable(_)) => {}
                answer => return answer.expect("no other error"),
            }
        }
    };
    timeout(SOON, answer).await.expect("soon")
}

/// A URL of the fixture's database at which a server takes its time, so that no answer is there
/// before it is waited for.
async fn distant(fixture: &Fixture) -> (Option<Proxy>, String) {
    if fixture.backend == Sqlite {
        return (None, fixture.url.clone());
    }
    let (proxy, url) = Proxy::before(&fixture.url).await;
    proxy.set(Mode::Delay(Duration::from_millis(1))).await;
    (Some(proxy), url)
}

/// Abandons a `begin`, then updates on the same connection; answers the rows that were updated.
macro_rules! update_after_an_abandoned_begin {
    ($options:expr, $url:expr) => {{
        let pool = $options
            .max_connections(1)
            // Its round trip would come first, and the `begin` would not be sent.
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
async fn a_pool_without_our_settings_loses_what_it_acknowledged(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let fixture = Fixture::new(backend).await;
    fixture.put("a", 100).await;
    let (_proxy, url) = distant(&fixture).await;
    let mut lost = 0;
    for _ in 0..10 {
        let before = fixture.level("a").await.on_hand;
        let (abandoned, updated) = match backend {
            Sqlite => update_after_an_abandoned_begin!(SqlitePoolOptions::new(), &url),
            Mysql => update_after_an_abandoned_begin!(MySqlPoolOptions::new(), &url),
            Postgres => update_after_an_abandoned_begin!(PgPoolOptions::new(), &url),
        };
        assert!(abandoned || backend == Sqlite, "nobody has answered yet");
        assert_eq!(updated, 1);
        lost += 1 - (before - fixture.level("a").await.on_hand);
    }
    // SQLite's driver rolls a transaction back whose beginning nobody waits for any more.
    assert_eq!(lost, if backend == Sqlite { 0 } else { 10 });
}

#[rstest]
#[tokio::test]
async fn our_stores_keep_what_they_acknowledge_whatever_was_abandoned_before(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    const REQUESTS: u32 = 100;
    let fixture = Fixture::new(backend).await;
    fixture.put("a", 1000).await;
    // One connection, so that each request gets the one that was abandoned before.
    let (_proxy, url) = distant(&fixture).await;
    let store = open(&url, 1);
    let mut acknowledged = BTreeSet::new();
    let mut abandoned = BTreeSet::<OperationId>::new();
    for request in 0..REQUESTS {
        let cancelled = deduction("a", 1);
        // At every step of it in turn; on a server there is one, and the wait for the connection.
        let polls = request % 3 + 1;
        if abandon(store.deduct_if_available(&cancelled), polls).await {
            abandoned.insert(cancelled.operation);
        } else {
            acknowledged.insert(cancelled.operation);
        }
        let deduction = deduction("a", 1);
        let attempt = once_free(async || store.deduct_if_available(&deduction).await).await;
        assert!(matches!(attempt, Attempt::Deducted { .. }), "{attempt:?}");
        acknowledged.insert(deduction.operation);
    }
    store.close().await;

    assert!(abandoned.len() > 30, "{} abandoned", abandoned.len());
    // From other connections: what the ledger has is what was committed.
    let sales = fixture.movements("a").await;
    let sales = sales
        .iter()
        .filter(|sale| sale.kind == MovementKind::Deducted);
    let recorded: BTreeSet<_> = sales.map(|sale| sale.operation).collect();
    let lost: Vec<_> = acknowledged.difference(&recorded).collect();
    assert!(
        lost.is_empty(),
        "{} acknowledged, {} lost",
        acknowledged.len(),
        lost.len()
    );
    // What was abandoned may have happened, but only as a whole.
    assert!(
        recorded
            .iter()
            .all(|id| acknowledged.contains(id) || abandoned.contains(id))
    );
    assert!(fixture.audit("a").await.consistent());
}

/// Nor is a transaction left open, with what it has locked and what it keeps the server from
/// cleaning up, until the connection happens to be used again.
#[rstest]
#[tokio::test]
async fn an_abandoned_begin_leaves_no_transaction_open(
    #[values(Mysql, Postgres)] backend: Backend,
) {
    let fixture = Fixture::new(backend).await;
    fixture.put("a", 1000).await;
    fixture.store.close().await;
    let (_proxy, url) = distant(&fixture).await;
    let store = open(&url, 1);
    let mut observer = Raw::connect(backend, &fixture.url).await;
    let open_transactions = match backend {
        Sqlite => unreachable!("it has no server to ask"),
        Mysql => {
            "SELECT trx_state FROM information_schema.innodb_trx t
             JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id
             WHERE p.db = database() AND p.id <> connection_id()"
        }
        Postgres => {
            "SELECT state FROM pg_stat_activity WHERE datname = current_database()
             AND state LIKE 'idle in transaction%'"
        }
    };
    // So that nothing is left to be prepared.
    store.deduct_if_available(&deduction("a", 1)).await.unwrap();
    store.levels(None, 1).await.unwrap();
    // At each of its steps: which of them is the `BEGIN` depends on whether the connection is back.
    for polls in (1..=4).cycle().take(12) {
        abandon(store.deduct_if_available(&deduction("a", 1)), polls).await;
        // In a transaction that is still open, MariaDB would count from its first statement.
        once_free(async || store.levels(None, 1).await).await;
        let closed = async {
            loop {
                // What MariaDB tells is a copy, renewed where nobody has looked for 100 ms.
                sleep(Duration::from_millis(150)).await;
                if observer.text(open_transactions).await.is_none() {
                    return;
                }
            }
        };
        // Well before the server itself would end it.
        let closed = timeout(Duration::from_secs(5), closed).await;
        assert!(closed.is_ok(), "a transaction stays open");
    }
}

/// A connection on which a statement was abandoned while it was being prepared has answers under
/// way that nobody asked for. They must not be taken for those of the next request.
#[rstest]
#[tokio::test]
async fn an_abandoned_read_does_not_shift_the_answers_of_the_next(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let fixture = Fixture::new(backend).await;
    fixture.put("a", 7).await;
    fixture.put("b", 9).await;
    let (_proxy, url) = distant(&fixture).await;
    for polls in 1..=6 {
        for question in 0..4 {
            // A fresh connection, on which nothing is prepared yet.
            let store = open(&url, 1);
            store.ping().await.unwrap();
            let main = Warehouse::default();
            let (sku, filter) = (name("a"), all_of("a"));
            match question {
                0 => abandon(store.level(&sku, &main), polls).await,
                1 => abandon(store.movements(&filter), polls).await,
                2 => abandon(store.audit(&sku), polls).await,
                _ => abandon(store.levels(None, 10), polls).await,
            };
            let sku = name("b");
            let level = once_free(async || store.level(&sku, &main).await).await;
            assert_eq!(level.expect("it exists").on_hand, 9);
            let filter = all_of("b");
            let movements = once_free(async || store.movements(&filter).await).await;
            assert_eq!(movements.len(), 1);
            assert_eq!(movements[0].sku, sku);
            store.close().await;
        }
    }
}
