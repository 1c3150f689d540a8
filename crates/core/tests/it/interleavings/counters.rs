//! Every schedule of deductions behind a counter in Redis.
//!
//! A counter may vanish at any command, Redis may be away, and a replica may die between counter and
//! database. The random walks have late loads, lost commits and restocks beside them.

use anyhow::ensure;
use rstest::rstest;
use stocklock_core::strategy::Strategy::{self, RedisGetSet, RedisLua, RedisWatch};

use super::requests::SKU;
use super::scenario::Scenario;

/// One of the faults. With one more buyer who has a key, or whose counter may be lost, there are too many schedules.
#[rstest]
fn no_fault_of_a_counter_oversells_or_makes_an_answer_wrong(
    #[values(RedisLua, RedisWatch)] strategy: Strategy,
    #[values(None, Some("order-1"))] key: Option<&'static str>,
    #[values(lost, away)] with_fault: fn(Scenario) -> Scenario,
) {
    let scenario = with_fault(Scenario {
        key,
        ..Scenario::new(strategy, 1, 1)
    });
    let tally = scenario.explore();
    assert_eq!((tally.oversold, tally.drifted), (0, 0), "{tally:?}");
    let has_outages = scenario.outages > 0;
    assert_eq!(tally.unavailable > 0, has_outages, "{tally:?}");
}

fn lost(mut scenario: Scenario) -> Scenario {
    scenario.lost_counters = 1;
    if scenario.strategy == RedisLua {
        scenario.buyers.push(SKU);
    }
    scenario
}

fn away(mut scenario: Scenario) -> Scenario {
    scenario.outages = 1;
    scenario.processes = 2;
    scenario.buyers.push(SKU);
    if scenario.key.is_none() {
        scenario = scenario.at_full_size();
    }
    scenario
}

/// The counter hides the unit of the replica that died, until it expires.
#[rstest]
fn replica_that_dies_between_counter_and_database_doubles_no_sale(
    #[values(RedisLua, RedisWatch)] strategy: Strategy,
    #[values(None, Some("order-1"))] key: Option<&'static str>,
) {
    let scenario = Scenario {
        deaths: 1,
        processes: 2,
        key,
        ..Scenario::new(strategy, 1, 2)
    };
    let mut unsold = 0;
    let tally = scenario.explore_with(|store, _| {
        let sold = store.deductions_now().len();
        ensure!(sold <= 1, "sold {sold} of 1");
        unsold += 1 - sold;
        Ok(())
    });
    // With a key, SQL sells what the counter hides.
    assert!(tally.unknown > 0, "{tally:?}");
    assert_eq!(unsold > 0, key.is_none(), "{tally:?}");
}

#[test]
fn get_set_counter_loses_updates_and_oversells() {
    let tally = Scenario::new(RedisGetSet, 1, 2).explore();
    assert!(tally.oversold > 0 && tally.drifted > 0, "{tally:?}");
    let failed = (tally.contended, tally.unknown, tally.unavailable);
    assert_eq!(failed, (0, 0, 0), "{tally:?}");
}
