//! Random walks: ten buyers or more, levels of several SKUs and warehouses, every strategy, and all
//! faults of the model together.
//!
//! Such a world has too many schedules to see them all. The seed and the number of a walk draw its world
//! and one schedule, so each walk can be repeated alone.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use anyhow::anyhow;
use stocklock_core::deduct::{RetryPolicy, Scheduler, WritePool};
use stocklock_core::level_service;
use stocklock_core::model::{Decisions, Faults, MemoryStore, Task, World, mortal, yield_once};
use stocklock_core::stock::{
    Deducted, Operation, OperationId, Quantity, Reversal, Shard, Sku, StockError, Warehouse,
};
use stocklock_core::strategy::Strategy::{self, GroupCommit, RedisLua, RedisWatch};
use stocklock_core::strategy::{DeductionContext, DeductionRun, Safeguards, Tier};
use tokio::time::Instant;

use super::answers::{number, random_schedule, seed};
use super::requests::{adjustment, deduction_of, sku};
use super::scenario::{Scenario, died, policy};
use ends::unprotected;

mod ends;

/// What some walk must meet: walks that never meet a fault prove nothing about it. The last ones are what
/// must lose an update.
const STEPS: &str = "a late load arrives, a late message arrives, \
    an attempt has expired, redis is away, several levels in one transaction, the counter is lost, \
    the connection is lost in COMMIT, the lease is lost, the lock server is away, the process dies, \
    the server commits the transaction with the unknown outcome, the statement fails, \
    the server rolls back the transaction with the unknown outcome, the write pool refuses, \
    a buyer gives up, a level is raised, a sale is answered again, units are returned, a write has expired, \
    no-lock, local-mutex, redis-get-set, a lock without guard";

/// As many slots for writes as all buyers can need.
const ENOUGH: usize = 48;

/// What the check at the end of a walk needs.
struct State {
    scenario: Scenario,
    levels: Vec<(Sku, Warehouse)>,
    orders: Vec<(Strategy, Operation)>,
    store: MemoryStore,
    slots: usize,
    pool: WritePool,
    /// No fault can happen.
    is_calm: bool,
    decisions: Decisions,
}

/// `None` is the answer to a change of a level that is not a sale.
type Answer = (OperationId, Result<Option<Deducted>, StockError>);

/// `EXPLORE_SECONDS` says for how long, and `EXPLORE_WALK` repeats one walk.
#[test]
fn random_walks_keep_what_each_strategy_promises() {
    let seed = seed();
    let seconds = number("EXPLORE_SECONDS").unwrap_or(10);
    let mut met = BTreeSet::new();
    if let Some(only) = number("EXPLORE_WALK") {
        walk(only, &mut met);
        return;
    }
    let (started, mut walks) = (Instant::now(), 0);
    let limit = Duration::from_secs(seconds);
    let mut unmet: Vec<_> = STEPS.split(", ").collect();
    // Longer on a busy machine, if something was not met yet.
    while started.elapsed() < limit || !unmet.is_empty() && started.elapsed() < 10 * limit {
        walk(walks, &mut met);
        walks += 1;
        unmet.retain(|step| !met.contains(step));
    }
    println!("figure: {walks} random walks with TEST_SEED={seed}");
    assert!(unmet.is_empty(), "no walk met: {unmet:?}");
}

fn walk(number: u64, met: &mut BTreeSet<&'static str>) {
    let _repeat = Repeat(number);
    let explored = random_schedule(number).explore(world, |state, answers| {
        met.extend(state.decisions.noted());
        let checked = state.check(answers);
        met.extend(checked.map_err(|error| anyhow!("{error} in {:?}", state.scenario))?);
        met.extend(state.met(answers));
        Ok(())
    });
    explored.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Prints how to repeat a walk that fails.
struct Repeat(u64);

impl Drop for Repeat {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let (seed, number) = (seed(), self.0);
            let command = "cargo test --package stocklock-core --test it walks::";
            eprintln!("repeat it: TEST_SEED={seed} EXPLORE_WALK={number} {command}");
        }
    }
}

