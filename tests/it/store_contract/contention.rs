//! Concurrent operations on one row, on one key, and on one SKU that does not exist yet.

use std::sync::Arc;
use std::time::Duration;

use rstest::rstest;
use stocklock::ports::{AttemptOutcome, StoreError};
use stocklock::stock::{Operation, Precondition, Refusal, Warehouse};
use stocklock_testkit::assert_matches;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::fixture::{
    Fixture, Raw, SOON, WAIT_LIMIT, committed, creation, deduction, deduction_with_key,
    level_change, name, open, open_waiting, setting, start_deduction,
};
use crate::support::rival::{Rival, until_found};
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

/// Most time that a wait of one second may take on a busy machine.
const BOUNDED: Duration = Duration::from_secs(12);

/// Of two connections, one waits for rows. A write that meets a lock on the other one is made again on it.
#[rstest]
#[tokio::test]
async fn write_that_met_a_lock_waits_for_its_row(#[values(Mysql, Postgres)] backend: Backend) {
    let fixture = Fixture::with(backend, "a", 5).await;
    fixture.put("b", 5).await;
    let store = open_waiting(&fixture.url, 2, SOON);
    let rival = Rival::holding_stock(backend, &fixture.url).await;
    let first = start_deduction(&store, deduction("a", 1));
    fixture.until_waiting().await;
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
    let waiting = start_deduction(&fixture.store, Operation { deadline, ..order });
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

    let without_key = store.deduct(&deduction("a", 1)).await.unwrap();
    assert_eq!(without_key, committed(4));
    assert!(fixture.audit("a").await.consistent());

    first.run("COMMIT").await.unwrap();
    let repeat = store.deduct(&with_key).await.unwrap();
    assert_eq!(repeat, AttemptOutcome::Duplicate);
}

#[rstest]
#[tokio::test]
async fn key_of_a_rolled_back_transaction_is_free(#[values(Mysql, Postgres)] backend: Backend) {
    let fixture = Fixture::with(backend, "a", 5).await;
    let mut first = Raw::recording_key(backend, &fixture.url).await;

    let waiting = start_deduction(&fixture.store, deduction_with_key("a", 2, "K"));
    fixture.until_waiting().await;
    first.run("ROLLBACK").await.unwrap();

    let attempt = waiting.await.unwrap().unwrap();
    assert_eq!(attempt, committed(3));
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
            deducting.write(&deduction).await
        });
        fixture.until_waiting().await;
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
                    match store.write(&change).await {
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
        fixture.until_waiting().await;
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
    let next = store.deduct(&deduction("a", 1)).await.unwrap();
    assert_eq!(next, committed(remaining));
}

/// Someone else has locked the table, so that even a plain read waits.
#[tokio::test]
async fn batch_that_reads_first_may_meet_a_locked_table() {
    let fixture = Fixture::with(Postgres, "a", 5).await;
    let lock = "LOCK TABLE stock IN ACCESS EXCLUSIVE MODE";
    let other = Rival::holding(Postgres, &fixture.url, lock).await;
    let batch = [deduction("a", 1), deduction("a", 1)];
    let answers = timeout(BOUNDED, fixture.store.write_batch(&batch, true)).await;
    for answer in answers.expect("the wait is bounded") {
        assert_matches!(answer, Err(StoreError::LockWait(_)));
    }
    other.let_go().await;
    assert_eq!(fixture.level("a").await.on_hand, 5);
}

/// The unique index of the numbers would only refuse what was computed from the level before the sale.
#[rstest]
#[tokio::test]
async fn level_change_counts_a_sale_that_it_waits_for(#[values(Mysql, Postgres)] backend: Backend) {
    let fixture = Fixture::with(backend, "a", 5).await;
    let mut sale = Raw::connect(backend, &fixture.url).await;
    sale.begin().await;
    for statement in [
        "UPDATE stock SET on_hand = on_hand - 1, version = version + 1",
        "INSERT INTO movement SELECT * FROM (SELECT operation_id, 1 AS line, sku, warehouse,
                'deducted' AS kind, -1 AS delta, 0 AS held_delta, 4 AS available_after,
                2 AS level_version, read_version, strategy, caller, idempotency_key, request_hash,
                reason, reference, reverses, returned, created_at
            FROM movement) AS sold",
    ] {
        sale.run(statement).await.unwrap();
    }
    let store = Arc::clone(&fixture.store);
    let mut change = level_change("a", 9);
    setting(&mut change).precondition = Some(Precondition::Exists);
    let waiting = tokio::spawn(async move { store.write(&change).await });
    fixture.until_waiting().await;
    sale.run("COMMIT").await.unwrap();
    let outcome = waiting.await.unwrap();
    assert_matches!(outcome, Ok(AttemptOutcome::Changed(_)));
    let audit = fixture.audit("a").await;
    assert!(audit.consistent(), "{audit:?}");
    assert_eq!(audit.on_hand, 9);
}
