//! Changes that are not sales: to set a level, and to adjust it.

use rstest::rstest;
use stocklock::ports::{AttemptOutcome, Condition, Refusal};
use stocklock::stock::{
    Adjustment, LevelChange, Precondition, Remark, RequestHash, Revision, Scope, StockLevel,
};

use stocklock_testkit::assert_matches;
use tokio::time::timeout;

use super::deductions::Way;
use super::fixture::{
    Fixture, MODEL, MYSQL, On, Operations as _, POSTGRES, SOON, SQLITE, adjustment, committed,
    deduction, idempotency, level_change, name, place,
};
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

/// The level after a change, which must succeed, and whether the change created it.
#[track_caller]
fn done(change: AttemptOutcome) -> (StockLevel, bool) {
    match change {
        AttemptOutcome::Changed(changed) => (changed.level, changed.created),
        refused => panic!("{refused:?}"),
    }
}

/// A change of an existing level in any state.
fn set_existing(sku: &str, on_hand: i64) -> LevelChange {
    LevelChange {
        precondition: Some(Precondition::Exists),
        ..level_change(sku, on_hand)
    }
}

#[rstest]
#[tokio::test]
async fn set_level_creates_once_and_then_changes(#[values(SQLITE, MYSQL, POSTGRES, MODEL)] on: On) {
    let fixture = Fixture::on(on).await;
    let first = LevelChange {
        reason: Some(Remark::parse("reason", "opening stock 开业").unwrap()),
        ..level_change("a", 10)
    };
    let (level, created) = done(fixture.changes().set_level(&first).await.unwrap());
    assert!(created);
    assert_eq!(level.on_hand, 10);
    assert_eq!(level, fixture.level("a").await);

    let second = LevelChange {
        backorder_limit: Some(3),
        ..set_existing("a", 4)
    };
    let next_version = level.version + 1;
    let (level, created) = done(fixture.changes().set_level(&second).await.unwrap());
    assert!(!created);
    assert_eq!((level.on_hand, level.version), (4, next_version));
    assert_eq!(level.backorder_limit, 3);
    assert_eq!(level, fixture.level("a").await);

    // A change without a limit keeps the limit.
    assert_eq!(fixture.put("a", 5).await.backorder_limit, 3);
    let movements = fixture.movements("a").await;
    let recorded = movements.iter().map(|m| (m.kind.as_str(), m.delta));
    let expected = [("received", 1), ("adjusted", -6), ("received", 10)];
    assert_eq!(recorded.collect::<Vec<_>>(), expected);
    assert_eq!(movements[2].remarks.texts()[0], Some("opening stock 开业"));
    assert!(fixture.audit("a").await.consistent());

    let repeat = fixture.changes().set_level(&second).await.unwrap();
    assert_eq!(repeat, AttemptOutcome::Duplicate);
    assert_eq!(fixture.level("a").await.on_hand, 5);
}

#[rstest]
#[tokio::test]
async fn failed_precondition_changes_nothing(#[values(SQLITE, MYSQL, POSTGRES, MODEL)] on: On) {
    let fixture = Fixture::on(on).await;
    let set = async |precondition: Precondition| {
        let change = LevelChange {
            precondition: Some(precondition),
            ..level_change("a", 7)
        };
        fixture.changes().set_level(&change).await.unwrap()
    };
    let revision = async || Revision::of(&fixture.levels_of("a").await);
    let failed = AttemptOutcome::Refused(Refusal::PreconditionFailed);
    assert_eq!(set(Precondition::Exists).await, failed);
    done(set(Precondition::Absent).await);
    assert_eq!(set(Precondition::Absent).await, failed);

    let old = revision().await;
    let sold = Way::Guarded.deduct(&fixture, &deduction("a", 1)).await;
    assert_eq!(sold.unwrap(), committed(6));
    let current = revision().await;
    assert_ne!(old, current, "a sale changes the revision");
    assert_eq!(set(Precondition::OneOf(vec![old.clone()])).await, failed);
    assert_eq!(fixture.level("a").await.on_hand, 6);
    let (_, created) = done(set(Precondition::OneOf(vec![old, current])).await);
    assert!(!created);
    done(set(Precondition::Exists).await);
}