fn world(decisions: &Decisions) -> World<State, Answer> {
    let chance = |out_of| decisions.choose(out_of) == 0;
    let few = || [0, 0, 1, 3][decisions.choose(4)];
    let strategy = Strategy::ALL[decisions.choose(Strategy::ALL.len())];
    // Transactions have several levels if one process makes more than four batches at a time.
    let is_wide = matches!(strategy, GroupCommit | RedisLua | RedisWatch) && chance(4);
    let (processes, level_count) = if is_wide {
        (1, 12)
    } else {
        (1 + decisions.choose(3), 5)
    };
    let scenario = Scenario {
        processes,
        faults: Faults {
            commits: few(),
            late_messages: few(),
            statements: few(),
        },
        outages: few(),
        lost_counters: few(),
        late_loads: few(),
        deaths: few(),
        losses: few(),
        any_order: chance(2),
        max_attempts: [2, 6, 30][decisions.choose(3)],
        safeguards: Safeguards {
            guard: strategy.tier() != Tier::Guarded || !chance(4),
            check: chance(2),
        },
        ..Scenario::new(strategy, 0, 0)
    };
    let pauses = few();
    let faults = &scenario.faults;
    let is_calm = [faults.commits, faults.late_messages, faults.statements]
        .into_iter()
        .chain([
            scenario.outages,
            scenario.lost_counters,
            scenario.late_loads,
        ])
        .chain([scenario.deaths, scenario.losses, pauses])
        .all(|faults| faults == 0);
    let (store, counter) = (scenario.store(decisions), scenario.counter(decisions));
    let has_counters = chance(2);
    let levels: Vec<_> = (0..level_count).map(level).collect();
    for (sku, warehouse) in &levels {
        let units = [0, 1, 2, 3, 4][decisions.choose(5)];
        store.stock_in(sku, warehouse, units);
        if has_counters {
            counter.create(sku, warehouse, units);
        }
    }
    let orders = orders(decisions, &scenario, &levels);
    let slots = [2, 5, ENOUGH, ENOUGH][decisions.choose(4)];
    let pool = WritePool::new(slots, Shard::WHOLE);
    let deaths = Arc::new(AtomicU32::new(scenario.deaths));
    let contexts = scenario.contexts(decisions, &store, &counter);
    let buyers = orders.iter().zip(contexts.iter().cycle());
    let buyers = buyers.map(|((strategy, order), context)| {
        let operation = order.id;
        let process = (Arc::clone(context), pool.clone(), decisions.clone());
        let run = buy(process, *strategy, order.clone(), scenario.safeguards);
        let run: Task<Result<Deducted, StockError>> = Box::pin(run);
        let run = mortal(decisions.clone(), Arc::clone(&deaths), run);
        let answer = async move { (operation, run.await.unwrap_or_else(died).map(Some)) };
        Box::pin(answer) as Task<Answer>
    });
    let mut tasks: Vec<_> = buyers.collect();
    let policy = policy(scenario.max_attempts, false);
    let service = (store.clone(), Arc::clone(&contexts[0].scheduler), policy);
    for _ in 0..decisions.choose(3) {
        let (sku, warehouse) = levels[decisions.choose(level_count)].clone();
        let mut adjustment = adjustment([-1, 1, 2][decisions.choose(3)]);
        (adjustment.lines[0].sku, adjustment.lines[0].warehouse) = (sku, warehouse);
        adjustment.is_row = decisions.choose(2) == 0;
        tasks.push(Box::pin(adjust(service.clone(), adjustment)));
    }
    for _ in 0..decisions.choose(3) {
        let taken = take_back(service.clone(), decisions.clone());
        tasks.push(Box::pin(taken));
    }
    for _ in 0..pauses {
        let store = store.clone();
        decisions.spawn(Box::pin(async move { store.pass_time().await }));
    }
    let decisions = decisions.clone();
    let state = State {
        scenario,
        levels,
        orders,
        store,
        slots,
        pool,
        is_calm,
        decisions,
    };
    World { state, tasks }
}

