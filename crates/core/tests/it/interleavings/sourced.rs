//! Every schedule of orders that choose between two warehouses, through the schedulers of two replicas.

use std::sync::Arc;

use anyhow::ensure;
use rstest::rstest;
use stocklock_core::model::{Faults, MemoryStore, Task, World};
use stocklock_core::stock::{Operation, Quantity, Warehouse};
use stocklock_core::strategy::Strategy::GroupCommit;

use super::answers::explorer;
use super::batches::{Known, Way, buy};
use super::requests::{SKU, deduction_of, sku};
use super::scenario::{policy, scheduler};

/// What a buyer wants: so many units from these warehouses, and whether they may be split.
type Line = (&'static [&'static str], u32, bool);

const MAIN_FIRST: Line = (&["main", "north"], 1, false);
const NORTH_FIRST: Line = (&["north", "main"], 1, false);
const MAIN_ONLY: Line = (&["main"], 1, false);
const NORTH_ONLY: Line = (&["north"], 1, false);
const BOTH: Line = (&["main", "north"], 2, true);
/// The first one does not have the SKU.
const ELSEWHERE: Line = (&["west", "north"], 1, false);

fn warehouse(name: &str) -> Warehouse {
    Warehouse::parse(name).expect("a valid name")
}

fn order((warehouses, units, split): Line) -> Operation {
    let quantity = Quantity::try_from(units).expect("a valid quantity");
    let level = (sku(SKU), warehouse(warehouses[0]));
    let mut order = deduction_of(level, quantity, None, GroupCommit);
    let line = &mut order.lines[0];
    line.others = warehouses[1..].iter().map(|name| warehouse(name)).collect();
    line.split = split;
    order
}

/// Two warehouses have one unit each. Each order is made with all of its units or none, as its answer says, and
/// none is refused while one of the warehouses has enough.
#[rstest]
#[case::opposite([MAIN_FIRST, NORTH_FIRST], 0, 0)]
#[case::same([MAIN_FIRST, MAIN_FIRST], 0, 0)]
#[case::rival([MAIN_FIRST, MAIN_ONLY], 1, 0)]
#[case::split([BOTH, MAIN_ONLY], 1, 0)]
#[case::commit_lost([MAIN_FIRST, NORTH_FIRST], 0, 1)]
#[case::elsewhere_commit_lost([ELSEWHERE, NORTH_ONLY], 1, 1)]
fn orders_get_the_units_of_any_warehouse(
    #[case] lines: [Line; 2],
    #[case] most_refused: usize,
    #[case] commits: u32,
) {
    let explored = explorer().explore(
        |decisions| {
            let faults = Faults {
                commits,
                ..Faults::default()
            };
            let state = MemoryStore::new(decisions).with_faults(faults);
            for name in ["main", "north"] {
                state.stock_in(&sku(SKU), &warehouse(name), 1);
            }
            let buyer = |(number, line)| {
                let scheduler = scheduler(decisions, &state, &policy(6, false));
                let (store, order) = (state.clone(), order(line));
                let way = if commits > 0 && number > 0 {
                    // Without a scheduler, which keeps the schedules few.
                    Way::Batch { read_first: false }
                } else {
                    Way::Scheduled(Arc::clone(&scheduler))
                };
                let buyer = async move {
                    let known = buy(store, vec![order.clone()], way).await[0].1;
                    (order, known)
                };
                Box::pin(buyer) as Task<_>
            };
            World {
                tasks: lines.into_iter().enumerate().map(buyer).collect(),
                state,
            }
        },
        |store, answers: &[(Operation, Known)]| {
            let sold = store.deductions_now();
            let mut refused = 0;
            for ((_, wanted, _), (order, known)) in lines.iter().zip(answers) {
                let own = sold.iter().filter(|one| one.operation == order.id);
                let own = -own.map(|one| one.delta).sum::<i64>();
                let is_made = own == i64::from(*wanted);
                ensure!(own == 0 || is_made, "a part of it: {sold:?}");
                match known {
                    Known::Sold(_) => ensure!(is_made, "{known:?}: {sold:?}"),
                    Known::NotSold => ensure!(own == 0, "{known:?}: {sold:?}"),
                    Known::Unknown => anyhow::bail!("{answers:?}"),
                }
                refused += usize::from(*known == Known::NotSold);
            }
            ensure!(refused <= most_refused, "{answers:?}");
            let left: i64 = store
                .levels_now(&sku(SKU))
                .iter()
                .map(|it| it.on_hand)
                .sum();
            let taken = -sold.iter().map(|one| one.delta).sum::<i64>();
            ensure!(left + taken == 2, "{left} left: {sold:?}");
            Ok(())
        },
    );
    let schedules = explored.unwrap_or_else(|failure| panic!("{failure}"));
    println!("{schedules} schedules");
}
