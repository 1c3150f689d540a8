//! Writes whose last message comes after the deadline of their request.

use rstest::rstest;
use stocklock::ports::{AttemptOutcome, StoreError};
use stocklock::stock::Reversal;
use stocklock_testkit::assert_matches;
use tokio::time::{Duration, Instant};

use super::fixture::{Fixture, MYSQL, On, POSTGRES, SQLITE, adjustment, deduction, level_change};

/// The deadline has passed when the last message is sent, so the database refuses it.
#[rstest]
#[tokio::test]
async fn change_after_its_deadline_is_not_made(#[values(SQLITE, MYSQL, POSTGRES)] on: On) {
    let fixture = Fixture::on(on).await;
    let store = &fixture.store;
    fixture.put("a", 5).await;
    let before = fixture.put("b", 5).await;
    let sale = deduction("a", 1);
    store.deduct(&sale).await.unwrap();
    let reversal = Reversal {
        new: adjustment("a", 0),
        sale: sale.id,
        quantity: None,
        lines: Vec::new(),
        restock: true,
    };
    let sold = store.operation(sale.id).await.unwrap();
    let reversal = reversal.of_sale(sold).unwrap();
    for mut operation in [
        level_change("b", 9),
        adjustment("b", 9),
        deduction("b", 1),
        reversal.clone(),
    ] {
        // More than any error of the clock readings.
        operation.deadline = Instant::now() - Duration::from_secs(5);
        let answer = store.write(&operation).await;
        assert_matches!(answer, Err(StoreError::Aborted(_)));
    }
    assert_eq!(fixture.level("b").await, before);
    let answer = store.write(&reversal).await;
    assert_matches!(answer, Ok(AttemptOutcome::Changed(_)));
    assert_eq!(fixture.level("a").await.on_hand, 5);
    assert!(fixture.audit("a").await.consistent());
}
