//! The ledger: the order of its pages is that of the commits, with every filter. Its times are in UTC.

use std::collections::{BTreeMap, BTreeSet};

use rstest::rstest;
use stocklock::stock::{
    Caller, LedgerCursor, Movement, MovementFilter, MovementKind, OperationFilter, OperationId,
    Remark,
};
use tokio::time::{Duration, Instant};

use super::fixture::{Fixture, all_of, deduction, level_change_in, place};
use crate::support::seeded_ledger::Seeded;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

/// Each page from `filter` on.
async fn each_page(fixture: &Fixture, mut filter: MovementFilter) -> Vec<Vec<Movement>> {
    let mut found = Vec::new();
    loop {
        let page = fixture.store.movements(&filter).await.unwrap();
        found.push(page.movements);
        assert!(found.len() < 1_000, "the pages do not end");
        if page.next.is_none() {
            return found;
        }
        filter.from = page.next;
    }
}

/// The movements of the pages from `filter` on.
async fn pages(fixture: &Fixture, filter: MovementFilter) -> Vec<Movement> {
    let limit = filter.limit as usize;
    let found = each_page(fixture, filter).await;
    let mut but_the_last = found[1..].iter().zip(&found);
    let are_full = but_the_last.all(|(_, page)| page.len() == limit);
    assert!(are_full, "only the last page may be short");
    found.concat()
}

fn operations(movements: &[Movement]) -> Vec<OperationId> {
    movements
        .iter()
        .map(|movement| movement.operation)
        .collect()
}

/// With the operation as the cursor, such a movement appeared behind the reader.
#[rstest]
#[tokio::test]
async fn late_commit_moves_no_movement_between_pages(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let fixture = Fixture::new(backend).await;
    let late: Vec<_> = (0..4).map(|_| deduction("a", 1)).collect();
    fixture.put("a", 100).await;
    for _ in 0..6 {
        fixture.store.deduct(&deduction("a", 1)).await.unwrap();
    }
    let before = operations(&fixture.movements("a").await);
    let mut filter = MovementFilter {
        limit: 2,
        ..all_of("a")
    };
    let mut found = Vec::new();
    for late in &late {
        let page = fixture.store.movements(&filter).await.unwrap();
        found.extend(operations(&page.movements));
        filter.from = page.next;
        fixture.store.deduct(late).await.unwrap();
    }
    assert_eq!(found, before);
    assert_eq!(filter.from, None);
    assert_eq!(fixture.movements("a").await.len(), 11);
}

