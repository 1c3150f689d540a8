//! The order of the ledger is the order of the commits, on every page.

use std::collections::BTreeSet;

use rstest::rstest;
use stocklock::stock::{Deduction, LevelChange, Movement, MovementFilter, OperationId};

use super::deductions::Way;
use super::fixture::{
    Fixture, MYSQL, On, POSTGRES, REDIS, Raw, SQLITE, all_of, deduction, level_change, place,
};
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

/// The pages from `filter` on.
async fn pages(fixture: &Fixture, mut filter: MovementFilter) -> Vec<Movement> {
    let mut found = Vec::new();
    loop {
        let page = fixture.store.movements(&filter).await.unwrap();
        let is_full = page.movements.len() == filter.limit as usize;
        assert!(
            page.next.is_none() || is_full,
            "only the last page may be short"
        );
        found.extend(page.movements);
        assert!(found.len() < 1_000, "the pages repeat movements");
        if page.next.is_none() {
            return found;
        }
        filter.from = page.next;
    }
}

fn operations(movements: &[Movement]) -> Vec<OperationId> {
    movements
        .iter()
        .map(|movement| movement.operation)
        .collect()
}

/// A request that arrived first may commit last.
#[rstest]
#[tokio::test]
async fn page_is_in_commit_order(#[values(SQLITE, MYSQL, POSTGRES, REDIS)] on: On) {
    let fixture = Fixture::on(on).await;
    fixture.put("a", 100).await;
    let [way, _] = Way::atomic(on);
    let sales: Vec<Deduction> = (0..9).map(|_| deduction("a", 1)).collect();
    let order = [4, 0, 8, 2, 6, 1, 7, 3, 5];
    for sale in order {
        way.deduct(&fixture, &sales[sale]).await.unwrap();
        fixture.settle().await;
    }
    let committed: Vec<_> = order.iter().rev().map(|n| sales[*n].operation).collect();
    for limit in [1, 2, 3, 10] {
        let filter = MovementFilter {
            limit,
            ..all_of("a")
        };
        let found = operations(&pages(&fixture, filter).await);
        assert_eq!(found[..9], committed, "pages of {limit}");
        assert_eq!(found.len(), 10);
    }
}

/// With the operation as the cursor, such a movement appeared behind the reader.
#[rstest]
#[tokio::test]
async fn late_commit_moves_no_movement_between_pages(
    #[values(SQLITE, MYSQL, POSTGRES, REDIS)] on: On,
) {
    let fixture = Fixture::on(on).await;
    let [way, _] = Way::atomic(on);
    let late: Vec<_> = (0..4).map(|_| deduction("a", 1)).collect();
    fixture.put("a", 100).await;
    for _ in 0..6 {
        way.deduct(&fixture, &deduction("a", 1)).await.unwrap();
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
        way.deduct(&fixture, late).await.unwrap();
        fixture.settle().await;
    }
    assert_eq!(found, before);
    assert_eq!(filter.from, None);
    assert_eq!(fixture.movements("a").await.len(), 11);
}

/// Movements of an older release have no number. They follow those that have one.
#[rstest]
#[tokio::test]
async fn pages_merge_warehouses_and_older_movements(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let fixture = Fixture::new(backend).await;
    let mut raw = Raw::connect(backend, &fixture.url).await;
    let warehouses = ["east", "main", "上海仓"];
    let sell = async |rounds: usize| {
        for _ in 0..rounds {
            for warehouse in warehouses {
                let sale = Deduction {
                    warehouse: place(warehouse),
                    ..deduction("a", 1)
                };
                Way::Guarded.deduct(&fixture, &sale).await.unwrap();
            }
        }
    };
    for warehouse in warehouses {
        let creation = LevelChange {
            warehouse: place(warehouse),
            ..level_change("a", 100)
        };
        fixture.set(creation).await;
    }
    sell(4).await;
    raw.run("UPDATE movement SET level_version = NULL WHERE warehouse <> 'east'")
        .await
        .unwrap();
    sell(3).await;
    fixture.put("other", 1).await;

    let all = pages(&fixture, all_of("a")).await;
    assert_eq!(all.len(), 3 * 8);
    for warehouse in warehouses {
        let of_one = all.iter().filter(|one| one.warehouse == place(warehouse));
        let versions: Vec<_> = of_one.map(|one| one.level_version).collect();
        let old = if warehouse == "east" {
            [5, 4, 3, 2, 1].map(Some)
        } else {
            [None; 5]
        };
        assert_eq!(versions[..3], [8, 7, 6].map(Some), "{warehouse}");
        assert_eq!(versions[3..], old, "{warehouse}");
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
