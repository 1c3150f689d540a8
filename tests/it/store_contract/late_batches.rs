//! Batches whose message reaches the database late, when others have changed the level, or when the
//! store has lost the connection on which it sent the message.

use std::time::Duration;

use rstest::rstest;
use stocklock::ports::{AttemptOutcome, StoreError};
use stocklock::stock::{Deduction, Warehouse};
use tokio::time::{sleep_until, timeout};

use super::fixture::{
    Fixture, Operations as _, SOON, committed, deduction, deduction_with_key, name, open,
    open_waiting,
};
use crate::support::proxy::Proxy;
use crate::support::services::Backend::{self, Mysql, Postgres};

/// A parameter of the message.
const STRATEGY: &str = "late-batch";

/// A message that arrives in time sells, and the same batch is then found in the ledger. A message
/// after its expiry sells nothing, although the level still has the version that was read.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_batch_sells_before_its_expiry_only(
    #[values(Mysql, Postgres)] backend: Backend,
    #[values(false, true)] in_time: bool,
) {
    let fixture = Fixture::with(backend, "a", 5).await;
    let (proxy, url) = Proxy::before(&fixture.url).await;
    let wait_limit = Duration::from_secs(if in_time { 10 } else { 1 });
    let far = open_waiting(&url, 1, wait_limit);
    let (sku, main) = (name("a"), Warehouse::default());
    far.level(&sku, &main).await.unwrap();
    let batch = [deduction_with_key("a", 1, "K"), deduction("a", 2)];
    let batch = batch.map(|order| Deduction {
        strategy: STRATEGY,
        ..order
    });
    let hold = proxy.hold_and_cut(STRATEGY.as_bytes());
    let mut expired_at = None;
    for answer in far.deduct_all(&batch, false).await {
        match answer {
            Err(StoreError::OutcomeUnknown(_, expiry)) => expired_at = Some(expiry.here),
            known => panic!("{known:?}"),
        }
    }
    if !in_time {
        let expired_at = expired_at.expect("two answers");
        sleep_until(expired_at + Duration::from_millis(100)).await;
    }
    hold.deliver().await;
    let sold = fixture.movements("a").await.len() - 1;
    assert_eq!(sold, if in_time { 2 } else { 0 });

    let again = far.deduct_all(&batch, false).await;
    for ((answer, order), remaining) in again.into_iter().zip(&batch).zip([4, 2]) {
        match answer.expect("no error") {
            AttemptOutcome::Recorded(movement) if in_time => {
                assert_eq!(movement.operation, order.operation);
                assert_eq!(movement.available_after, remaining);
            }
            sold => assert_eq!(sold, committed(remaining)),
        }
    }
    assert_eq!(fixture.assert_in_order("a").await.len(), 3);
}

/// Another replica changes the level between the read and the write: the batch is decided again, on the
/// new level. If it were not, it would sell too much, or refuse what is there.
#[rstest]
#[case::sold(1, [AttemptOutcome::Unrecorded { available: 1 }, AttemptOutcome::Unrecorded { available: 1 }])]
#[case::restocked(8, [committed(6), committed(2)])]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn level_that_changes_after_the_read_is_read_again(
    #[values(Mysql, Postgres)] backend: Backend,
    #[case] on_hand: i64,
    #[case] expected: [AttemptOutcome; 2],
) {
    let fixture = Fixture::with(backend, "a", 3).await;
    let (proxy, url) = Proxy::before(&fixture.url).await;
    let far = open(&url, 1);
    let (sku, main) = (name("a"), Warehouse::default());
    far.level(&sku, &main).await.unwrap();
    let hold = proxy.hold_request(STRATEGY.as_bytes());
    let batch = [2, 4].map(|units| Deduction {
        strategy: STRATEGY,
        ..deduction("a", units)
    });
    let batch = tokio::spawn(async move { far.deduct_all(&batch, true).await });
    hold.held().await;
    fixture.put("a", on_hand).await;
    hold.let_go();
    let answers = timeout(SOON, batch).await.expect("soon").unwrap();
    let answers: Vec<_> = answers
        .into_iter()
        .map(|one| one.expect("no error"))
        .collect();
    assert_eq!(answers, expected);
    assert!(fixture.audit("a").await.consistent());
}
