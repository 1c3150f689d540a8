//! What is read back: pages of levels, the ledger with its filters, and the audit.

use rstest::rstest;
use stocklock::stock::{
    Adjustment, Deduction, LevelChange, LevelCursor, MovementFilter, MovementKind, OperationId,
    Reference,
};

use super::deductions::Way;
use super::fixture::{Fixture, On, Raw, adjustment, all_of, deduction, level_change, name, place};
use crate::support::services::Backend;
use crate::support::services::Backend::{Mysql, Postgres, Sqlite};

#[rstest]
#[tokio::test]
async fn pages_of_levels_follow_each_other_without_gap_or_overlap(
    #[values(On::SQLITE, On::MYSQL, On::POSTGRES, On::REDIS)] on: On,
) {
    let fixture = Fixture::on(on).await;
    // In the order in which they must come: by code point, SKU before warehouse.
    let expected = [
        ("A", "main"),
        ("a", "Z"),
        ("a", "a"),
        ("a", "上海仓"),
        ("a-b", "main"),
        ("b", "main"),
        ("é", "main"),
        ("货", "main"),
    ];
    for (sku, warehouse) in [6, 2, 0, 7, 4, 1, 5, 3].map(|i: usize| expected[i]) {
        let warehouse = place(warehouse);
        fixture
            .set(LevelChange {
                warehouse,
                ..level_change(sku, 1)
            })
            .await;
    }
    for limit in [1, 3, 8, 100] {
        let mut found = Vec::new();
        let mut after = None;
        loop {
            let page = fixture.store.levels(after.as_ref(), limit).await.unwrap();
            assert!(page.len() <= limit as usize);
            let Some(last) = page.last() else { break };
            after = Some(LevelCursor {
                sku: last.sku.clone(),
                warehouse: last.warehouse.clone(),
            });
            found.extend(page.into_iter().map(|level| (level.sku, level.warehouse)));
        }
        let found: Vec<_> = found
            .iter()
            .map(|(sku, warehouse)| (sku.as_str(), warehouse.as_str()))
            .collect();
        assert_eq!(found, expected, "pages of {limit}");
    }
    let of_a = fixture.store.levels_of(&name("a")).await.unwrap();
    let places: Vec<_> = of_a.iter().map(|level| level.warehouse.as_str()).collect();
    assert_eq!(places, ["Z", "a", "上海仓"]);
}

#[rstest]
#[tokio::test]
async fn movements_come_newest_first_and_can_be_filtered(
    #[values(On::SQLITE, On::MYSQL, On::POSTGRES, On::REDIS)] on: On,
) {
    let fixture = Fixture::on(on).await;
    fixture.put("other", 9).await;
    let opening = level_change("a", 10);
    fixture.set(opening.clone()).await;
    let [way, _] = Way::deciding(on);
    let opening_east = LevelChange {
        warehouse: place("east"),
        ..level_change("a", 10)
    };
    fixture.set(opening_east.clone()).await;
    let sale = deduction("a", 1);
    assert_eq!(way.deduct(&fixture, &sale).await.unwrap(), on.done(9));
    let sale_east = Deduction {
        warehouse: place("east"),
        ..deduction("a", 2)
    };
    assert_eq!(way.deduct(&fixture, &sale_east).await.unwrap(), on.done(8));
    let breakage = Adjustment {
        reference: Some(Reference::parse("R-1").unwrap()),
        ..adjustment("a", -1)
    };
    fixture.store.adjust(&breakage).await.unwrap();
    fixture.settle().await;

    let found = async |filter: MovementFilter| -> Vec<OperationId> {
        let movements = fixture.store.movements(&filter).await.unwrap();
        movements.into_iter().map(|m| m.operation).collect()
    };
    let (opened, opened_east) = (opening.operation, opening_east.operation);
    let (sold, sold_east) = (sale.operation, sale_east.operation);
    let broken = breakage.operation;
    let all = [broken, sold_east, sold, opened_east, opened];
    assert_eq!(found(all_of("a")).await, all);
    let filter = |change: fn(&mut MovementFilter)| {
        let mut filter = all_of("a");
        change(&mut filter);
        filter
    };
    let east = filter(|f| f.warehouse = Some(place("east")));
    assert_eq!(found(east).await, [sold_east, opened_east]);
    let sales = filter(|f| f.kind = Some(MovementKind::Deducted));
    assert_eq!(found(sales).await, [sold_east, sold]);
    let reference = filter(|f| f.reference = Some("R-1".to_owned()));
    assert_eq!(found(reference).await, [broken]);
    let nothing = filter(|f| f.reference = Some("r-1".to_owned()));
    assert_eq!(found(nothing).await, []);
    assert_eq!(found(filter(|f| f.limit = 2)).await, [broken, sold_east]);
    let older = MovementFilter {
        before: Some(sold_east),
        ..all_of("a")
    };
    assert_eq!(found(older).await, [sold, opened_east, opened]);
    let both = MovementFilter {
        before: Some(sold_east),
        kind: Some(MovementKind::Deducted),
        warehouse: Some(place("main")),
        limit: 1,
        ..all_of("a")
    };
    assert_eq!(found(both).await, [sold]);
}

