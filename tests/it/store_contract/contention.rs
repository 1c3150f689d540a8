//! Operations that meet: on one row, on one key, on one SKU that is yet to be created.

use std::sync::Arc;
use std::time::Duration;

use rstest::rstest;
use secrecy::SecretString;
use stocklock::metrics::Metrics;
use stocklock::operations::Operations;
use stocklock::retry::RetryPolicy;
use stocklock::stock::{Deducted, Home, StockError, Warehouse};
use stocklock::store::{Attempt, Change, StoreError};
use stocklock::strategy::{
    DeductOrder, Deductor, LockSettings, Locks, Safeguards, Services, Strategy, Tier,
};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::fixture::{
    Fixture, On, Raw, SOON, WAIT_LIMIT, creation, deduction, deduction_with_key, name, open, units,
};
use crate::support::services::Backend;
use crate::support::services::Backend::{Mysql, Postgres, Sqlite};

/// What a wait of one second may take on a busy machine, and must not exceed.
const BOUNDED: Duration = Duration::from_secs(8);

/// A deductor that gives up late, so that every buyer gets a definite answer.
fn patient_deductor(fixture: &Fixture) -> Arc<Deductor> {
    Arc::new(Deductor::new(
        Arc::clone(&fixture.store),
        locks(fixture),
        RetryPolicy::new(10_000, Duration::from_mins(1), Duration::from_mins(1)),
        Operations::new(1000, Duration::from_mins(2)),
        Arc::new(Metrics::new()),
    ))
}

/// The fixture's Redis, if it has one, so that the strategies which need it are available.
fn locks(fixture: &Fixture) -> Locks {
    let redis_url = fixture.redis_url().map(SecretString::from);
    let settings = LockSettings {
        redis_url: redis_url.as_ref(),
        zookeeper_connect: None,
        lease: Duration::from_secs(10),
        max_hold: Duration::from_mins(1),
    };
    Locks::new(&settings, &Arc::new(Metrics::new())).expect("the URL is one")
}

