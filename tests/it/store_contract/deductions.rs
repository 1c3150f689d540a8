//! The ways to deduct: what they change, what they refuse, and what they record.

use rstest::rstest;
use stocklock::ports::{AttemptOutcome, Condition, ReadLevel};
use stocklock::stock::{MovementKind, Operation, StockLevel};

use super::fixture::{
    Attempt, Fixture, MODEL, MYSQL, On, POSTGRES, SQLITE, committed, deduction, deduction_with_key,
    fence, limit_change, short,
};

/// A way to deduct, as a strategy uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Guarded,
    RowLock,
    Version,
    Fenced,
    Overwrite,
}

impl Way {
    const ALL: [Self; 5] = [
        Self::Guarded,
        Self::RowLock,
        Self::Version,
        Self::Fenced,
        Self::Overwrite,
    ];

    /// Deducts once. A way that needs a level reads it first.
    pub(super) async fn deduct(self, fixture: &Fixture, deduction: &Operation) -> Attempt {
        let store = fixture.deductions();
        let fence = fence(1, "test");
        let condition = match self {
            Self::Guarded => return store.deduct(deduction).await,
            Self::RowLock => return store.write(deduction).await,
            Self::Version => Condition::Version,
            Self::Fenced => Condition::Fence(&fence),
            Self::Overwrite => Condition::None,
        };
        let (sku, warehouse) = deduction.level();
        let read = store.level(sku, warehouse).await?;
        let read = read.expect("the level exists");
        store.write_back(deduction, (&read).into(), condition).await
    }
}

#[rstest]
#[tokio::test]
async fn every_way_takes_and_records_the_units(#[values(SQLITE, MYSQL, POSTGRES, MODEL)] on: On) {
    let fixture = Fixture::on(on).await;
    for way in Way::ALL {
        let sku = format!("{way:?}");
        let before = fixture.put(&sku, 10).await;
        let deduction = deduction_with_key(&sku, 3, &sku);

        let attempt = way.deduct(&fixture, &deduction).await.unwrap();

        assert_eq!(attempt, committed(7), "{way:?}");
        let after = fixture.level(&sku).await;
        assert_eq!((after.on_hand, after.version), (7, before.version + 1));
        let movements = fixture.movements(&sku).await;
        let [movement, received] = &movements[..] else {
            panic!("not exactly one receipt and one sale: {movements:?}");
        };
        assert_eq!(received.kind, MovementKind::Received);
        assert_eq!(movement.operation, deduction.id);
        assert_eq!(movement.kind, MovementKind::Deducted);
        assert_eq!((movement.delta, movement.available_after), (-3, 7));
        assert_eq!(movement.strategy.as_deref(), Some("single-sql"));
        let hash = deduction.idempotency.as_ref().map(|key| key.hash);
        assert_eq!(movement.request_hash, hash);
        let read_before = matches!(way, Way::Version | Way::Fenced | Way::Overwrite);
        let read = read_before.then_some(before.version);
        assert_eq!(movement.read_version, read, "{way:?}");
        assert!(fixture.audit(&sku).await.consistent());
    }
}

/// Five units are available: on hand, beyond zero, or besides three that are held.
#[rstest]
#[tokio::test]
async fn available_units_are_sold_and_no_more(
    #[values(SQLITE, MYSQL, POSTGRES, MODEL)] on: On,
    #[values(Way::Guarded, Way::RowLock)] way: Way,
    #[values((5, 0, false), (3, 2, false), (8, 0, true))] level: (i64, i64, bool),
) {
    let (on_hand, limit, is_held) = level;
    let fixture = Fixture::on(on).await;
    fixture.set(limit_change("a", on_hand, limit)).await;
    if is_held {
        fixture.hold_three("a").await;
    }
    let (sold, sold_out) = (committed(3), committed(0));
    for (quantity, expected) in [(2, sold), (4, short(3)), (3, sold_out), (1, short(0))] {
        let attempt = way.deduct(&fixture, &deduction("a", quantity)).await;
        assert_eq!(attempt.unwrap(), expected, "{quantity}");
    }
    let audit = fixture.audit("a").await;
    let sums = (audit.received, audit.sold, audit.on_hand);
    assert_eq!(sums, (on_hand, 5, on_hand - 5));
    assert_eq!(fixture.movements("a").await.len(), 3, "refusals leave none");
}

