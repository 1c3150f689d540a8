//! `stocklock repair` corrects levels that are too high. An adjustment cannot: it is a movement.

use futures_util::future::join_all;
use rstest::rstest;
use stocklock::ports::{
    AttemptOutcome, Condition, LedgerReader as _, LevelStore as _, RedisMethod,
};
use stocklock::stock::Warehouse;
use stocklock::store::{RedisOptions, Repair, Repaired, StoreOptions, Stores};

use super::{
    assert_exact, command, deduct, fixture, fixture_with_journal_limit, flush, line, lose_level,
    run, sell,
};
use crate::faults::until;
use crate::store_contract::fixture::{Fixture, SOON, adjustment, name, redis_options};
use crate::support::process::Process;
use crate::support::proxy::Proxy;
use crate::support::services::{Backend, PrivateServer, fresh_database};

const SKU: &str = "a";

/// Adds units to the level as a loss of sales does.
async fn lose_sales(fixture: &Fixture, units: i64) {
    let level = fixture.key("stock:*:a:main").await;
    let add = ["HINCRBY", &level, "units", &units.to_string()];
    run::<()>(fixture, &add).await;
}

async fn repair(fixture: &Fixture) -> Repair {
    let repairs = fixture.store.repair(&name(SKU)).await.unwrap();
    let mut repairs = repairs.expect("the stock is in Redis");
    assert_eq!(repairs.len(), 1, "{repairs:?}");
    repairs.remove(0)
}

#[rstest]
#[tokio::test]
async fn drift_is_repaired_in_the_level_itself(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let fixture = fixture(backend).await;
    fixture.put(SKU, 10).await;
    sell(&fixture, SKU, 4).await;
    fixture.settle().await;
    assert_eq!(repair(&fixture).await.result, Repaired::NotNeeded);
    lose_sales(&fixture, 3).await;
    let store = &fixture.store;
    for units in [-3, 3] {
        store.adjust(&adjustment(SKU, units)).await.unwrap();
        assert_eq!(fixture.audit(SKU).await.drift(), 3);
    }
    // Movements that SQL does not have yet make no difference.
    sell(&fixture, SKU, 1).await;
    let read = fixture.level(SKU).await;

    let repaired = repair(&fixture).await;

    let found = (repaired.drift, repaired.on_hand, repaired.result);
    assert_eq!(found, (3, 5, Repaired::Corrected));
    let late = fixture.write_back(&read, Condition::Version).await;
    assert_eq!(late.unwrap(), AttemptOutcome::Conflict);
    assert_eq!(repair(&fixture).await.result, Repaired::NotNeeded);
    sell(&fixture, SKU, 5).await;
    assert_exact(&fixture, SKU, 10, 0).await;
}

