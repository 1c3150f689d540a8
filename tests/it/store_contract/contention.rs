//! Concurrent operations on one row, on one key, and on one SKU that does not exist yet.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join4;
use rstest::rstest;
use secrecy::SecretString;
use stocklock::config::{DatabaseConfig, ServicesConfig};
use stocklock::deduct::{Deductor, RetryPolicy, Scheduler, WritePool};
use stocklock::level_service::LevelService;
use stocklock::locks::LockServers;
use stocklock::metrics::Metrics;
use stocklock::ports::{
    AttemptOutcome, CachedLevels, Condition, DeductionStore, Refusal, StoreError,
};
use stocklock::spawn::TokioSpawn;
use stocklock::stock::{Deduction, Sku, StockError, Warehouse};
use stocklock::strategy::{Available, DeductionContext, Locks, Safeguards, Strategy, Tier};
use stocklock_testkit::assert_matches;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::fixture::{
    Fixture, MYSQL, On, Operations as _, POSTGRES, Raw, SOON, SQLITE, WAIT_LIMIT, committed,
    creation, deduction, deduction_with_key, guarded, name, open, open_waiting, start_deduction,
    until_found,
};
use crate::support::rival::Rival;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

/// Most time that a wait of one second may take on a busy machine.
const BOUNDED: Duration = Duration::from_secs(12);

/// A deductor with so many attempts, and so long waits, that every buyer gets a definite answer.
fn deductor(fixture: &Fixture) -> Arc<Deductor> {
    let wait_limit = Duration::from_mins(1);
    let policy = RetryPolicy::new(10_000, wait_limit, wait_limit);
    let store: Arc<dyn DeductionStore> = open_waiting(&fixture.url, 8, wait_limit);
    let context = DeductionContext {
        scheduler: Scheduler::new(Arc::clone(&store) as _, &policy, Arc::new(TokioSpawn)),
        store,
        mutexes: Arc::default(),
        counters: None,
        locks: locks(fixture),
        available: Available::default(),
        policy,
        metrics: Arc::new(Metrics::default()),
    };
    let writes = WritePool::new(1000);
    let levels = LevelService::new(
        Arc::clone(&context.store) as _,
        context.policy.clone(),
        writes.clone(),
        Arc::clone(&context.scheduler),
        Arc::new(NoCache),
        None,
        Arc::clone(&context.metrics),
    );
    Arc::new(Deductor::new(context, writes, levels))
}

/// Nothing is cached.
#[derive(Debug)]
struct NoCache;

impl CachedLevels for NoCache {
    fn forget(&self, _: &Sku) {}
}