fn level(number: usize) -> (Sku, Warehouse) {
    let warehouse = Warehouse::parse(format!("w{}", number / 3)).expect("a valid name");
    (sku(["1001", "1002", "1003"][number % 3]), warehouse)
}

/// Two orders for each level, most of them for the first ones. In some walks, the orders have several
/// strategies that must be safe together.
fn orders(
    decisions: &Decisions,
    scenario: &Scenario,
    levels: &[(Sku, Warehouse)],
) -> Vec<(Strategy, Operation)> {
    let safe = |one: &Strategy| one.tier() == Tier::Safe;
    let safe: Vec<_> = Strategy::ALL.into_iter().filter(safe).collect();
    let is_mixed = unprotected(scenario).is_none() && decisions.choose(4) == 0;
    let order = |_| {
        let is_other = is_mixed && decisions.choose(2) == 0;
        let other = is_other.then(|| safe[decisions.choose(safe.len())]);
        let strategy = other.unwrap_or(scenario.strategy);
        let number = || decisions.choose(levels.len());
        let level = number().min(number());
        let quantity = Quantity::try_from([1_u32, 1, 1, 2][decisions.choose(4)]);
        // Only one key comes for several levels: two could cause a deadlock, which the model never ends.
        let key = match decisions.choose(16) {
            0 => Some("K".to_owned()),
            number @ 1..8 => Some(format!("K-{level}-{}", number % 2)),
            _ => None,
        };
        let quantity = quantity.expect("a valid quantity");
        let order = deduction_of(levels[level].clone(), quantity, key.as_deref(), strategy);
        (strategy, order)
    };
    (0..2 * levels.len()).map(order).collect()
}

/// One deduction, as a `Deductor` makes it. But its write ends with its process.
async fn buy(
    (context, pool, decisions): (Arc<DeductionContext>, WritePool, Decisions),
    strategy: Strategy,
    order: Operation,
    safeguards: Safeguards,
) -> Result<Deducted, StockError> {
    yield_once().await;
    let admitted = pool.admit(order.level().0, []);
    let slot = admitted.inspect_err(|_| decisions.note("the write pool refuses"))?;
    let run = DeductionRun::new(&context, strategy, &order, safeguards);
    let answer = run.run().await;
    drop(slot);
    answer
}

/// The store, the scheduler and the policy of one process.
type Service = (MemoryStore, Arc<Scheduler>, RetryPolicy);

async fn adjust((store, scheduler, policy): Service, change: Operation) -> Answer {
    let adjusted = level_service::change(&store, &scheduler, &policy, &change).await;
    (change.id, adjusted.map(|_| None))
}

/// Takes units of a sale back, if there is one after some steps.
async fn take_back((store, scheduler, policy): Service, decisions: Decisions) -> Answer {
    let operation = OperationId::mint();
    for _ in 0..20 {
        yield_once().await;
    }
    let sales = store.deductions_now();
    if sales.is_empty() {
        return (operation, Err(StockError::UnknownOperation));
    }
    let sale = &sales[decisions.choose(sales.len())];
    let reversal = Reversal {
        new: Operation {
            id: operation,
            ..adjustment(0)
        },
        sale: sale.operation,
        quantity: [None, Some(Quantity::ONE)][decisions.choose(2)],
        lines: Vec::new(),
        restock: decisions.choose(2) == 0,
    };
    let reversal = reversal.of_sale(vec![sale.clone()]).expect("a sale");
    let reversed = level_service::change(&store, &scheduler, &policy, &reversal).await;
    (operation, reversed.map(|_| None))
}
