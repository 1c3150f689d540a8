//! Changes that are not sales: setting a level, and adjusting it.

use rstest::rstest;
use stocklock::stock::{
    Adjustment, Home, LevelChange, MovementKind, Precondition, Reason, Reference, RequestHash,
    Revision, StockLevel,
};
use stocklock::store::{Attempt, Change};

use super::deductions::Way;
use super::fixture::{
    Fixture, On, Raw, adjustment, creation, deduction, idempotency, level_change, name, place,
};
use crate::support::services::Backend;
use crate::support::services::Backend::{Mysql, Postgres, Sqlite};

#[rstest]
#[tokio::test]
async fn setting_a_level_creates_it_once_and_then_changes_it(
    #[values(On::SQLITE, On::MYSQL, On::POSTGRES, On::REDIS)] on: On,
) {
    let fixture = Fixture::on(on).await;
    let reason = Some(Reason::parse("opening stock 开业").unwrap());
    let first = LevelChange {
        reason,
        home: Some(on.home()),
        ..level_change("a", 10)
    };
    let created = fixture.store.set_level(&first).await.unwrap();
    let Change::Done { level, created } = created else {
        panic!("{created:?}");
    };
    assert!(created);
    assert_eq!((level.on_hand, level.home), (10, on.home()));
    let first_version = level.version;
    assert_eq!(level, fixture.level("a").await);

    let second = LevelChange {
        backorder_limit: Some(3),
        ..level_change("a", 4)
    };
    let changed = fixture.store.set_level(&second).await.unwrap();
    let Change::Done { level, created } = changed else {
        panic!("{changed:?}");
    };
    assert!(!created);
    assert_eq!(
        (level.on_hand, level.backorder_limit, level.version),
        (4, 3, first_version + 1)
    );
    assert_eq!(level, fixture.level("a").await);

    // A limit that is not named stays.
    assert_eq!(fixture.put("a", 5).await.backorder_limit, 3);
    let movements = fixture.movements("a").await;
    let recorded: Vec<_> = movements.iter().map(|m| (m.kind, m.delta)).collect();
    assert_eq!(
        recorded,
        [
            (MovementKind::Received, 1),
            (MovementKind::Adjusted, -6),
            (MovementKind::Received, 10)
        ]
    );
    assert_eq!(movements[2].reason.as_deref(), Some("opening stock 开业"));
    assert!(fixture.audit("a").await.consistent());

    let repeat = fixture.store.set_level(&second).await.unwrap();
    assert_eq!(repeat, Change::Duplicate);
    assert_eq!(fixture.level("a").await.on_hand, 5);
}

#[rstest]
#[tokio::test]
async fn a_precondition_that_does_not_hold_changes_nothing(
    #[values(On::SQLITE, On::MYSQL, On::POSTGRES, On::REDIS)] on: On,
) {
    let fixture = Fixture::on(on).await;
    let set = async |precondition: Precondition| {
        let change = LevelChange {
            precondition: Some(precondition),
            home: Some(on.home()),
            ..level_change("a", 7)
        };
        fixture.store.set_level(&change).await.unwrap()
    };
    assert_eq!(set(Precondition::Exists).await, Change::PreconditionFailed);
    assert!(matches!(
        set(Precondition::Absent).await,
        Change::Done { .. }
    ));
    assert_eq!(set(Precondition::Absent).await, Change::PreconditionFailed);

    let seen = Revision::of(&fixture.store.levels_of(&name("a")).await.unwrap());
    let [way, _] = Way::deciding(on);
    let sold = way.deduct(&fixture, &deduction("a", 1)).await;
    assert_eq!(sold.unwrap(), on.done(6));
    let now = Revision::of(&fixture.store.levels_of(&name("a")).await.unwrap());
    assert_ne!(seen, now, "a sale moves the revision");
    assert_eq!(
        set(Precondition::OneOf(vec![seen.clone()])).await,
        Change::PreconditionFailed
    );
    assert_eq!(fixture.level("a").await.on_hand, 6);
    let current = Precondition::OneOf(vec![seen, now]);
    assert!(matches!(
        set(current).await,
        Change::Done { created: false, .. }
    ));
    assert!(matches!(
        set(Precondition::Exists).await,
        Change::Done { .. }
    ));
}

#[rstest]
#[tokio::test]
async fn a_sku_has_one_home_in_all_its_warehouses(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let fixture = Fixture::new(backend).await;
    fixture.set(creation("a", "main", Home::Redis)).await;
    let elsewhere = LevelChange {
        precondition: None,
        ..creation("a", "east", Home::Sql)
    };
    let refused = fixture.store.set_level(&elsewhere).await.unwrap();
    assert_eq!(refused, Change::WrongHome(Home::Redis));
    let unnamed = LevelChange {
        home: None,
        ..elsewhere
    };
    let created = fixture.store.set_level(&unnamed).await.unwrap();
    assert!(
        matches!(&created, Change::Done { level, created: true } if level.home == Home::Redis),
        "{created:?}"
    );
    // Its level is a mirror: SQL may create it, but not set it.
    let refused = fixture
        .store
        .set_level(&level_change("a", 5))
        .await
        .unwrap();
    assert_eq!(refused, Change::WrongHome(Home::Redis));
    let refused = fixture.store.adjust(&adjustment("a", 1)).await.unwrap();
    assert_eq!(refused, Change::WrongHome(Home::Redis));
}

