//! What is read back: pages of levels, the ledger with its filters, and the audit.

use rstest::rstest;
use stocklock::stock::{
    Adjustment, Deduction, LevelChange, LevelCursor, MovementFilter, MovementKind, OperationId,
    Remark, Remarks,
};

use super::deductions::Way;
use super::fixture::{
    Fixture, MYSQL, On, Operations as _, POSTGRES, Raw, SQLITE, adjustment, all_of, committed,
    deduction, guarded, level_change, name, place,
};
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

#[rstest]
#[tokio::test]
async fn pages_of_levels_have_no_gap_or_overlap(#[values(SQLITE, MYSQL, POSTGRES)] on: On) {
    let fixture = Fixture::on(on).await;
    // In the expected order: by code point, SKU before warehouse.
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
        let change = LevelChange {
            warehouse: place(warehouse),
            ..level_change(sku, 1)
        };
        fixture.set(change).await;
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
            found.extend(page);
        }
        let found = found.iter();
        let names = found.map(|it| (it.sku.as_str(), it.warehouse.as_str()));
        assert_eq!(names.collect::<Vec<_>>(), expected, "pages of {limit}");
    }
    let levels = fixture.store.levels_of(&name("a")).await.unwrap();
    let places = levels.iter().map(|level| level.warehouse.as_str());
    assert_eq!(places.collect::<Vec<_>>(), ["Z", "a", "上海仓"]);
}

#[rstest]
#[tokio::test]
async fn movements_are_newest_first_and_filtered(#[values(SQLITE, MYSQL, POSTGRES)] on: On) {
    let fixture = Fixture::on(on).await;
    let in_main = level_change("a", 10);
    let in_east = LevelChange {
        warehouse: place("east"),
        ..level_change("a", 10)
    };
    let sale = Deduction {
        remarks: Remarks {
            reference: Some(Remark::parse("reference", "R-2").unwrap()),
            ..Remarks::default()
        },
        ..deduction("a", 1)
    };
    let sale_east = Deduction {
        warehouse: place("east"),
        ..deduction("a", 2)
    };
    let breakage = Adjustment {
        reference: Some(Remark::parse("reference", "R-1").unwrap()),
        ..adjustment("a", -1)
    };
    fixture.put("other", 9).await;
    fixture.set(in_main.clone()).await;
    fixture.set(in_east.clone()).await;
    assert_eq!(
        Way::Guarded.deduct(&fixture, &sale).await.unwrap(),
        committed(9)
    );
    assert_eq!(
        Way::Guarded.deduct(&fixture, &sale_east).await.unwrap(),
        committed(8)
    );
    fixture.store.adjust(&breakage).await.unwrap();

    let found = async |change: &dyn Fn(&mut MovementFilter)| -> Vec<OperationId> {
        let mut filter = all_of("a");
        change(&mut filter);
        let page = fixture.store.movements(&filter).await.unwrap();
        page.movements.into_iter().map(|m| m.operation).collect()
    };
    let (created, created_east) = (in_main.operation, in_east.operation);
    let (sold, sold_east) = (sale.operation, sale_east.operation);
    let broken = breakage.operation;
    let all = [broken, sold_east, sold, created_east, created];
    assert_eq!(found(&|_| ()).await, all);
    let east = found(&|f| f.warehouse = Some(place("east"))).await;
    assert_eq!(east, [sold_east, created_east]);
    let sales = found(&|f| f.kind = Some(MovementKind::Deducted)).await;
    assert_eq!(sales, [sold_east, sold]);
    let referenced = found(&|f| f.reference = Some("R-1".to_owned())).await;
    assert_eq!(referenced, [broken]);
    let referenced = found(&|f| f.reference = Some("R-2".to_owned())).await;
    assert_eq!(referenced, [sold]);
    let other_case = found(&|f| f.reference = Some("r-1".to_owned())).await;
    assert_eq!(other_case, []);
    assert_eq!(found(&|f| f.limit = 2).await, [broken, sold_east]);
    let newest = MovementFilter {
        limit: 2,
        ..all_of("a")
    };
    let next = fixture.store.movements(&newest).await.unwrap().next;
    let older = found(&|f| f.from.clone_from(&next)).await;
    assert_eq!(older, [sold, created_east, created]);
    let combined = |f: &mut MovementFilter| {
        f.from.clone_from(&next);
        f.kind = Some(MovementKind::Deducted);
        f.warehouse = Some(place("main"));
        f.limit = 1;
    };
    assert_eq!(found(&combined).await, [sold]);
}

#[rstest]
#[tokio::test]
async fn created_at_is_rfc_3339_in_utc(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let (fixture, mut raw) = Fixture::with_raw(backend).await;
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
    // Up to the milliseconds, which every database has.
    let is_between = before[..23] <= instant[..23] && instant[..23] <= after[..23];
    assert!(is_between, "{before} <= {created_at} <= {after}");
    let fraction = instant.split_once('.').expect("a fraction").1.len();
    assert_eq!(fraction, if backend == Sqlite { 3 } else { 6 });
}

#[rstest]
#[tokio::test]
async fn audit_compares_level_and_ledger(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let fixture = Fixture::new(backend).await;
    let store = &fixture.store;
    assert!(store.audit(&name("a")).await.unwrap().is_empty());
    fixture.put("a", 10).await;
    let in_shanghai = LevelChange {
        warehouse: place("上海仓"),
        backorder_limit: Some(4),
        ..level_change("a", 3)
    };
    fixture.set(in_shanghai).await;
    let sold = guarded(store, &deduction("a", 4)).await;
    sold.unwrap();
    store.adjust(&adjustment("a", -1)).await.unwrap();
    store.adjust(&adjustment("a", 2)).await.unwrap();
    let mut raw = Raw::connect(backend, &fixture.url).await;
    // As if one sale had not changed the level.
    let lost = "UPDATE stock SET on_hand = on_hand + 1 WHERE warehouse = 'main'";
    raw.run(lost).await.unwrap();

    let audits = store.audit(&name("a")).await.unwrap();

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