fn order(sku: &str, quantity: u32) -> DeductOrder {
    DeductOrder {
        sku: name(sku),
        warehouse: Warehouse::default(),
        quantity: units(quantity),
        idempotency: None,
        safeguards: Safeguards::default(),
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_64_buyers_of_50_units_exactly_50_get_one(
    #[values(On::SQLITE, On::MYSQL, On::POSTGRES, On::REDIS)] on: On,
) {
    let fixture = Fixture::on(on).await;
    let (services, tier) = match on {
        On::Sql(_) => (Services::NONE, Tier::Safe),
        On::Redis => (locks(&fixture).services(), Tier::Volatile),
    };
    for strategy in Strategy::available(services).filter(|strategy| strategy.tier() == tier) {
        let sku = strategy.name();
        fixture.put(sku, 50).await;
        let deductor = patient_deductor(&fixture);
        let mut buyers: JoinSet<Result<Deducted, StockError>> = JoinSet::new();
        for _ in 0..64 {
            let deductor = Arc::clone(&deductor);
            buyers.spawn(async move { deductor.deduct(strategy, order(sku, 1)).await });
        }
        let mut remaining: Vec<i64> = Vec::new();
        let mut refused = 0;
        for answer in buyers.join_all().await {
            match answer {
                Ok(deducted) => remaining.push(deducted.remaining),
                Err(StockError::Insufficient { available: 0, .. }) => refused += 1,
                Err(other) => panic!("{strategy}: {other:?}"),
            }
        }
        remaining.sort_unstable();
        // Each saw a state of its own: the answers are those of one order of sales.
        assert_eq!(remaining, (0..50).collect::<Vec<i64>>(), "{strategy}");
        assert_eq!(refused, 14, "{strategy}");
        let audit = fixture.audit(sku).await;
        assert_eq!((audit.sold, audit.on_hand), (50, 0), "{strategy}");
        assert!(audit.consistent(), "{strategy}: {audit:?}");
    }
}

#[rstest]
#[tokio::test]
async fn a_row_that_stays_locked_is_a_lock_wait(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let fixture = Fixture::new(backend).await;
    let read = fixture.put("a", 5).await;
    let mut holder = Raw::connect(backend, &fixture.url).await;
    holder.begin().await;
    holder
        .run("UPDATE stock SET on_hand = on_hand WHERE sku = 'a'")
        .await
        .unwrap();

    let store = &fixture.store;
    let deduction = deduction("a", 1);
    let began = Instant::now();
    let all = timeout(
        BOUNDED,
        futures_util::future::join4(
            store.deduct_if_available(&deduction),
            store.deduct_under_row_lock(&deduction),
            store.deduct_if_version(&deduction, &read),
            store.overwrite(&deduction, &read),
        ),
    );
    let (guarded, locked, version, overwrite) = all.await.expect("the wait is bounded");

    assert!(began.elapsed() >= WAIT_LIMIT, "it waits before it gives up");
    for attempt in [guarded, locked, version, overwrite] {
        // SQLite's one writer: behind the one that waits for the file, the others wait for it.
        let waited = matches!(attempt, Err(StoreError::LockWait(_)))
            || backend == Sqlite && matches!(attempt, Err(StoreError::Exhausted));
        assert!(waited, "{attempt:?}");
    }
    holder.run("ROLLBACK").await.unwrap();
    let attempt = store.deduct_if_available(&deduction).await.unwrap();
    assert_eq!(attempt, Attempt::Deducted { remaining: 4 });
    assert!(fixture.audit("a").await.consistent());
}

/// On one connection: what the refused attempt had already written must not be committed by the
/// next one (MariaDB undoes the statement only), nor its lock outlive it.
#[rstest]
#[tokio::test]
async fn a_key_that_another_transaction_is_recording_is_in_flight(
    #[values(Mysql, Postgres)] backend: Backend,
) {
    let fixture = Fixture::new(backend).await;
    fixture.put("a", 5).await;
    let store = open(&fixture.url, 1);
    let mut first = Raw::connect(backend, &fixture.url).await;
    first.begin().await;
    first.record_key().await;

    let with_key = deduction_with_key("a", 2, "K");
    let began = Instant::now();
    let attempt = timeout(BOUNDED, store.deduct_if_available(&with_key)).await;
    let attempt = attempt.expect("the wait is bounded");
    assert!(began.elapsed() >= WAIT_LIMIT, "it waits for the outcome");
    assert!(
        matches!(attempt, Err(StoreError::KeyInFlight(_))),
        "{attempt:?}"
    );

    let without_key = store.deduct_if_available(&deduction("a", 1)).await.unwrap();
    assert_eq!(without_key, Attempt::Deducted { remaining: 4 });
    assert!(fixture.audit("a").await.consistent());

    first.run("COMMIT").await.unwrap();
    let repeat = store.deduct_if_available(&with_key).await.unwrap();
    assert_eq!(repeat, Attempt::Duplicate);
}

#[rstest]
#[tokio::test]
async fn whoever_waits_for_a_key_that_is_given_up_records_it(
    #[values(Mysql, Postgres)] backend: Backend,
) {
    let fixture = Fixture::new(backend).await;
    fixture.put("a", 5).await;
    let mut first = Raw::connect(backend, &fixture.url).await;
    first.begin().await;
    first.record_key().await;
    let with_key = deduction_with_key("a", 2, "K");

    let store = Arc::clone(&fixture.store);
    let waiting = tokio::spawn(async move { store.deduct_if_available(&with_key).await });
    is_waiting(backend, &fixture).await;
    first.run("ROLLBACK").await.unwrap();

    let attempt = waiting.await.unwrap().unwrap();
    assert_eq!(attempt, Attempt::Deducted { remaining: 3 });
}

/// Returns once one of the database's sessions waits for a lock.
async fn is_waiting(backend: Backend, fixture: &Fixture) {
    let mut observer = Raw::connect(backend, &fixture.url).await;
    let waiting = match backend {
        Sqlite => unreachable!("it has no sessions"),
        // What InnoDB itself tells of its waits is a copy that is renewed only where nobody has
        // looked at it for a while.
        Mysql => {
            "SELECT info FROM information_schema.processlist WHERE db = database()
             AND command IN ('Execute', 'Query') AND time_ms > 100 AND id <> connection_id()"
        }
        Postgres => {
            "SELECT query FROM pg_stat_activity
             WHERE wait_event_type = 'Lock' AND datname = current_database()"
        }
    };
    let seen = async { while observer.text(waiting).await.is_none() {} };
    timeout(SOON, seen).await.expect("somebody waits");
}

/// A statement that waited for a row decides by what the row has become, even where the server's
/// default isolation would refuse it.
#[rstest]
#[tokio::test]
async fn whoever_waited_for_a_row_sees_what_it_has_become(
    #[values(Mysql, Postgres)] backend: Backend,
) {
    let fixture = Fixture::new(backend).await;
    fixture.put("a", 5).await;
    let mut holder = Raw::connect(backend, &fixture.url).await;
    if backend == Postgres {
        let strict = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET
            default_transaction_isolation = serializable', current_database()); END $$";
        holder.run(strict).await.unwrap();
    }
    let store = open(&fixture.url, 2);
    for (guarded, remaining) in [(true, 3), (false, 1)] {
        holder.begin().await;
        holder
            .run("UPDATE stock SET on_hand = on_hand - 1, version = version + 1")
            .await
            .unwrap();
        let deducting = Arc::clone(&store);
        let waiting = tokio::spawn(async move {
            let deduction = deduction("a", 1);
            if guarded {
                deducting.deduct_if_available(&deduction).await
            } else {
                deducting.deduct_under_row_lock(&deduction).await
            }
        });
        is_waiting(backend, &fixture).await;
        holder.run("COMMIT").await.unwrap();
        let attempt = waiting.await.unwrap().unwrap();
        assert_eq!(attempt, Attempt::Deducted { remaining });
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_who_create_one_sku_at_once_one_succeeds(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let fixture = Fixture::new(backend).await;
    for round in 0..10 {
        let sku = format!("sku-{round}");
        let mut creators = JoinSet::new();
        // In warehouses of their own: no row that one of them writes is in another's way.
        for creator in 0..8 {
            let home = if creator % 2 == 0 {
                Home::Sql
            } else {
                Home::Redis
            };
            let change = creation(&sku, &format!("w{creator}"), home);
            let store = Arc::clone(&fixture.store);
            creators.spawn(async move {
                loop {
                    match store.set_level(&change).await {
                        Err(StoreError::Conflict(_) | StoreError::LockWait(_)) => {}
                        settled => return settled.expect("no other error"),
                    }
                }
            });
        }
        let outcomes = timeout(SOON, creators.join_all()).await.expect("soon");
        let created = |outcome: &&Change| matches!(outcome, Change::Done { created: true, .. });
        assert_eq!(outcomes.iter().filter(created).count(), 1, "{outcomes:?}");
        let refused = |outcome: &&Change| **outcome == Change::PreconditionFailed;
        assert_eq!(outcomes.iter().filter(refused).count(), 7, "{outcomes:?}");
        assert_eq!(fixture.store.levels_of(&name(&sku)).await.unwrap().len(), 1);
    }
}

/// One holds a key and wants a row, the other holds the row and wants the key.
#[rstest]
#[tokio::test]
async fn a_deadlock_costs_one_of_the_two_its_attempt_and_nothing_else(
    #[values(Mysql, Postgres)] backend: Backend,
) {
    let fixture = Fixture::new(backend).await;
    fixture.put("a", 5).await;
    let mut other = Raw::connect(backend, &fixture.url).await;
    if backend == Postgres {
        // Ours looks for a deadlock as soon as it waits, the other one only when all is over.
        let ours_first = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET
            deadlock_timeout = ''10ms''', current_database()); END $$";
        other.run(ours_first).await.unwrap();
        other.run("SET deadlock_timeout = '60s'").await.unwrap();
    }
    let store = open(&fixture.url, 1);
    other.begin().await;
    other.record_key().await;
    let deducting = Arc::clone(&store);
    let with_key = deduction_with_key("a", 2, "K");
    let waiting = tokio::spawn(async move { deducting.deduct_if_available(&with_key).await });
    is_waiting(backend, &fixture).await;
    let update = other.run("UPDATE stock SET on_hand = on_hand - 1, version = version + 1");
    let update = timeout(BOUNDED, update)
        .await
        .expect("the deadlock is found");

    let attempt = waiting.await.unwrap();
    match (&attempt, &update) {
        (Err(StoreError::Conflict(_)), Ok(())) => other.run("COMMIT").await.unwrap(),
        (Ok(Attempt::Deducted { remaining: 3 }), Err(_)) => other.run("ROLLBACK").await.unwrap(),
        // PostgreSQL's waiter had looked before there was anything to see, and then waited on.
        (Err(StoreError::KeyInFlight(_)), Ok(())) if backend == Postgres => {
            other.run("COMMIT").await.unwrap();
        }
        unexpected => panic!("{unexpected:?}"),
    }
    let left = fixture.level("a").await.on_hand;
    assert_eq!(left, if attempt.is_ok() { 3 } else { 4 });
    let next = store.deduct_if_available(&deduction("a", 1)).await.unwrap();
    assert_eq!(
        next,
        Attempt::Deducted {
            remaining: left - 1
        }
    );
}
