//! Writes whose last message comes after the deadline of their request.

use rstest::rstest;
use stocklock::ports::{AttemptOutcome, StoreError};
use stocklock::stock::{Adjustment, Caller, Deduction, LevelChange, OperationId, Remark, Reversal};
use tokio::time::{Duration, Instant};

use super::fixture::{
    Fixture, MYSQL, On, Operations as _, POSTGRES, SQLITE, adjustment, deduction, later,
    level_change,
};

/// The deadline has passed when the last message is sent, so the database refuses it.
#[rstest]
#[tokio::test]
async fn change_after_its_deadline_is_not_made(#[values(SQLITE, MYSQL, POSTGRES)] on: On) {
    let fixture = Fixture::on(on).await;
    let store = &fixture.store;
    let before = fixture.put("a", 5).await;
    let sale = deduction("a", 1);
    // Earlier than any error of the clock readings.
    let late = Instant::now() - Duration::from_secs(5);
    let set = LevelChange {
        deadline: late,
        ..level_change("a", 9)
    };
    let adjust = Adjustment {
        deadline: late,
        ..adjustment("a", 9)
    };
    let deduct = Deduction {
        deadline: late,
        ..deduction("a", 1)
    };
    let aborted = [
        store.set_level(&set).await.map(drop),
        store.adjust(&adjust).await.map(drop),
        store.deduct_locked(&deduct).await.map(drop),
    ];
    for answer in aborted {
        assert!(matches!(answer, Err(StoreError::Aborted(_))), "{answer:?}");
    }
    assert_eq!(fixture.level("a").await, before);

    store.deduct(&sale).await.unwrap();
    let sold = store.operation(sale.operation).await.unwrap().remove(0);
    let mut reversal = Reversal {
        operation: OperationId::mint(),
        caller: Caller::anonymous(),
        sale: sale.operation,
        quantity: None,
        lines: Vec::new(),
        restock: true,
        reason: Remark::parse("reason", "x").unwrap(),
        idempotency: None,
        deadline: late,
    };
    let answer = store.reverse(&reversal, &sold).await;
    assert!(matches!(answer, Err(StoreError::Aborted(_))), "{answer:?}");
    reversal.deadline = later();
    let answer = store.reverse(&reversal, &sold).await.unwrap();
    assert!(matches!(answer, AttemptOutcome::Changed(_)), "{answer:?}");
    assert!(fixture.audit("a").await.consistent());
}