/// The locks in the fixture's database.
fn locks(fixture: &Fixture) -> Locks {
    let database = DatabaseConfig {
        database_url: Some(SecretString::from(fixture.url.clone())),
        database_pool_size: 8,
    };
    let services = ServicesConfig {
        redis_url: None,
        lock_redis_url: None,
        lock_poll_ms: None,
        redis_pool_size: 16,
        redlock_urls: None,
        zookeeper_connect: None,
        zookeeper_auth: None,
        lock_lease_ms: Duration::from_secs(10),
    };
    let (limit, metrics) = (Duration::from_mins(1), Metrics::default().locks);
    let servers = LockServers::new(&database, &services, "test", limit, &metrics);
    servers.expect("a valid URL").locks
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_64_buyers_of_50_units_exactly_50_get_one(#[values(SQLITE, MYSQL, POSTGRES)] on: On) {
    let fixture = Fixture::on(on).await;
    let is_safe = |strategy: &Strategy| strategy.tier() == Tier::Safe;
    for strategy in Available::default().strategies().filter(is_safe) {
        let sku = strategy.name();
        fixture.put(sku, 50).await;
        let deductor = deductor(&fixture);
        let mut buyers = JoinSet::new();
        for _ in 0..64 {
            let deductor = Arc::clone(&deductor);
            let order = Deduction {
                strategy: strategy.name(),
                ..deduction(sku, 1)
            };
            let all = Safeguards::default();
            buyers.spawn(async move { deductor.deduct(strategy, order, all).await });
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
        // No two sales saw the same level: they happened one after another.
        assert_eq!(remaining, (0..50).collect::<Vec<i64>>(), "{strategy}");
        assert_eq!(refused, 14, "{strategy}");
        let audit = fixture.audit(sku).await;
        assert_eq!((audit.sold, audit.on_hand), (50, 0), "{strategy}");
        assert!(audit.consistent(), "{strategy}: {audit:?}");
    }
}

#[rstest]
#[tokio::test]
async fn row_that_stays_locked_is_a_lock_wait(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let fixture = Fixture::new(backend).await;
    let read = fixture.put("a", 5).await;
    let rival = Rival::holding_stock(backend, &fixture.url).await;

    let store = &fixture.store;
    let deduction = deduction("a", 1);
    let start = Instant::now();
    let all = join4(
        guarded(store, &deduction),
        store.deduct_locked(&deduction),
        store.write_back(&deduction, (&read).into(), Condition::Version),
        store.write_back(&deduction, (&read).into(), Condition::None),
    );
    let attempts = timeout(BOUNDED, all).await.expect("bounded");

    assert!(start.elapsed() >= WAIT_LIMIT, "{:?}", start.elapsed());
    for attempt in <[_; 4]>::from(attempts) {
        // SQLite has one writing connection: one attempt waits for the file, the others for the
        // connection.
        let waited = matches!(attempt, Err(StoreError::LockWait(_)))
            || backend == Sqlite && matches!(attempt, Err(StoreError::Exhausted));
        assert!(waited, "{attempt:?}");
    }
    rival.let_go().await;
    let attempt = guarded(store, &deduction).await.unwrap();
    assert_eq!(attempt, committed(4));
    assert!(fixture.audit("a").await.consistent());
}

/// Of two connections, one waits for rows. A write that meets a lock on the other one is made again on it.
#[rstest]
#[tokio::test]
async fn write_that_met_a_lock_waits_for_its_row(#[values(Mysql, Postgres)] backend: Backend) {
    let fixture = Fixture::with(backend, "a", 5).await;
    fixture.put("b", 5).await;
    let store = open_waiting(&fixture.url, 2, SOON);
    let rival = Rival::holding_stock(backend, &fixture.url).await;
    let first = start_deduction(&store, deduction("a", 1));
    until_waiting(&fixture).await;
    let second = start_deduction(&store, deduction("b", 1));
    tokio::task::yield_now().await;
    // It gets the connection on which the second one has met the lock.
    let read = store.level(&name("c"), &Warehouse::default()).await;
    assert_eq!(read.unwrap(), None);
    rival.let_go().await;
    for attempt in [first, second] {
        assert_eq!(attempt.await.unwrap().unwrap(), committed(4));
    }
}

/// The holder rolls back, so the row is as it was when the attempt was sent.
#[rstest]
#[tokio::test]
async fn attempt_that_waits_past_its_expiry_takes_nothing(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
    #[values(false, true)] with_key: bool,
) {
    let fixture = Fixture::with(backend, "a", 5).await;
    let rival = Rival::holding_stock(backend, &fixture.url).await;
    let deadline = Instant::now() + WAIT_LIMIT / 2;
    let order = if with_key {
        deduction_with_key("a", 1, "K")
    } else {
        deduction("a", 1)
    };
    let waiting = start_deduction(&fixture.store, Deduction { deadline, ..order });
    sleep_until(deadline).await;
    rival.let_go().await;
    let attempt = waiting.await.unwrap();
    assert_eq!(attempt.unwrap(), AttemptOutcome::Conflict);
    assert_eq!(fixture.level("a").await.on_hand, 5);
    assert!(fixture.audit("a").await.consistent());
}

/// The store has one connection. The next attempt on it must not commit what the refused attempt
/// wrote (MariaDB undoes only the failed statement) and must not wait for its locks.
#[rstest]
#[tokio::test]
async fn key_of_an_open_transaction_is_in_flight(#[values(Mysql, Postgres)] backend: Backend) {
    let fixture = Fixture::with(backend, "a", 5).await;
    let store = open(&fixture.url, 1);
    let mut first = Raw::recording_key(backend, &fixture.url).await;

    let with_key = deduction_with_key("a", 2, "K");
    let start = Instant::now();
    let attempt = timeout(BOUNDED, store.deduct(&with_key)).await;
    let attempt = attempt.expect("bounded");
    assert!(start.elapsed() >= WAIT_LIMIT, "{:?}", start.elapsed());
    assert_matches!(attempt, Err(StoreError::KeyInFlight(_)));

    let without_key = guarded(&store, &deduction("a", 1)).await.unwrap();
    assert_eq!(without_key, committed(4));
    assert!(fixture.audit("a").await.consistent());

    first.run("COMMIT").await.unwrap();
    let repeat = guarded(&store, &with_key).await.unwrap();
    assert_eq!(repeat, AttemptOutcome::Duplicate);
}

#[rstest]
#[tokio::test]
async fn key_of_a_rolled_back_transaction_is_free(#[values(Mysql, Postgres)] backend: Backend) {
    let fixture = Fixture::with(backend, "a", 5).await;
    let mut first = Raw::recording_key(backend, &fixture.url).await;

    let waiting = start_deduction(&fixture.store, deduction_with_key("a", 2, "K"));
    until_waiting(&fixture).await;
    first.run("ROLLBACK").await.unwrap();

    let attempt = waiting.await.unwrap().unwrap();
    assert_eq!(attempt, committed(3));
}

/// Returns when a session of the database waits for a lock.
pub(super) async fn until_waiting(fixture: &Fixture) {
    let waiting = match fixture.backend {
        Sqlite => unreachable!("SQLite has no sessions"),
        // InnoDB's own table of waits is a copy, which is renewed only if it was not read for a
        // while.
        Mysql => {
            "SELECT info FROM information_schema.processlist WHERE db = database()
             AND command IN ('Execute', 'Query') AND time_ms > 100 AND id <> connection_id()"
        }
        Postgres => {
            "SELECT query FROM pg_stat_activity
             WHERE wait_event_type = 'Lock' AND datname = current_database()"
        }
    };
    let mut observer = Raw::connect(fixture.backend, &fixture.url).await;
    until_found(&mut observer, waiting).await;
}

/// A statement that waited for a row decides by the row's new version, although the server's
/// default isolation level would abort it.
#[rstest]
#[tokio::test]
async fn waiting_statement_sees_the_new_version(#[values(Mysql, Postgres)] backend: Backend) {
    let fixture = Fixture::with(backend, "a", 5).await;
    let mut holder = Raw::connect(backend, &fixture.url).await;
    if backend == Postgres {
        let strict = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET
            default_transaction_isolation = serializable', current_database()); END $$";
        holder.run(strict).await.unwrap();
    }
    let store = open(&fixture.url, 2);
    for (is_guarded, remaining) in [(true, 3), (false, 1)] {
        holder.begin().await;
        let sale = "UPDATE stock SET on_hand = on_hand - 1, version = version + 1";
        holder.run(sale).await.unwrap();
        let deducting = Arc::clone(&store);
        let waiting = tokio::spawn(async move {
            let deduction = deduction("a", 1);
            if is_guarded {
                return deducting.deduct(&deduction).await;
            }
            deducting.deduct_locked(&deduction).await
        });
        until_waiting(&fixture).await;
        holder.run("COMMIT").await.unwrap();
        let attempt = waiting.await.unwrap().unwrap();
        assert_eq!(attempt, committed(remaining));
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_creations_succeeds(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let fixture = Fixture::new(backend).await;
    for round in 0..10 {
        let sku = format!("sku-{round}");
        let mut creators = JoinSet::new();
        // Each in another warehouse, so that no two of them write the same row.
        for creator in 0..8 {
            let change = creation(&sku, &format!("w{creator}"));
            let store = Arc::clone(&fixture.store);
            creators.spawn(async move {
                loop {
                    match store.set_level(&change).await {
                        Err(StoreError::Aborted(_) | StoreError::LockWait(_)) => {}
                        outcome => return outcome.expect("no other error"),
                    }
                }
            });
        }
        let outcomes = timeout(SOON, creators.join_all()).await.expect("soon");
        let created = |outcome: &&AttemptOutcome| matches!(outcome, AttemptOutcome::Changed(one) if one.created);
        assert_eq!(outcomes.iter().filter(created).count(), 1, "{outcomes:?}");
        let refused = |outcome: &&AttemptOutcome| {
            **outcome == AttemptOutcome::Refused(Refusal::PreconditionFailed)
        };
        assert_eq!(outcomes.iter().filter(refused).count(), 7, "{outcomes:?}");
        let levels = fixture.store.levels_of(&name(&sku)).await.unwrap();
        assert_eq!(levels.len(), 1);
    }
}

/// The other transaction has inserted the key and then wants the row; the store's transaction has
/// the row and then wants the key.
#[rstest]
#[tokio::test]
async fn deadlock_aborts_one_attempt_and_no_more(#[values(Mysql, Postgres)] backend: Backend) {
    let fixture = Fixture::with(backend, "a", 5).await;
    let mut other = Raw::connect(backend, &fixture.url).await;
    if backend == Postgres {
        // PostgreSQL looks for a deadlock once per wait, after `deadlock_timeout`. The pause lets
        // the other transaction wait first, so that the store's wait completes the deadlock.
        let setup = "CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql
                AS 'BEGIN PERFORM pg_sleep(0.5); RETURN NEW; END';
            CREATE TRIGGER pause BEFORE INSERT ON movement FOR EACH ROW
                WHEN (NEW.sku = 'a') EXECUTE FUNCTION pause();
            SET deadlock_timeout = '60s';
            DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET
                deadlock_timeout = ''10ms''', current_database()); END $$";
        other.run(setup).await.unwrap();
    }
    let store = open(&fixture.url, 1);
    other.begin().await;
    other.record_key().await;
    let waiting = start_deduction(&store, deduction_with_key("a", 2, "K"));
    if backend == Postgres {
        let pausing = "SELECT query FROM pg_stat_activity
            WHERE wait_event = 'PgSleep' AND datname = current_database()";
        let mut observer = Raw::connect(backend, &fixture.url).await;
        until_found(&mut observer, pausing).await;
    } else {
        until_waiting(&fixture).await;
    }
    let update = other.run("UPDATE stock SET on_hand = on_hand - 1, version = version + 1");
    let update = timeout(BOUNDED, update).await;
    let update = update.expect("the deadlock is found");

    let attempt = waiting.await.unwrap();
    let left = match (&attempt, &update) {
        (Err(StoreError::Aborted(_)), Ok(())) => {
            other.run("COMMIT").await.unwrap();
            4
        }
        // InnoDB aborts either of the two.
        (Ok(done), Err(_)) if backend == Mysql && *done == committed(3) => {
            other.run("ROLLBACK").await.unwrap();
            3
        }
        unexpected => panic!("{unexpected:?}"),
    };
    assert_eq!(fixture.level("a").await.on_hand, left);
    let remaining = left - 1;
    let next = guarded(&store, &deduction("a", 1)).await.unwrap();
    assert_eq!(next, committed(remaining));
}

/// Someone else has locked the table, so that even a plain read waits.
#[tokio::test]
async fn batch_that_reads_first_may_meet_a_locked_table() {
    let fixture = Fixture::with(Postgres, "a", 5).await;
    let mut other = Raw::connect(Postgres, &fixture.url).await;
    other.begin().await;
    let lock = "LOCK TABLE stock IN ACCESS EXCLUSIVE MODE";
    other.run(lock).await.unwrap();
    let batch = [deduction("a", 1), deduction("a", 1)];
    let answers = timeout(BOUNDED, fixture.store.deduct_all(&batch, true)).await;
    for answer in answers.expect("the wait is bounded") {
        assert_matches!(answer, Err(StoreError::LockWait(_)));
    }
    other.run("ROLLBACK").await.unwrap();
    assert_eq!(fixture.level("a").await.on_hand, 5);
}