#[rstest]
#[tokio::test]
async fn a_level_below_its_limit_or_beyond_a_counter_is_refused(
    #[values(On::SQLITE, On::MYSQL, On::POSTGRES, On::REDIS)] on: On,
) {
    let fixture = Fixture::on(on).await;
    fixture.put("a", 1).await;
    let below = LevelChange {
        backorder_limit: Some(2),
        ..level_change("a", -3)
    };
    let refused = fixture.store.set_level(&below).await.unwrap();
    assert_eq!(refused, Change::BelowLimit { available: 1 });
    let too_large = level_change("a", 1_000_000_000_001);
    assert_eq!(
        fixture.store.set_level(&too_large).await.unwrap(),
        Change::TooLarge
    );
    let largest = fixture.put("a", 1_000_000_000_000).await;
    let more = fixture.store.adjust(&adjustment("a", 1)).await.unwrap();
    assert_eq!(more, Change::TooLarge);
    assert_eq!(fixture.level("a").await, largest);
    assert_eq!(fixture.movements("a").await.len(), 2);
}

#[rstest]
#[tokio::test]
async fn adjusting_adds_and_takes_down_to_the_limit(
    #[values(On::SQLITE, On::MYSQL, On::POSTGRES, On::REDIS)] on: On,
) {
    let fixture = Fixture::on(on).await;
    let unknown = fixture.store.adjust(&adjustment("a", 1)).await.unwrap();
    assert_eq!(unknown, Change::UnknownSku);
    fixture.put("a", 2).await;
    let with_reference = Adjustment {
        reference: Some(Reference::parse("PO-17").unwrap()),
        ..adjustment("a", 5)
    };
    for (adjustment, on_hand) in [(with_reference, 7), (adjustment("a", -7), 0)] {
        let done = fixture.store.adjust(&adjustment).await.unwrap();
        let Change::Done { level, created } = done else {
            panic!("{done:?}");
        };
        assert_eq!((level.on_hand, created), (on_hand, false));
        assert_eq!(level, fixture.level("a").await);
    }
    let refused = fixture.store.adjust(&adjustment("a", -1)).await.unwrap();
    assert_eq!(refused, Change::BelowLimit { available: 0 });
    assert_eq!(fixture.level("a").await.on_hand, 0);

    let movements = fixture.movements("a").await;
    let recorded: Vec<_> = movements
        .iter()
        .map(|m| (m.kind, m.delta, m.available_after, m.reference.as_deref()))
        .collect();
    assert_eq!(
        recorded,
        [
            (MovementKind::Adjusted, -7, 0, None),
            (MovementKind::Received, 5, 7, Some("PO-17")),
            (MovementKind::Received, 2, 2, None)
        ]
    );
    assert!(fixture.audit("a").await.consistent());
}

#[rstest]
#[tokio::test]
async fn an_adjustment_with_a_key_is_made_once(
    #[values(On::SQLITE, On::MYSQL, On::POSTGRES, On::REDIS)] on: On,
) {
    let fixture = Fixture::on(on).await;
    fixture.put("a", 2).await;
    let hash = RequestHash::of_adjustment(&name("a"), &place("main"), 5, "count", None);
    let with_key = || Adjustment {
        idempotency: Some(idempotency("receipt-1", hash)),
        ..adjustment("a", 5)
    };
    let (first, repeat) = (with_key(), with_key());
    assert!(matches!(
        fixture.store.adjust(&first).await,
        Ok(Change::Done { .. })
    ));
    assert_eq!(
        fixture.store.adjust(&repeat).await.unwrap(),
        Change::Duplicate
    );
    assert_eq!(fixture.level("a").await.on_hand, 7);
    let recorded = fixture
        .store
        .recorded(&repeat.sku, repeat.operation, repeat.idempotency.as_ref())
        .await
        .unwrap()
        .expect("recorded");
    assert_eq!(recorded.operation, first.operation);
    assert_eq!(recorded.request_hash, Some(hash));
    assert_eq!(fixture.movements("a").await.len(), 2);
}

/// The statement is refused, and the level that is read afterwards suffices, as when somebody
/// restocks in between: here by a constraint that knows more than the level tells, and by a write
/// that follows from less than there is.
#[rstest]
#[tokio::test]
async fn a_refusal_that_the_level_contradicts_is_no_answer(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let fixture = Fixture::new(backend).await;
    let mut raw = Raw::connect(backend, &fixture.url).await;
    let tighter = match backend {
        Sqlite => {
            "DROP TABLE stock; CREATE TABLE stock (sku text, warehouse text, on_hand integer,
             held integer DEFAULT 0, backorder_limit integer, version integer, home text,
             CHECK (on_hand >= 3)) STRICT"
        }
        Mysql | Postgres => "ALTER TABLE stock ADD CONSTRAINT tighter CHECK (on_hand >= 3)",
    };
    raw.run(tighter).await.unwrap();
    let read = fixture.put("a", 3).await;

    let adjusted = fixture.store.adjust(&adjustment("a", -1)).await.unwrap();
    assert_eq!(adjusted, Change::Stale);
    let read = StockLevel { on_hand: 0, ..read };
    let attempt = fixture.store.overwrite(&deduction("a", 1), &read).await;
    assert_eq!(attempt.unwrap(), Attempt::Stale);
    assert_eq!(fixture.movements("a").await.len(), 1, "nothing happened");
}