/// The sold units must not come back.
#[rstest]
#[tokio::test]
async fn units_of_changed_level_need_precondition(
    #[values(SQLITE, MYSQL, POSTGRES, MODEL)] on: On,
) {
    let fixture = Fixture::on(on).await;
    let store = fixture.changes();
    let limit_only = LevelChange {
        on_hand: None,
        backorder_limit: Some(2),
        ..level_change("a", 0)
    };
    let missing = store.set_level(&limit_only).await.unwrap();
    assert_eq!(missing, AttemptOutcome::UnknownSku);
    fixture.put("a", 7).await;
    let sold = Way::Guarded.deduct(&fixture, &deduction("a", 3)).await;
    assert_eq!(sold.unwrap(), committed(4));

    let blind = LevelChange {
        on_hand: Some(7),
        ..limit_only.clone()
    };
    let refused = store.set_level(&blind).await.unwrap();
    assert_eq!(
        refused,
        AttemptOutcome::Refused(Refusal::PreconditionRequired)
    );
    assert_eq!(fixture.level("a").await.on_hand, 4);
    let (level, created) = done(store.set_level(&limit_only).await.unwrap());
    assert_eq!((level.on_hand, level.available(), created), (4, 6, false));
    let audit = fixture.audit("a").await;
    assert_eq!((audit.received, audit.sold), (7, 3));
    assert!(audit.consistent());
    let (level, _) = done(store.set_level(&set_existing("a", 7)).await.unwrap());
    assert_eq!(level.on_hand, 7);
}

#[rstest]
#[tokio::test]
async fn change_that_changes_nothing_writes_nothing(
    #[values(SQLITE, MYSQL, POSTGRES, MODEL)] on: On,
) {
    let fixture = Fixture::with(on, "a", 10).await;
    let with_limit = LevelChange {
        backorder_limit: Some(3),
        ..set_existing("a", 10)
    };
    let (before, _) = done(fixture.changes().set_level(&with_limit).await.unwrap());
    let same = || LevelChange {
        operation: level_change("a", 0).operation,
        ..with_limit.clone()
    };
    let empty = LevelChange {
        on_hand: None,
        ..level_change("a", 0)
    };
    for change in [same(), set_existing("a", 10), empty] {
        let (level, created) = done(fixture.changes().set_level(&change).await.unwrap());
        assert_eq!((&level, created), (&before, false));
    }
    assert_eq!(fixture.level("a").await, before);
    assert_eq!(fixture.movements("a").await.len(), 2);
}

#[rstest]
#[tokio::test]
async fn precondition_can_cover_one_level(#[values(SQLITE, MYSQL, POSTGRES, MODEL)] on: On) {
    let fixture = Fixture::on(on).await;
    let set = async |warehouse, on_hand, precondition| {
        let change = LevelChange {
            warehouse: place(warehouse),
            precondition: Some(precondition),
            scope: Scope::Level,
            ..level_change("a", on_hand)
        };
        fixture.changes().set_level(&change).await.unwrap()
    };
    let (failed, absent) = (
        AttemptOutcome::Refused(Refusal::PreconditionFailed),
        Precondition::Absent,
    );
    let (main, _) = done(set("main", 1, absent.clone()).await);
    assert_eq!(set("east", 1, Precondition::Exists).await, failed);
    let (_, created) = done(set("east", 1, absent.clone()).await);
    assert!(created);
    assert_eq!(set("east", 2, absent).await, failed);

    let main = fixture.changes().level(&main.sku, &main.warehouse).await;
    let of_main = Revision::of(&[main.unwrap().expect("a level")]);
    done(set("east", 2, Precondition::Exists).await);
    // The other warehouse was changed in between.
    let of_sku = Revision::of(&fixture.levels_of("a").await);
    done(set("main", 2, Precondition::OneOf(vec![of_main.clone()])).await);
    let stale = Precondition::OneOf(vec![of_main, of_sku]);
    assert_eq!(set("main", 3, stale).await, failed);
    let of_sku = Revision::of(&fixture.levels_of("a").await);
    done(set("main", 3, Precondition::OneOf(vec![of_sku])).await);
}

#[rstest]
#[tokio::test]
async fn level_outside_its_limits_is_refused(#[values(SQLITE, MYSQL, POSTGRES, MODEL)] on: On) {
    let fixture = Fixture::with(on, "a", 1).await;
    let below = LevelChange {
        backorder_limit: Some(2),
        ..set_existing("a", -3)
    };
    let refused = fixture.changes().set_level(&below).await.unwrap();
    assert_eq!(refused, AttemptOutcome::Refused(Refusal::BelowLimit));
    let too_large = set_existing("a", 1_000_000_000_001);
    let refused = fixture.changes().set_level(&too_large).await.unwrap();
    assert_eq!(refused, AttemptOutcome::Refused(Refusal::TooLarge));
    let largest = fixture.put("a", 1_000_000_000_000).await;
    let more = fixture.changes().adjust(&adjustment("a", 1)).await.unwrap();
    assert_eq!(more, AttemptOutcome::Refused(Refusal::TooLarge));
    assert_eq!(fixture.level("a").await, largest);
    assert_eq!(fixture.movements("a").await.len(), 2);
}