/// Otherwise the units would be back when Redis loses the level.
#[rstest]
#[tokio::test]
async fn repaired_level_is_loaded_from_sql(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
    #[values(false, true)] is_interrupted: bool,
) {
    let fixture = fixture(backend).await;
    fixture.put(SKU, 10).await;
    sell(&fixture, SKU, 4).await;
    fixture.settle().await;
    lose_sales(&fixture, 3).await;
    sell(&fixture, SKU, 1).await;
    // Now SQL has the level without the lost sales, too.
    fixture.settle().await;
    // An entry from before the repair, which is applied after it.
    sell(&fixture, SKU, 1).await;
    let expected = if is_interrupted {
        // The earlier repair ended before it wrote to SQL.
        lose_sales(&fixture, -3).await;
        Repaired::NotNeeded
    } else {
        Repaired::Corrected
    };
    assert_eq!(repair(&fixture).await.result, expected);
    fixture.settle().await;
    lose_level(&fixture, SKU).await;

    assert_exact(&fixture, SKU, 6, 4).await;
    sell(&fixture, SKU, 1).await;
    assert_exact(&fixture, SKU, 7, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_repairs_take_the_units_once() {
    let fixture = fixture(Backend::Sqlite).await;
    fixture.put(SKU, 100).await;
    for _ in 0..5 {
        lose_sales(&fixture, 7).await;
        let repairs = (0..8).map(|_| repair(&fixture));
        let sales = (0..8).map(|_| deduct(&fixture, SKU, RedisMethod::Script));
        let (repairs, sales) = tokio::join!(join_all(repairs), join_all(sales));
        let corrected = |one: &&Repair| one.result == Repaired::Corrected;
        assert_eq!(repairs.iter().filter(corrected).count(), 1, "{repairs:?}");
        assert!(sales.iter().all(Result::is_ok), "{sales:?}");
    }
    assert_exact(&fixture, SKU, 40, 60).await;
}

/// The level was corrected in data that Redis has lost since, with the sales in its journal.
#[tokio::test]
async fn repair_of_a_lost_level_does_not_change_sql() {
    let near = fixture(Backend::Sqlite).await;
    let redis = near.redis_url().expect("stock lives in Redis");
    let (proxy, url) = Proxy::before(redis).await;
    let far = Fixture::at(Backend::Sqlite, near.url.clone()).await;
    let far = far.with(RedisOptions {
        wait_limit: SOON,
        ..redis_options(&url)
    });
    near.put(SKU, 7780).await;
    lose_sales(&near, 3).await;
    sell(&near, SKU, 2).await;

    // Of the script that corrects the level.
    let hold = proxy.hold_answer(b"\r\n7778\r\n");
    let sku = name(SKU);
    let repair = far.store.repair(&sku);
    let lose = async {
        hold.held().await;
        flush(&near).await;
        near.store.confirm_redis(0).await.expect("it is bound");
        hold.let_go();
    };
    let (repaired, ()) = tokio::join!(repair, lose);
    assert!(repaired.is_err(), "{repaired:?}");
    assert_eq!(near.level(SKU).await.on_hand, 7780);
    assert_exact(&near, SKU, 0, 7780).await;
}

/// Goal: a repair takes no units from a level that is right, because Redis has failed over since it was counted.
///
/// Method: what made the level too high is lost: Redis restarts with older data before the audit has its answer
/// from SQL. Another request opens the new connection, so the repair goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repair_after_a_failover_counts_again() {
    let redis = PrivateServer::redis(&[]).await;
    let database = fresh_database(Backend::Postgres).await;
    let (proxy, url) = Proxy::before(&database.url).await;
    let near = Fixture::at(Backend::Postgres, database.url.clone()).await;
    let near = near.with(redis_options(redis.url()));
    let options = StoreOptions {
        pool_size: 8,
        wait_limit: SOON,
    };
    let stock = RedisOptions {
        wait_limit: SOON,
        ..redis_options(redis.url())
    };
    let far = Stores::open(&url, &options, Some(stock)).expect("valid URLs");
    near.put(SKU, 10).await;
    sell(&near, SKU, 4).await;
    near.settle().await;
    line(redis.url(), "SAVE").await;
    let level: Vec<String> = command(redis.url(), &["KEYS", "stock:*"]).await;
    line(redis.url(), &format!("HINCRBY {} units 3", level[0])).await;

    // The audits of all warehouses, then of the one that is repaired.
    let first = proxy.hold_request(b"REPEATABLE READ");
    let sku = name(SKU);
    let repair = far.store.repair(&sku);
    let fail_over = async {
        first.held().await;
        let second = proxy.hold_request(b"REPEATABLE READ");
        first.let_go();
        second.held().await;
        redis.kill9();
        redis.restart().await;
        until("the level can be read", async || {
            let read = far.store.level(&sku, &Warehouse::default()).await;
            read.is_ok()
        })
        .await;
        second.let_go();
    };
    let (repaired, ()) = tokio::join!(repair, fail_over);

    let repaired = repaired
        .expect("the servers answer")
        .expect("the stock is in Redis");
    assert_eq!(repaired[0].result, Repaired::NotNeeded, "{repaired:?}");
    assert_exact(&near, SKU, 4, 6).await;
}

/// The audit does not know what such an entry has changed.
#[tokio::test]
async fn level_with_unreadable_entries_is_not_repaired() {
    let fixture = fixture_with_journal_limit(10).await;
    fixture.put(SKU, 10).await;
    sell(&fixture, SKU, 1).await;
    let (journal, level) = (
        fixture.key("journal:*").await,
        fixture.key("stock:*:a:main").await,
    );
    let url = fixture.redis_url().unwrap();
    line(
        url,
        &format!("XADD {journal} * level {level} movements odd"),
    )
    .await;
    lose_sales(&fixture, 3).await;
    assert_eq!(repair(&fixture).await.result, Repaired::UnreadableEntries);
    lose_sales(&fixture, -5).await;
    assert_eq!(repair(&fixture).await.result, Repaired::TooLow);
    assert_eq!(fixture.level(SKU).await.on_hand, 7);
}

#[tokio::test]
async fn command_repairs_and_says_what_it_did() {
    let fixture = fixture(Backend::Sqlite).await;
    fixture.put(SKU, 10).await;
    lose_sales(&fixture, 3).await;
    let redis = fixture.redis_url().unwrap();
    let variables = [("DATABASE_URL", &*fixture.url), ("REDIS_URL", redis)];
    for (sku, code, said) in [
        (SKU, 0, "a main: 3 units too high; corrected to 10 on hand"),
        (SKU, 0, "a main: nothing to do, 10 on hand"),
        ("b", 1, "there is no SKU b"),
    ] {
        let ended = Process::run(&["repair", "--sku", sku], &variables).await;
        assert_eq!(ended.code, Some(code), "{ended:?}");
        let output = [ended.stdout, ended.stderr].concat();
        assert!(output.contains(said), "{output}");
    }
    let levels: Vec<String> = command(redis, &["KEYS", "stock:*"]).await;
    assert_eq!(levels.len(), 1);
}