#[rstest]
#[tokio::test]
async fn overwrite_loses_an_update_and_drifts(#[values(SQLITE, MYSQL, POSTGRES, MODEL)] on: On) {
    let fixture = Fixture::on(on).await;
    let read = fixture.put("a", 10).await;
    for _ in 0..2 {
        let attempt = fixture.write_back(&read, Condition::None).await;
        assert_eq!(attempt.unwrap(), committed(9));
    }
    assert_eq!(fixture.level("a").await.on_hand, 9);
    let movements = fixture.movements("a").await;
    assert_eq!(movements[0].read_version, Some(read.version));
    assert_eq!(movements[1].read_version, Some(read.version));
    let audit = fixture.audit("a").await;
    assert_eq!((audit.sold, audit.drift(), audit.oversold()), (2, 1, 0));
}

/// The level says what the limit was when it was read, and the write sets what can be sold.
#[rstest]
#[tokio::test]
async fn overwrite_sets_the_units_that_can_be_sold(
    #[values(SQLITE, MYSQL, POSTGRES, MODEL)] on: On,
) {
    let fixture = Fixture::on(on).await;
    let read = fixture.set(limit_change("a", 0, 5)).await;
    fixture.set(limit_change("a", 4, 2)).await;
    fixture.hold_three("a").await;

    let attempt = fixture.write_back(&read, Condition::None).await;

    assert_eq!(attempt.unwrap(), committed(4));
    let level = fixture.level("a").await;
    assert_eq!((level.available(), level.on_hand, level.held), (4, 5, 3));
}

/// As after a decision on a counter, which has no version.
#[rstest]
#[tokio::test]
async fn overwrite_that_read_no_version_records_none(
    #[values(SQLITE, MYSQL, POSTGRES, MODEL)] on: On,
) {
    let fixture = Fixture::with(on, "a", 10).await;
    let read = ReadLevel {
        available: 7,
        version: None,
    };
    let sale = deduction("a", 1);
    let store = fixture.deductions();
    let attempt = store.write_back(&sale, read, Condition::None).await;
    assert_eq!(attempt.unwrap(), committed(6));
    let sale = deduction("a", 1);
    let refused = store.write_back(&sale, read, Condition::Version).await;
    assert_eq!(refused.unwrap(), AttemptOutcome::Conflict);
    let movements = fixture.movements("a").await;
    assert_eq!((movements.len(), movements[0].read_version), (2, None));
    assert_eq!(movements[0].available_after, 6);
}

#[rstest]
#[tokio::test]
async fn ledger_has_each_operation_and_key_once(#[values(SQLITE, MYSQL, POSTGRES, MODEL)] on: On) {
    let fixture = Fixture::on(on).await;
    for way in Way::ALL {
        let sku = format!("{way:?}");
        fixture.put(&sku, 10).await;
        // A repeat has the key of the first attempt, or none if that had none.
        let plain = deduction(&sku, 1);
        let keyed = deduction_with_key(&sku, 2, &sku);
        for (first, remaining) in [(&plain, 9), (&keyed, 7)] {
            let done = way.deduct(&fixture, first).await.unwrap();
            assert_eq!(done, committed(remaining));
        }
        let same_key = deduction_with_key(&sku, 5, &sku);
        for repeat in [&plain, &keyed, &same_key] {
            let attempt = way.deduct(&fixture, repeat).await.unwrap();
            assert_eq!(attempt, AttemptOutcome::Duplicate, "{way:?}");
        }

        let after = fixture.level(&sku).await;
        assert_eq!(after.on_hand, 7, "{way:?}: duplicates change nothing");
        assert!(fixture.audit(&sku).await.consistent());
        let recorded = async |sale: &Operation| {
            let key = sale.idempotency.as_ref();
            let recorded = fixture.changes().recorded(sale.level().0, sale.id, key);
            recorded.await.unwrap()
        };
        for (repeat, first) in [(&plain, &plain), (&keyed, &keyed), (&same_key, &keyed)] {
            let movement = recorded(repeat).await.expect("a movement");
            assert_eq!(movement.operation, first.id);
        }
        assert_eq!(recorded(&deduction(&sku, 1)).await, None);
    }
}

/// The level that is read after a refusal is high enough, as if it was raised in between: the
/// overwrite starts from a lower level.
#[rstest]
#[tokio::test]
async fn contradicted_refusal_is_a_conflict(#[values(SQLITE, MYSQL, POSTGRES)] on: On) {
    let fixture = Fixture::on(on).await;
    let read = fixture.put("a", 3).await;
    let read = StockLevel { on_hand: 0, ..read };
    let attempt = fixture.write_back(&read, Condition::None).await;
    assert_eq!(attempt.unwrap(), AttemptOutcome::Conflict);
    assert_eq!(fixture.movements("a").await.len(), 1);
}