#[rstest]
#[tokio::test]
async fn adjustment_takes_down_to_the_limit(#[values(SQLITE, MYSQL, POSTGRES, MODEL)] on: On) {
    let fixture = Fixture::on(on).await;
    let unknown = fixture.changes().adjust(&adjustment("a", 1)).await.unwrap();
    assert_eq!(unknown, AttemptOutcome::UnknownSku);
    fixture.put("a", 2).await;
    let with_reference = Adjustment {
        reference: Some(Remark::parse("reference", "PO-17").unwrap()),
        ..adjustment("a", 5)
    };
    for (adjustment, on_hand) in [(with_reference, 7), (adjustment("a", -7), 0)] {
        let (level, created) = done(fixture.changes().adjust(&adjustment).await.unwrap());
        assert_eq!((level.on_hand, created), (on_hand, false));
        assert_eq!(level, fixture.level("a").await);
    }
    let refused = fixture
        .changes()
        .adjust(&adjustment("a", -1))
        .await
        .unwrap();
    assert_eq!(refused, AttemptOutcome::Insufficient { available: 0 });
    assert_eq!(fixture.level("a").await.on_hand, 0);

    let movements = fixture.movements("a").await;
    let expected = [
        ("adjusted", -7, 0, None),
        ("received", 5, 7, Some("PO-17")),
        ("received", 2, 2, None),
    ];
    assert_eq!(movements.len(), expected.len());
    for (movement, expected) in movements.iter().zip(expected) {
        let (kind, reference) = (movement.kind.as_str(), movement.remarks.texts()[1]);
        let found = (kind, movement.delta, movement.available_after, reference);
        assert_eq!(found, expected);
    }
    assert!(fixture.audit("a").await.consistent());
}

#[rstest]
#[tokio::test]
async fn adjustment_with_a_key_is_made_once(#[values(SQLITE, MYSQL, POSTGRES, MODEL)] on: On) {
    let fixture = Fixture::on(on).await;
    let store = fixture.changes();
    fixture.put("a", 2).await;
    let hash = RequestHash::of_adjustment(&name("a"), &place("main"), 5, "count", None);
    let with_key = || Adjustment {
        idempotency: Some(idempotency("receipt-1", hash)),
        ..adjustment("a", 5)
    };
    let (first, repeat) = (with_key(), with_key());
    done(store.adjust(&first).await.unwrap());
    let again = store.adjust(&repeat).await.unwrap();
    assert_eq!(again, AttemptOutcome::Duplicate);
    assert_eq!(fixture.level("a").await.on_hand, 7);
    let recorded = store.recorded(&repeat.sku, repeat.operation, repeat.idempotency.as_ref());
    let recorded = recorded.await.unwrap().expect("a movement");
    assert_eq!(recorded.operation, first.operation);
    assert_eq!(recorded.request_hash, Some(hash));
    assert_eq!(fixture.movements("a").await.len(), 2);
}

/// The level that is read after a refusal is high enough, as if it was raised in between: the
/// overwrite starts from a lower level.
#[rstest]
#[tokio::test]
async fn contradicted_refusal_is_a_conflict(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let fixture = Fixture::new(backend).await;
    let read = fixture.put("a", 3).await;
    let read = StockLevel { on_hand: 0, ..read };
    let attempt = fixture.write_back(&read, Condition::None).await;
    assert_eq!(attempt.unwrap(), AttemptOutcome::Conflict);
    assert_eq!(fixture.movements("a").await.len(), 1);
}

/// The rules of an adjustment need the level.
#[rstest]
#[tokio::test]
async fn deductions_and_others_share_a_batch(
    #[values(SQLITE, MYSQL, POSTGRES, MODEL)] on: On,
    #[values(false, true)] read_first: bool,
) {
    let fixture = Fixture::with(on, "a", 1).await;
    let batch = [
        deduction("a", 1).into(),
        adjustment("a", 2).into(),
        deduction("a", 2).into(),
        adjustment("a", -1).into(),
    ];
    let answers = fixture.deductions().write_batch(&batch, read_first);
    let answers = timeout(SOON, answers).await.expect("bounded");
    let answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
    let [first, added, second, short] = &answers[..] else {
        panic!("{answers:?}")
    };
    assert_eq!((first, second), (&committed(0), &committed(0)));
    assert_matches!(added, AttemptOutcome::Changed(_));
    assert_eq!(*short, AttemptOutcome::Unrecorded { available: 0 });
    assert_eq!(fixture.assert_in_order("a").await.len(), 4);
}
