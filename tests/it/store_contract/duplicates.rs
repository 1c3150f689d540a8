//! Duplicates and refused deductions leave nothing locked. Also: when a write that waited for a lock
//! looks up its key.

use std::sync::Arc;

use rstest::rstest;
use stocklock::ports::{AttemptOutcome, Condition, StoreError};
use stocklock::stock::{Operation, Warehouse};
use stocklock_testkit::assert_matches;
use tokio::time::timeout;

use super::fixture::{
    Fixture, SOON, adjustment, committed, deduction, deduction_with_key, name, open, open_waiting,
    start_deduction,
};
use crate::support::proxy::Proxy;
use crate::support::rival::Rival;
use crate::support::services::Backend::{self, Mysql, Postgres};

/// Goal: no row and no key stays locked until the store's next message arrives.
///
/// Method: the proxy holds the message that ends the transaction, if there is one.
#[rstest]
#[tokio::test]
async fn duplicate_keeps_nothing_locked_across_a_round_trip(
    #[values(Mysql, Postgres)] backend: Backend,
) {
    let fixture = Fixture::with(backend, "hot", 10).await;
    fixture.put("other", 10).await;
    let near = &fixture.store;
    let first = deduction_with_key("hot", 1, "m-dup");
    let sold = near.deduct(&first).await;
    assert_eq!(sold.unwrap(), committed(9));

    let (proxy, url) = Proxy::before(&fixture.url).await;
    let far = open(&url, 1);
    far.level(&name("hot"), &Warehouse::default())
        .await
        .unwrap();
    let end = proxy.hold_request(b"ROLLBACK");
    let mut replay = start_deduction(&far, deduction_with_key("hot", 1, "m-dup"));
    tokio::select! {
        () = end.held() => {}
        replayed = &mut replay => {
            assert_eq!(replayed.unwrap().unwrap(), AttemptOutcome::Duplicate);
        }
    }

    let same_row = deduction("hot", 1);
    let next_key = deduction_with_key("other", 1, "m-dun");
    for (sale, remaining) in [(same_row, 8), (next_key, 9)] {
        let sold = near.deduct(&sale).await;
        assert_eq!(sold.unwrap(), committed(remaining), "{sale:?}");
    }
    for sku in ["hot", "other"] {
        assert!(fixture.audit(sku).await.consistent());
    }
}

/// Locks the gap in which new keys of an anonymous caller belong.
const LOCK_GAP: &str = "SELECT line FROM movement
    WHERE caller = 'anonymous' AND idempotency_key = 'K' FOR UPDATE";

/// A sale and an adjustment of one unit with the same new key.
fn with_new_key() -> [Operation; 2] {
    let sale = deduction_with_key("a", 1, "J");
    let adjustment = Operation {
        idempotency: sale.idempotency.clone(),
        ..adjustment("a", 1)
    };
    [sale, adjustment]
}

/// A transaction that locks the gap in which a new key belongs does not record that key.
#[tokio::test]
async fn lock_on_the_gap_of_a_key_is_a_lock_wait() {
    let fixture = Fixture::new(Mysql).await;
    let read = fixture.put("a", 10).await;
    let other = Rival::holding(Mysql, &fixture.url, LOCK_GAP).await;
    let store = &fixture.store;
    let [sale, adjustment] = with_new_key();
    let version = Condition::Version;
    let outcomes = [
        timeout(SOON, store.deduct(&sale)).await,
        timeout(SOON, store.write(&sale)).await,
        timeout(SOON, store.write_back(&sale, (&read).into(), version)).await,
        timeout(SOON, store.write(&adjustment)).await,
    ];
    for outcome in outcomes {
        assert_matches!(outcome, Ok(Err(StoreError::LockWait(_))));
    }
    other.let_go().await;
    let sold = store.deduct(&sale).await;
    assert_eq!(sold.unwrap(), committed(9));
}

/// Of two connections, one waits for rows, and is busy. The adjustment meets the lock on the other one, and
/// is made again, so no look-up of its key is needed.
#[tokio::test]
async fn write_that_is_made_again_looks_up_no_key() {
    let fixture = Fixture::with(Mysql, "a", 10).await;
    fixture.put("b", 10).await;
    let (proxy, url) = Proxy::before(&fixture.url).await;
    let look_up = proxy.cut_before(b"READ UNCOMMITTED", 10);
    let store = open_waiting(&url, 2, SOON);
    let row = Rival::holding(
        Mysql,
        &fixture.url,
        "UPDATE stock SET held = held WHERE sku = 'b'",
    )
    .await;
    let gap = Rival::holding(Mysql, &fixture.url, LOCK_GAP).await;

    let waiting = start_deduction(&store, deduction("b", 1));
    fixture.until_waiting().await;
    let [_, adjustment] = with_new_key();
    let adjusting = Arc::clone(&store);
    let adjusted = tokio::spawn(async move { adjusting.write(&adjustment).await });
    tokio::task::yield_now().await;
    // It gets the connection on which the adjustment has met the lock.
    let read = store.level(&name("c"), &Warehouse::default()).await;
    assert_eq!(read.unwrap(), None);
    gap.let_go().await;
    row.let_go().await;
    assert_eq!(waiting.await.unwrap().unwrap(), committed(9));
    adjusted.await.unwrap().unwrap();
    assert_eq!(fixture.level("a").await.on_hand, 11);
    assert_eq!(look_up.fired(), 0);
}

/// The operation with a key is refused, and the other one waits for the row.
#[tokio::test]
async fn write_that_records_no_key_looks_up_none() {
    let fixture = Fixture::with(Mysql, "a", 10).await;
    let (proxy, url) = Proxy::before(&fixture.url).await;
    let look_up = proxy.cut_before(b"READ UNCOMMITTED", 10);
    let store = open(&url, 2);
    let _row = Rival::holding_stock(Mysql, &fixture.url).await;
    let batch = [deduction_with_key("a", 11, "J"), deduction("a", 1)];
    let answers = timeout(SOON, store.write_batch(&batch, true)).await;
    let [refused, waited] = <[_; 2]>::try_from(answers.expect("bounded")).unwrap();
    let short = AttemptOutcome::Unrecorded { available: 10 };
    assert_eq!(refused.unwrap(), short);
    assert_matches!(waited, Err(StoreError::LockWait(_)));
    assert_eq!(look_up.fired(), 0);
}
