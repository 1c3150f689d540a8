//! Servers that are down, hang, or have settings that lose committed sales.

use std::time::Duration;

use rstest::rstest;
use serde_json::json;
use stocklock::ports::StoreError;
use stocklock::stock::Operation;
use stocklock_testkit::assert_matches;
use tokio::time::{sleep, timeout};

use super::fixture::{
    Fixture, Raw, SOON, adjustment, committed, creation, deduction, open, short, start_deduction,
};
use crate::support::app::{TestApp, send};
use crate::support::proxy::{Mode, Proxy};
use crate::support::rival::Rival;
use crate::support::services::Backend::{self, Mysql, Postgres};
use crate::support::services::{PrivateServer, fresh_database};

/// If ROLLBACK gets no answer, the refusal stands. If the INSERT of a new level gets none, nothing was
/// committed, and the server is unavailable. If COMMIT gets none, the outcome is unknown.
#[rstest]
#[tokio::test]
async fn silence_of_the_server_is_bounded(#[values(Mysql, Postgres)] backend: Backend) {
    let fixture = Fixture::with(backend, "a", 3).await;
    let silent = async |message: &[u8], limit: Duration, operation: Operation| {
        let (proxy, url) = Proxy::before(&fixture.url).await;
        let hold = proxy.hold_request(message);
        let answer = timeout(limit, open(&url, 2).write(&operation)).await;
        hold.held().await;
        answer.expect("bounded")
    };
    // The server would end the transaction after ten seconds.
    let refused = adjustment("a", -5);
    let refused = silent(b"ROLLBACK", Duration::from_secs(8), refused).await;
    assert_eq!(refused.unwrap(), short(3));
    let created = creation("b", "main");
    let created = silent(b"INSERT INTO stock", SOON, created).await;
    assert_matches!(created, Err(StoreError::Unavailable(_)));
    assert_eq!(fixture.levels_of("b").await, []);
    let adjusted = adjustment("a", 1);
    let adjusted = silent(backend.commit_message(), SOON, adjusted).await;
    assert_matches!(adjusted, Err(StoreError::OutcomeUnknown(..)));
}

/// A readiness probe drops each check after a moment. No dropped check may cost the pool a
/// connection.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_server_costs_the_pool_no_connection(#[values(Mysql, Postgres)] backend: Backend) {
    let database = fresh_database(backend).await;
    let (proxy, url) = Proxy::before(&database.url).await;
    let fixture = Fixture::at(backend, database.url.clone()).await;
    fixture.put("a", 10).await;
    let store = open(&url, 2);
    store.check_writable().await.unwrap();

    proxy.set(Mode::Blackhole).await;
    for _ in 0..6 {
        let ready = timeout(Duration::from_millis(100), store.check_writable()).await;
        assert!(!matches!(ready, Ok(Ok(()))), "the server cannot answer");
    }
    proxy.set(Mode::Pass).await;

    let works_again = async {
        while store.check_writable().await.is_err() {}
        store.deduct(&deduction("a", 1)).await
    };
    let attempt = timeout(SOON, works_again).await.expect("soon").unwrap();
    assert_eq!(attempt, committed(9));
}

#[rstest]
#[case(
    Mysql,
    "SET GLOBAL innodb_flush_log_at_trx_commit = 2",
    "set innodb_flush_log_at_trx_commit = 1"
)]
#[case(
    Postgres,
    "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$",
    "set synchronous_commit = on"
)]
#[tokio::test]
async fn setting_that_loses_sales_is_reported(
    #[case] backend: Backend,
    #[case] change: &'static str,
    #[case] advice: &str,
) {
    let server = PrivateServer::start(backend).await;
    let fixture = Fixture::at(backend, server.url().to_owned()).await;
    assert_eq!(fixture.store.unsafe_settings().await.unwrap(), [""; 0]);
    let mut raw = Raw::connect(backend, server.url()).await;
    raw.run(change).await.unwrap();
    let found = open(&fixture.url, 1).unsafe_settings().await.unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].ends_with(advice), "{found:?}");
}