#[rstest]
#[tokio::test]
async fn a_movement_says_when_in_rfc_3339_utc(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let fixture = Fixture::new(backend).await;
    let mut raw = Raw::connect(backend, &fixture.url).await;
    let now = match backend {
        Sqlite => "SELECT strftime('%Y-%m-%dT%H:%M:%f', 'now')",
        Mysql => "SELECT date_format(utc_timestamp(3), '%Y-%m-%dT%H:%i:%s.%f')",
        Postgres => {
            r#"SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS')"#
        }
    };
    let before = raw.text(now).await.unwrap();
    fixture.put("a", 1).await;
    let after = raw.text(now).await.unwrap();
    let created_at = fixture.movements("a").await.remove(0).created_at;
    let instant = created_at.strip_suffix('Z').expect("UTC");
    // A millisecond's digits: the shortest that any of them has.
    let to_millis = |text: &str| text[..23].to_owned();
    assert!(
        (to_millis(&before)..=to_millis(&after)).contains(&to_millis(instant)),
        "{before} <= {created_at} <= {after}"
    );
    let fraction = instant.split_once('.').expect("a fraction").1.len();
    assert_eq!(fraction, if backend == Sqlite { 3 } else { 6 });
}

#[rstest]
#[tokio::test]
async fn the_audit_holds_counter_against_ledger_for_each_warehouse(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let fixture = Fixture::new(backend).await;
    assert!(fixture.store.audit(&name("a")).await.unwrap().is_empty());
    fixture.put("a", 10).await;
    fixture
        .set(LevelChange {
            warehouse: place("上海仓"),
            backorder_limit: Some(4),
            ..level_change("a", 3)
        })
        .await;
    fixture
        .store
        .deduct_if_available(&deduction("a", 4))
        .await
        .unwrap();
    fixture.store.adjust(&adjustment("a", -1)).await.unwrap();
    fixture.store.adjust(&adjustment("a", 2)).await.unwrap();
    let mut raw = Raw::connect(backend, &fixture.url).await;
    // A sale that the counter did not notice.
    raw.run("UPDATE stock SET on_hand = on_hand + 1 WHERE warehouse = 'main'")
        .await
        .unwrap();

    let audits = fixture.store.audit(&name("a")).await.unwrap();

    let [main, shanghai] = &audits[..] else {
        panic!("{audits:?}");
    };
    assert_eq!(main.warehouse, place("main"));
    assert_eq!((main.received, main.sold, main.on_hand), (11, 4, 8));
    assert_eq!((main.drift(), main.consistent()), (1, false));
    assert_eq!(shanghai.warehouse, place("上海仓"));
    assert_eq!((shanghai.received, shanghai.sold), (3, 0));
    assert_eq!((shanghai.on_hand, shanghai.backorder_limit), (3, 4));
    assert!(shanghai.consistent());
}
