//! What a duplicate, or a deduction that is refused, leaves locked for others: nothing.

use rstest::rstest;
use stocklock::ports::{AttemptOutcome, Condition, StoreError};
use stocklock::stock::{Adjustment, RequestHash, Warehouse};
use tokio::time::timeout;

use super::fixture::{
    Fixture, Operations as _, Raw, SOON, adjustment, committed, deduction, deduction_with_key,
    idempotency, name, open, start_deduction,
};
use crate::support::proxy::Proxy;
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

/// A transaction that locks the gap in which a new key belongs does not record that key.
#[tokio::test]
async fn lock_on_the_gap_of_a_key_is_a_lock_wait() {
    let fixture = Fixture::new(Mysql).await;
    let read = fixture.put("a", 10).await;
    let mut other = Raw::connect(Mysql, &fixture.url).await;
    other.run("BEGIN").await.unwrap();
    let gap = "SELECT line FROM movement WHERE caller = 'anonymous' AND idempotency_key = 'K'
        FOR UPDATE";
    other.run(gap).await.unwrap();

    let store = &fixture.store;
    let sale = deduction_with_key("a", 1, "J");
    let hash = RequestHash::of_deduction(&sale.sku, &sale.warehouse, sale.quantity, None);
    let adjustment = Adjustment {
        idempotency: Some(idempotency("J", hash)),
        ..adjustment("a", 1)
    };
    let outcomes = [
        timeout(SOON, store.deduct(&sale)).await,
        timeout(SOON, store.deduct_locked(&sale)).await,
        timeout(
            SOON,
            store.write_back(&sale, (&read).into(), Condition::Version),
        )
        .await,
    ];
    for outcome in outcomes {
        let outcome = outcome.expect("bounded");
        let waited = matches!(outcome, Err(StoreError::LockWait(_)));
        assert!(waited, "{outcome:?}");
    }
    let adjusted = timeout(SOON, store.adjust(&adjustment)).await;
    let adjusted = adjusted.expect("bounded");
    let waited = matches!(adjusted, Err(StoreError::LockWait(_)));
    assert!(waited, "{adjusted:?}");

    other.run("ROLLBACK").await.unwrap();
    let sold = store.deduct(&sale).await;
    assert_eq!(sold.unwrap(), committed(9));
}