/// The store sets time zone, SQL mode, isolation level, character set and autocommit itself.
#[tokio::test]
async fn session_does_not_depend_on_mariadbs_defaults() {
    let server = PrivateServer::start(Mysql).await;
    let mut raw = Raw::connect(Mysql, server.url()).await;
    for setting in [
        "SET GLOBAL time_zone = '+08:00'",
        "SET GLOBAL sql_mode = 'SIMULTANEOUS_ASSIGNMENT,ONLY_FULL_GROUP_BY'",
        "SET GLOBAL tx_isolation = 'SERIALIZABLE'",
        "SET GLOBAL character_set_server = 'latin1'",
        "SET GLOBAL autocommit = 0",
    ] {
        raw.run(setting).await.unwrap();
    }
    let fixture = Fixture::at(Mysql, server.url().to_owned()).await;
    fixture.put("货", 10).await;
    let attempt = fixture.store.deduct(&deduction("货", 3)).await;
    assert_eq!(attempt.unwrap(), committed(7));
    assert!(fixture.audit("货").await.consistent());
    let rival = Rival::holding_stock(Mysql, server.url()).await;
    let waiting = start_deduction(&fixture.store, deduction("货", 1));
    let isolation = async {
        let waits = "SELECT trx_isolation_level FROM information_schema.innodb_trx
            WHERE trx_state = 'LOCK WAIT'";
        loop {
            match raw.text(waits).await {
                Some(isolation) => return isolation,
                // The table is a copy, which is renewed only if it was not read for 100 ms.
                None => sleep(Duration::from_millis(150)).await,
            }
        }
    };
    assert_eq!(timeout(SOON, isolation).await.unwrap(), "READ COMMITTED");
    rival.let_go().await;
    waiting.await.unwrap().unwrap();
    fixture.level("货").await;
    sleep(Duration::from_millis(150)).await;
    let open = "SELECT trx_state FROM information_schema.innodb_trx";
    assert_eq!(raw.text(open).await, None, "a read left a transaction open");

    let hours = [
        "SELECT date_format(utc_timestamp(), '%Y-%m-%dT%H')",
        "SELECT date_format(utc_timestamp() - INTERVAL 1 HOUR, '%Y-%m-%dT%H')",
    ];
    let created_at = fixture.movements("货").await.remove(0).created_at;
    let (hour, hour_before) = (raw.text(hours[0]).await, raw.text(hours[1]).await);
    let is_in = |hour: &Option<String>| created_at.starts_with(hour.as_deref().unwrap());
    let is_utc = is_in(&hour) || is_in(&hour_before);
    assert!(is_utc, "{created_at}, {hour:?}");
}

/// With each of these, sessions would refuse writes, end, take an empty text for NULL, or lack rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn setting_that_a_session_can_change_harms_no_sale() {
    let server = PrivateServer::start(Mysql).await;
    let mut raw = Raw::connect(Mysql, server.url()).await;
    for setting in [
        "SET GLOBAL tx_read_only = ON",
        "SET GLOBAL completion_type = 'RELEASE'",
        "SET GLOBAL sql_mode = 'EMPTY_STRING_IS_NULL'",
        "SET GLOBAL sql_select_limit = 1",
        "SET GLOBAL sql_safe_updates = ON",
        "SET GLOBAL max_join_size = 1",
    ] {
        raw.run(setting).await.unwrap();
    }
    let app = TestApp::on(server.url(), 1, &[]).await;
    app.set_level("a", 10).await;
    let east = json!({"warehouse": "east", "on_hand": 1});
    let created = send(app.put(0, "a", &east)).await;
    assert_eq!(created.status, 201, "{created:?}");
    let order = json!({"sku": "a"});
    for (left, strategy) in [
        (9, "single-sql"),
        (8, "group-commit"),
        (7, "for-update"),
        (6, "sql-lock"),
        (5, "sql-lock"),
    ] {
        let sold = send(app.deduct(0, strategy, &order)).await;
        assert_eq!(sold.ok()["remaining"], left, "{strategy}");
    }
    let audit = app.get_json("/stock/a/audit").await;
    let warehouses = audit["warehouses"].as_array().expect("a list");
    assert_eq!(warehouses.len(), 2, "{audit}");
    for warehouse in warehouses {
        assert_eq!(warehouse["consistent"], true, "{audit}");
    }
}