#[rstest]
#[tokio::test]
async fn pages_merge_warehouses(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let fixture = Fixture::new(backend).await;
    let warehouses = ["east", "main", "上海仓"];
    for warehouse in warehouses {
        fixture.set(level_change_in(warehouse, "a", 100)).await;
    }
    for _ in 0..7 {
        for warehouse in warehouses {
            let mut sale = deduction("a", 1);
            sale.lines[0].warehouse = place(warehouse);
            fixture.store.deduct(&sale).await.unwrap();
        }
    }
    fixture.put("other", 1).await;

    let all = pages(&fixture, all_of("a")).await;
    for warehouse in warehouses {
        let of_one = all.iter().filter(|one| one.warehouse == place(warehouse));
        let versions: Vec<_> = of_one.map(|one| one.level_version).collect();
        assert_eq!(versions, [8, 7, 6, 5, 4, 3, 2, 1], "{warehouse}");
    }
    // Nothing committed out of order here.
    assert!(all.is_sorted_by(|newer, older| newer.operation > older.operation));
    let all = operations(&all);
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    for limit in [1, 2, 5, 7, 23, 24] {
        let filter = MovementFilter {
            limit,
            ..all_of("a")
        };
        assert_eq!(operations(&pages(&fixture, filter).await), all, "{limit}");
        let filter = MovementFilter {
            limit,
            warehouse: Some(place("上海仓")),
            ..all_of("a")
        };
        assert_eq!(pages(&fixture, filter).await.len(), 8, "{limit}");
    }
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

fn versions(movements: &[Movement]) -> Vec<i64> {
    movements.iter().map(|one| one.level_version).collect()
}

/// No index leads to the sales of a level only, or to the movements of one kind with one reference.
#[rstest]
#[tokio::test]
async fn page_ends_after_a_number_of_rows_without_a_match(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let (fixture, mut raw) = Fixture::with_raw(backend).await;
    fixture.put("a", 1000).await;
    Seeded::of("a", 7_000).insert(&mut raw).await;
    raw.run(
        "UPDATE movement SET reference = 'R-1',
            kind = CASE WHEN level_version < 6 THEN 'deducted' ELSE 'received' END",
    )
    .await
    .unwrap();
    for reference in [None, Some("R-1".to_owned())] {
        let filter = MovementFilter {
            limit: 2,
            kind: Some(MovementKind::Deducted),
            reference,
            ..all_of("a")
        };
        let found = each_page(&fixture, filter).await;
        let lengths: Vec<_> = found.iter().map(Vec::len).collect();
        // Two pages read 3,000 movements each, none of which is a sale.
        assert_eq!(lengths, [0, 0, 2, 2, 1]);
        assert_eq!(versions(&found.concat()), [5, 4, 3, 2, 1]);
    }
}

/// The movements behind the end of a warehouse may be newer than those of another one.
#[rstest]
#[tokio::test]
async fn page_goes_no_further_than_each_warehouse_was_read(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let (fixture, mut raw) = Fixture::with_raw(backend).await;
    for warehouse in ["main", "east"] {
        fixture.set(level_change_in(warehouse, "a", 1000)).await;
    }
    // The sales in the east are older and newer than all that happened in the main warehouse.
    for (warehouse, operations, movements, after) in [
        ("east", 1, 20, 1),
        ("main", 2, 4_000, 1),
        ("east", 3, 20, 21),
    ] {
        let seeded = Seeded {
            warehouse,
            operations,
            after,
            ..Seeded::of("a", movements)
        };
        seeded.insert(&mut raw).await;
    }
    raw.run(
        "UPDATE movement
            SET kind = CASE warehouse WHEN 'east' THEN 'deducted' ELSE 'received' END",
    )
    .await
    .unwrap();
    let filter = MovementFilter {
        kind: Some(MovementKind::Deducted),
        ..all_of("a")
    };
    let found = each_page(&fixture, filter).await;
    let lengths: Vec<_> = found.iter().map(Vec::len).collect();
    // A page reads 1,500 movements of each warehouse.
    assert_eq!(lengths, [20, 0, 21]);
    let all: Vec<_> = (1..=41).rev().collect();
    assert_eq!(versions(&found.concat()), all);
}

async fn fastest(mut work: impl AsyncFnMut()) -> Duration {
    let mut fastest = Duration::MAX;
    for _ in 0..7 {
        let start = Instant::now();
        work().await;
        fastest = fastest.min(start.elapsed());
    }
    fastest
}

/// A ledger of 100,000 movements after this change of them, and how long it takes to read all of them.
async fn large_ledger(backend: Backend, change: &'static str) -> (Fixture, Duration) {
    let (fixture, mut raw) = Fixture::with_raw(backend).await;
    fixture.put("a", 1000).await;
    Seeded::of("a", 100_000).insert(&mut raw).await;
    raw.run(change).await.unwrap();
    let scan = "SELECT cast(count(*) AS char(20)) FROM movement WHERE reason = 'none'";
    let scan = fastest(async || drop(raw.text(scan).await)).await;
    (fixture, scan)
}

/// The movements that the filters select are the oldest of the ledger.
async fn filtered_page_does_not_read_the_ledger(backend: Backend) {
    let old = "UPDATE movement SET kind = 'returned', reference = 'R-1' WHERE level_version < 6";
    let (fixture, scan) = large_ledger(backend, old).await;
    let (kind, reference) = (Some(MovementKind::Returned), Some("R-1".to_owned()));
    for (kind, reference) in [
        (kind.clone(), None),
        (None, reference.clone()),
        (kind, reference),
    ] {
        let filter = MovementFilter {
            limit: 2,
            kind,
            reference,
            ..all_of("a")
        };
        let found = pages(&fixture, filter.clone()).await;
        assert_eq!(versions(&found), [5, 4, 3, 2, 1], "{filter:?}");
        let page = fastest(async || drop(fixture.store.movements(&filter).await.unwrap())).await;
        assert!(
            page * 4 < scan,
            "{filter:?}: {page:?}, all movements: {scan:?}"
        );
    }
}

/// All movements have the reference, and the page has the oldest ones.
async fn late_page_of_a_reference_does_not_read_the_others(backend: Backend) {
    let all = "UPDATE movement SET reference = 'R-1'";
    let (fixture, scan) = large_ledger(backend, all).await;
    let oldest = MovementFilter {
        from: Some(LedgerCursor(BTreeMap::from([(place("main"), 4)]))),
        ..all_of("a")
    };
    let oldest = each_page(&fixture, oldest).await.concat();
    assert_eq!(versions(&oldest), [4, 3, 2, 1]);
    let of = OperationFilter::Reference {
        caller: Caller::anonymous(),
        reference: Remark::parse("reference", "R-1").unwrap(),
        before: Some(oldest[0].operation),
        limit: 100,
    };
    let found = fixture.store.operations(&of).await.unwrap();
    // The creation has the newest operation.
    assert_eq!(versions(&found), [3, 2]);
    let page = fastest(async || drop(fixture.store.operations(&of).await.unwrap())).await;
    assert!(page * 4 < scan, "{page:?}, all movements: {scan:?}");
}

full! {
    filtered_page_does_not_read_the_ledger(backend: Backend [Sqlite, Mysql, Postgres]);
    late_page_of_a_reference_does_not_read_the_others(backend: Backend [Sqlite, Mysql, Postgres]);
}
