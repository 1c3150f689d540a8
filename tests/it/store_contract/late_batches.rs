//! Batches whose message reaches the database late, when others have changed the level, or when the
//! store has lost the connection on which it sent the message.

use std::time::Duration;

use rstest::rstest;
use stocklock::ports::{AttemptOutcome, BatchAnswer, StoreError};
use stocklock::stock::{Operation, Warehouse};
use stocklock_testkit::assert_matches;
use tokio::time::{sleep_until, timeout};

use super::fixture::{
    Fixture, Operations as _, SOON, committed, deduction, deduction_with_key, name, open,
    open_waiting,
};
use crate::support::proxy::Proxy;
use crate::support::services::Backend::{self, Mysql, Postgres};

/// A parameter of the message.
const STRATEGY: &str = "late-batch";

/// A message that arrives in time sells. One that arrives after its expiry sells nothing, although the levels
/// still have the versions that were read.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_message_sells_before_its_expiry_only(
    #[values(Mysql, Postgres)] backend: Backend,
    #[values(false, true)] in_time: bool,
    #[values("a", "b")] second: &str,
) {
    let fixture = Fixture::with(backend, "a", 5).await;
    fixture.put("b", 5).await;
    let (proxy, url) = Proxy::before(&fixture.url).await;
    let wait_limit = Duration::from_secs(if in_time { 10 } else { 1 });
    let far = open_waiting(&url, 1, wait_limit);
    far.level(&name("a"), &Warehouse::default()).await.unwrap();
    let orders = [deduction_with_key("a", 1, "K"), deduction(second, 2)];
    let orders = orders.map(|order| Operation {
        strategy: Some(STRATEGY),
        ..order
    });
    // Two levels share a transaction.
    let is_shared = second == "b";
    let send = async || -> Vec<Option<BatchAnswer>> {
        if !is_shared {
            let answers = far.write_batch(&orders, false).await.into_iter();
            return answers.map(Some).collect();
        }
        let batches = orders.clone().map(|order| vec![order]);
        let answers = far.deduct_levels(&batches).await.into_iter();
        answers
            .map(|level| level.map(|mut batch| batch.remove(0)))
            .collect()
    };
    let hold = proxy.hold_and_cut(STRATEGY.as_bytes());
    for answer in send().await {
        let Some(Err(StoreError::OutcomeUnknown(_, expiry))) = answer else {
            panic!("{answer:?}");
        };
        if !in_time {
            sleep_until(expiry.here + Duration::from_millis(100)).await;
        }
    }
    hold.deliver().await;
    for order in &orders {
        let movements = fixture.movements(order.level().0.as_str()).await;
        let is_sold = movements.iter().any(|one| one.operation == order.id);
        assert_eq!(is_sold, in_time, "{order:?}");
    }

    for (answer, order) in send().await.into_iter().zip(&orders) {
        match answer.map(|answer| answer.expect("no error")) {
            // It is found in the ledger, and a shared transaction leaves it out.
            Some(AttemptOutcome::Recorded(movement)) if in_time && !is_shared => {
                assert_eq!(movement.operation, order.id);
            }
            None if in_time && is_shared => {}
            sold => assert_matches!(sold, Some(AttemptOutcome::Deducted { .. }) if !in_time),
        }
    }
    for sku in ["a", second] {
        fixture.assert_in_order(sku).await;
    }
    let left = if is_shared { 4 } else { 2 };
    assert_eq!(fixture.level("a").await.on_hand, left);
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
    let batch = [2, 4].map(|units| Operation {
        strategy: Some(STRATEGY),
        ..deduction("a", units)
    });
    let batch = tokio::spawn(async move { far.write_batch(&batch, true).await });
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

/// Goal: a sale whose COMMIT had no answer is not refused because the repeat beside it cannot be answered now.
///
/// Method: PostgreSQL's answer is lost, and no new connection is possible. The look for a standby needs one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeat_leaves_the_unknown_outcome_of_others() {
    let fixture = Fixture::with(Postgres, "a", 5).await;
    let (proxy, url) = Proxy::before(&fixture.url).await;
    let far = open_waiting(&url, 1, Duration::from_secs(1));
    let first = [deduction_with_key("a", 1, "K")];
    let first = far.write_batch(&first, false).await;
    assert_matches!(&first[..], [Ok(AttemptOutcome::Deducted { .. })]);
    let lost = proxy.cut_after(STRATEGY.as_bytes(), 1);
    let _refused = proxy.cut_before(b"application_name", u32::MAX);
    let orders = [deduction_with_key("a", 1, "K"), deduction("a", 1)];
    let orders = orders.map(|order| Operation {
        strategy: Some(STRATEGY),
        ..order
    });
    for answer in far.write_batch(&orders, true).await {
        assert_matches!(answer, Err(StoreError::OutcomeUnknown(..)));
    }
    assert_eq!(lost.fired(), 1);
    let movements = fixture.movements("a").await;
    assert!(movements.iter().any(|one| one.operation == orders[1].id));
}
