//! Servers that go away, hang, or are set so that they lose what was acknowledged.

use std::sync::Arc;
use std::time::Duration;

use rstest::rstest;
use stocklock::stock::{StockError, Warehouse};
use stocklock::store::{Attempt, StoreError};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::fixture::{Fixture, Raw, SOON, adjustment, deduction, name, open};
use crate::support::proxy::{Mode, Proxy};
use crate::support::services::Backend::{Mysql, Postgres};
use crate::support::services::{Backend, PrivateServer, fresh_database};

/// More requests than connections, so that some only ever wait for one.
const REQUESTS: usize = 24;

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_down_is_unavailable_and_is_used_again_once_it_is_back(
    #[values(Mysql, Postgres)] backend: Backend,
) {
    let server = PrivateServer::start(backend).await;
    let fixture = Fixture::at(backend, server.url().to_owned()).await;
    fixture.put("a", 10).await;

    server.kill9();
    // What the pool still holds is found dead, and its requests may be tried again.
    for _ in 0..8 {
        assert!(fixture.store.levels(None, 1).await.is_err());
    }
    let mut requests = JoinSet::new();
    for request in 0..REQUESTS {
        let store = Arc::clone(&fixture.store);
        requests.spawn(async move {
            if request % 2 == 0 {
                store.ping().await
            } else {
                store
                    .deduct_if_available(&deduction("a", 1))
                    .await
                    .map(drop)
            }
        });
    }
    for outcome in timeout(SOON, requests.join_all()).await.expect("bounded") {
        assert!(
            matches!(outcome, Err(StoreError::Unavailable(_))),
            "{outcome:?}"
        );
    }

    server.restart().await;
    let attempt = fixture.store.deduct_if_available(&deduction("a", 1)).await;
    assert_eq!(attempt.unwrap(), Attempt::Deducted { remaining: 9 });
    assert!(fixture.audit("a").await.consistent());
}

#[rstest]
#[tokio::test]
async fn connections_that_are_all_busy_are_not_a_server_that_is_down(
    #[values(Mysql, Postgres)] backend: Backend,
) {
    let fixture = Fixture::new(backend).await;
    fixture.put("a", 10).await;
    let store = open(&fixture.url, 1);
    store.ping().await.unwrap();
    let mut holder = Raw::connect(backend, &fixture.url).await;
    holder.begin().await;
    holder
        .run("UPDATE stock SET on_hand = on_hand")
        .await
        .unwrap();
    let busy = Arc::clone(&store);
    let waits = tokio::spawn(async move { busy.deduct_if_available(&deduction("a", 1)).await });
    tokio::task::yield_now().await;

    let mut outcomes = JoinSet::new();
    for _ in 0..4 {
        let store = Arc::clone(&store);
        outcomes.spawn(async move { store.deduct_if_available(&deduction("a", 1)).await });
    }
    for outcome in timeout(SOON, outcomes.join_all()).await.expect("bounded") {
        // Whoever got the connection waited for the row instead.
        let busy = matches!(
            outcome,
            Err(StoreError::Exhausted | StoreError::LockWait(_))
        );
        assert!(busy, "{outcome:?}");
    }
    let outcome = waits.await.unwrap();
    assert!(
        matches!(outcome, Err(StoreError::LockWait(_))),
        "{outcome:?}"
    );
}

#[rstest]
#[tokio::test]
async fn a_server_that_does_not_let_us_in_is_unavailable(
    #[values(Mysql, Postgres)] backend: Backend,
) {
    let database = fresh_database(backend).await;
    let mut url = reqwest::Url::parse(&database.url).unwrap();
    url.set_path("nowhere");
    let store = open(url.as_str(), 1);
    let answer = store.deduct_if_available(&deduction("a", 1)).await;
    assert!(
        matches!(answer, Err(StoreError::Unavailable(_))),
        "{answer:?}"
    );
}

/// Nobody was faster, and the server is there: a statement that is slow by itself is neither a lock
/// wait nor silence. The server ends it, whatever a client may do.
#[rstest]
#[tokio::test]
async fn a_statement_that_is_merely_slow_is_ended_by_the_server(
    #[values(Mysql, Postgres)] backend: Backend,
) {
    let fixture = Fixture::new(backend).await;
    fixture.put("a", 10).await;
    let mut raw = Raw::connect(backend, &fixture.url).await;
    let slow = match backend {
        Postgres => {
            "ALTER TABLE stock RENAME TO quick;
             CREATE VIEW stock AS SELECT * FROM quick WHERE pg_sleep(30) IS NOT NULL"
        }
        _ => {
            "RENAME TABLE stock TO quick;
             CREATE VIEW stock AS SELECT * FROM quick WHERE sleep(30) = 0"
        }
    };
    raw.run(slow).await.unwrap();

    let store = &fixture.store;
    let read = timeout(SOON, store.level(&name("a"), &Warehouse::default())).await;
    let read = read.expect("bounded");
    assert!(matches!(read, Err(StoreError::TooSlow(_))), "{read:?}");
    let written = timeout(SOON, store.adjust(&adjustment("a", 1))).await;
    let written = written.expect("bounded");
    assert!(
        matches!(written, Err(StoreError::TooSlow(_))),
        "{written:?}"
    );
    let answer = StockError::from(written.unwrap_err());
    assert!(
        matches!(answer, StockError::Unavailable { .. }),
        "{answer:?}"
    );
}

/// A replica that sells all it can is ready.
#[rstest]
#[tokio::test]
async fn whether_the_database_is_there_does_not_wait_for_a_connection(
    #[values(Mysql, Postgres)] backend: Backend,
) {
    let fixture = Fixture::new(backend).await;
    fixture.put("a", 10).await;
    let store = open(&fixture.url, 1);
    store.ping().await.unwrap();
    let mut holder = Raw::connect(backend, &fixture.url).await;
    holder.begin().await;
    holder
        .run("UPDATE stock SET on_hand = on_hand")
        .await
        .unwrap();
    let busy = Arc::clone(&store);
    let waits = tokio::spawn(async move { busy.deduct_if_available(&deduction("a", 1)).await });
    sleep(Duration::from_millis(50)).await;

    let asked = timeout(Duration::from_secs(1), store.ping()).await;
    assert!(matches!(asked, Ok(Ok(()))), "{asked:?}");
    assert!(!waits.is_finished(), "the connection is in use");
    holder.run("ROLLBACK").await.unwrap();
    waits.await.unwrap().unwrap();
}

/// As a readiness check asks: each question is dropped after a moment, and none of them may cost
/// the pool a connection for good.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_costs_the_pool_no_connection(
    #[values(Mysql, Postgres)] backend: Backend,
) {
    let database = fresh_database(backend).await;
    let (proxy, url) = Proxy::before(&database.url).await;
    let fixture = Fixture::at(backend, database.url.clone()).await;
    fixture.put("a", 10).await;
    let store = open(&url, 2);
    store.ping().await.unwrap();

    proxy.set(Mode::Blackhole).await;
    for _ in 0..6 {
        let answer = timeout(Duration::from_millis(100), store.ping()).await;
        assert!(!matches!(answer, Ok(Ok(()))), "nobody can have answered");
    }
    proxy.set(Mode::Pass).await;

    let works_again = async {
        while store.ping().await.is_err() {}
        store.deduct_if_available(&deduction("a", 1)).await
    };
    let attempt = timeout(SOON, works_again).await.expect("soon").unwrap();
    assert_eq!(attempt, Attempt::Deducted { remaining: 9 });
}

#[tokio::test]
async fn settings_of_mariadb_that_lose_sales_are_told() {
    let server = PrivateServer::start(Mysql).await;
    let fixture = Fixture::at(Mysql, server.url().to_owned()).await;
    assert_eq!(fixture.store.unsafe_settings().await.unwrap(), [""; 0]);
    let mut raw = Raw::connect(Mysql, server.url()).await;
    raw.run("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
        .await
        .unwrap();
    let told = fixture.store.unsafe_settings().await.unwrap();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].contains("set innodb_flush_log_at_trx_commit = 1"),
        "{told:?}"
    );
}

#[tokio::test]
async fn settings_of_postgresql_that_lose_sales_are_told() {
    let fixture = Fixture::new(Postgres).await;
    assert_eq!(fixture.store.unsafe_settings().await.unwrap(), [""; 0]);
    let mut raw = Raw::connect(Postgres, &fixture.url).await;
    raw.run(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off',
            current_database()); END $$",
    )
    .await
    .unwrap();
    let told = open(&fixture.url, 1).unsafe_settings().await.unwrap();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].ends_with("set synchronous_commit = on"), "{told:?}");
}

/// Whatever the server's defaults: ours is UTC, and strict.
#[tokio::test]
async fn a_session_does_not_depend_on_mariadbs_defaults() {
    let server = PrivateServer::start(Mysql).await;
    let mut raw = Raw::connect(Mysql, server.url()).await;
    for setting in [
        "SET GLOBAL time_zone = '+08:00'",
        "SET GLOBAL sql_mode = 'SIMULTANEOUS_ASSIGNMENT,ONLY_FULL_GROUP_BY'",
        "SET GLOBAL tx_isolation = 'SERIALIZABLE'",
        "SET GLOBAL character_set_server = 'latin1'",
    ] {
        raw.run(setting).await.unwrap();
    }
    let fixture = Fixture::at(Mysql, server.url().to_owned()).await;
    fixture.put("货", 10).await;
    let attempt = fixture.store.deduct_if_available(&deduction("货", 3)).await;
    assert_eq!(attempt.unwrap(), Attempt::Deducted { remaining: 7 });
    assert!(fixture.audit("货").await.consistent());
    let mut holder = Raw::connect(Mysql, server.url()).await;
    holder.begin().await;
    holder
        .run("UPDATE stock SET on_hand = on_hand")
        .await
        .unwrap();
    let store = Arc::clone(&fixture.store);
    let waiting = tokio::spawn(async move { store.deduct_if_available(&deduction("货", 1)).await });
    let isolation = async {
        loop {
            let waiting = "SELECT trx_isolation_level FROM information_schema.innodb_trx
                WHERE trx_state = 'LOCK WAIT'";
            match raw.text(waiting).await {
                Some(isolation) => return isolation,
                // What it tells is a copy, renewed where nobody has looked at it for 100 ms.
                None => sleep(Duration::from_millis(150)).await,
            }
        }
    };
    assert_eq!(timeout(SOON, isolation).await.unwrap(), "READ COMMITTED");
    holder.run("ROLLBACK").await.unwrap();
    waiting.await.unwrap().unwrap();

    let hour = raw
        .text("SELECT date_format(utc_timestamp(), '%Y-%m-%dT%H')")
        .await;
    let created_at = fixture.movements("货").await.remove(0).created_at;
    let hour_later = raw
        .text("SELECT date_format(utc_timestamp() + INTERVAL 1 HOUR, '%Y-%m-%dT%H')")
        .await;
    let is = |hour: Option<String>| created_at.starts_with(&hour.unwrap());
    assert!(is(hour.clone()) || is(hour_later), "{created_at}, {hour:?}");
}
