//! Every schedule of a hold that is confirmed, or replaced, while it expires.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use anyhow::ensure;
use rstest::rstest;
use stocklock_core::level_service;
use stocklock_core::model::{Decisions, Faults, MemoryStore, Task, World, yield_once};
use stocklock_core::ports::{AttemptOutcome, HoldStore as _, OperationStore as _};
use stocklock_core::stock::{
    Caller, Change, Ending, Holding, How, Idempotency, IdempotencyKey, Line, Movement,
    MovementKind, OpenHold, Operation, OperationId, Quantity, Remarks, RequestHash, StockError,
    Warehouse,
};
use tokio::time::Instant;

use super::answers::{explorer, is_full_size, random_schedule};
use super::requests::{SKU, adjustment, sku};
use super::scenario::{WAIT_LIMIT, policy, scheduler};

/// An operation on [`SKU`].
pub(super) fn operation(key: &str, changes: impl IntoIterator<Item = Change>) -> Operation {
    let line = |change| Line::new(sku(SKU), Warehouse::default(), change);
    let lines: Vec<_> = changes.into_iter().map(line).collect();
    let idempotency = Idempotency {
        caller: Caller::anonymous(),
        key: IdempotencyKey::parse(key).expect("a valid key"),
        hash: RequestHash::of_operation(&lines, &Remarks::default()),
    };
    let deadline = Instant::now() + WAIT_LIMIT;
    let caller = Caller::anonymous();
    Operation::of_lines(
        caller,
        lines,
        Some(idempotency),
        Remarks::default(),
        deadline,
    )
    .expect("it has a key")
}

pub(super) fn hold(units: u32, lasts: Option<i64>) -> Change {
    let quantity = Quantity::try_from(units).expect("units");
    Change::Hold(Holding { quantity, lasts })
}

/// Ends the line of a hold.
pub(super) fn end(hold: OperationId, how: How, open: Option<i64>) -> Change {
    let line = 0;
    Change::End(Ending {
        hold,
        line,
        how,
        open,
    })
}

/// How many schedules are drawn if there are too many.
const RANDOM: u64 = 1_000_000;

/// How many schedules are drawn that have a late message.
const LATE: u64 = 5_000;
/// How many steps a rival waits at most.
const WAIT_STEPS: usize = 100;

type Answer = (OperationId, Result<(), StockError>);

/// Every schedule of an owner, who holds a unit of `stock` and then makes the operation of these changes, and of a
/// rival, who ends the hold as soon as it is due and then makes `purchase`. Nothing is held or sold twice. In
/// `make verify`, a COMMIT may lose its connection; if the rival buys, that makes too many schedules, and random ones are
/// added instead. `seen` gets the ledger of each schedule.
fn explore(
    stock: i64,
    then: impl Fn(OperationId) -> Vec<Change>,
    purchase: Option<Quantity>,
    mut seen: impl FnMut(&[Movement]) -> anyhow::Result<()>,
) {
    let build = |decisions: &Decisions, commits| {
        let faults = Faults {
            commits,
            ..Faults::default()
        };
        let state = MemoryStore::new(decisions).with_faults(faults);
        state.stock(&sku(SKU), stock);
        let policy = policy(6, false);
        let scheduler = scheduler(decisions, &state, &policy);
        let first = operation("hold", [hold(1, Some(1))]);
        let id = first.id;
        let change = |operation: Operation| {
            let (store, scheduler, policy) =
                (state.clone(), Arc::clone(&scheduler), policy.clone());
            async move {
                let id = operation.id;
                let made = level_service::change(&store, &scheduler, &policy, &operation).await;
                (id, made.map(drop))
            }
        };
        let (first, then) = (change(first), change(operation("then", then(id))));
        let owner: Task<Answer> = Box::pin(async move {
            let made = first.await;
            if made.1.is_err() {
                return made;
            }
            then.await
        });
        let expire = change(operation("expire", [end(id, How::Expire, None)]));
        let purchase = purchase
            .map(|units| operation("purchase", [Change::Deduct(units)]))
            .map(change);
        let store = state.clone();
        let rival: Task<Answer> = Box::pin(async move {
            store.pass_time().await;
            store.pass_time().await;
            let due = store.open_lines(&[id]).await;
            let mut answer = (id, Err(StockError::NotAHold));
            if due.is_ok_and(|due| due.iter().any(OpenHold::is_due)) {
                answer = expire.await;
            }
            match purchase {
                Some(purchase) => purchase.await,
                None => answer,
            }
        });
        World {
            state,
            tasks: vec![owner, rival],
        }
    };
    let mut check = |store: &MemoryStore, answers: &[Answer]| {
        let audit = store.audit_now(&sku(SKU));
        ensure!(audit.consistent(), "{audit:?}");
        let open: i64 = store.holds_now().iter().map(|one| one.units).sum();
        ensure!(audit.held == open, "{audit:?}, {open} open");
        let ledger = store.movements_now();
        for (operation, answer) in answers {
            let own = ledger.iter().filter(|one| one.operation == *operation);
            let own = own.count();
            match answer {
                Ok(()) => ensure!(own > 0, "no movement of {operation}"),
                Err(StockError::OutcomeUnknown { .. } | StockError::NotAHold) => {}
                Err(error) => ensure!(own == 0, "made, but the answer was `{error}`"),
            }
        }
        seen(&ledger)
    };
    // With a lost COMMIT there are millions of schedules, and too many if the rival buys as well.
    let is_whole = is_full_size() && purchase.is_none();
    let every = explorer().explore(|decisions| build(decisions, is_whole.into()), &mut check);
    every.unwrap_or_else(|failure| panic!("{failure}"));
    if is_full_size() && !is_whole {
        for number in 0..RANDOM {
            let random =
                random_schedule(number).explore(|decisions| build(decisions, 1), &mut check);
            random.unwrap_or_else(|failure| panic!("{failure}"));
        }
    }
}

fn count(ledger: &[Movement], kind: &MovementKind) -> usize {
    ledger.iter().filter(|one| one.kind == *kind).count()
}

/// The unit is held once, the hold ends once, and its unit is sold once, in time or late. The confirm may be in a batch
/// with a purchase, which does not read the hold again.
#[rstest]
#[case::alone(1, None, None)]
#[case::batches(2, Some(1), Some(Quantity::ONE))]
fn hold_ends_once_in_every_schedule(
    #[case] stock: i64,
    #[case] open: Option<i64>,
    #[case] purchase: Option<Quantity>,
) {
    let (mut confirmed, mut expired, mut sold_out) = (0, 0, 0);
    let confirm = How::Confirm {
        units: 1,
        late: true,
    };
    let then = |id| vec![end(id, confirm, open)];
    explore(stock, then, purchase, |ledger| {
        let [held, sold, ended] = [
            MovementKind::Held,
            MovementKind::Deducted,
            MovementKind::Expired,
        ]
        .map(|kind| count(ledger, &kind));
        let back: i64 = ledger.iter().map(|one| one.held_delta.min(0)).sum();
        let most = held + usize::from(purchase.is_some());
        ensure!(held <= 1 && back >= -1 && sold <= most, "{ledger:?}");
        confirmed += usize::from(back == -1 && ended == 0);
        expired += ended;
        let is_late = ended == 1 || purchase.is_some();
        sold_out += usize::from(is_late && i64::try_from(sold)? == stock);
        Ok(())
    });
    assert!(
        confirmed > 0 && expired > 0 && sold_out > 0,
        "{confirmed} confirmed, {expired} expired, {sold_out} times all was sold, late or to two"
    );
}

/// Two units, of which the new hold needs both: the old one does not block it, also if it has expired meanwhile.
#[test]
fn hold_is_replaced_once_in_every_schedule() {
    let (mut replaced, mut expired, mut sold) = (0, 0, 0);
    explore(
        2,
        |id| vec![hold(2, None), end(id, How::Release, None)],
        Some(Quantity::ONE),
        |ledger| {
            let [released, ended, bought] = [
                MovementKind::Released,
                MovementKind::Expired,
                MovementKind::Deducted,
            ]
            .map(|kind| count(ledger, &kind));
            let back: i64 = ledger.iter().map(|one| one.held_delta.min(0)).sum();
            ensure!(back >= -1, "its unit came back twice: {ledger:?}");
            let new = ledger.iter().any(|one| one.held_delta == 2);
            ensure!(new == (released == 1), "{ledger:?}");
            ensure!(!new || bought == 0, "the units are held: {ledger:?}");
            replaced += usize::from(new);
            expired += ended;
            sold += bought;
            Ok(())
        },
    );
    assert!(
        replaced > 0 && expired > 0 && sold > 0,
        "{replaced} replaced, {expired} expired, {sold} sold to another"
    );
}

/// Goal: no message of a batch makes a hold that was refused.
///
/// Method: random schedules of three holders, who may share a message that arrives late. A rival takes all units,
/// and returns them after a refusal.
#[test]
fn late_message_makes_no_hold_that_was_refused() {
    let (mut refused, mut late) = (0, 0);
    for number in 0..LATE {
        let explored = random_schedule(number).explore(
            |decisions| {
                let faults = Faults {
                    late_messages: 1,
                    ..Faults::default()
                };
                let state = MemoryStore::new(decisions).with_faults(faults);
                state.stock(&sku(SKU), 4);
                let policy = policy(6, false);
                let scheduler = scheduler(decisions, &state, &policy);
                let refusals = Arc::new(AtomicUsize::new(0));
                let holder = |key| {
                    let operation = operation(key, [hold(1, None)]);
                    let refusals = Arc::clone(&refusals);
                    let (store, scheduler, policy) =
                        (state.clone(), Arc::clone(&scheduler), policy.clone());
                    let task: Task<Answer> = Box::pin(async move {
                        let made = level_service::change(&store, &scheduler, &policy, &operation);
                        let made = made.await.map(drop);
                        refusals.fetch_add(made.is_err().into(), Relaxed);
                        (operation.id, made)
                    });
                    task
                };
                let mut tasks = ["first", "second", "third"]
                    .map(holder)
                    .into_iter()
                    .collect::<Vec<_>>();
                let store = state.clone();
                tasks.push(Box::pin(async move {
                    let taken = store.write(&adjustment(-4)).await;
                    let is_taken = matches!(taken, Ok(AttemptOutcome::Changed(_)));
                    for _ in 0..WAIT_STEPS {
                        if refusals.load(Relaxed) == 0 {
                            yield_once().await;
                        }
                    }
                    if is_taken {
                        let back = store.write(&adjustment(4)).await;
                        back.expect("no faults");
                    }
                    (OperationId::mint(), Ok(()))
                }));
                let noted = decisions.clone();
                World {
                    state: (state, noted),
                    tasks,
                }
            },
            |(store, decisions), answers: &[Answer]| {
                let audit = store.audit_now(&sku(SKU));
                ensure!(audit.consistent(), "{audit:?}");
                late += usize::from(decisions.noted().contains(&"a late message arrives"));
                let ledger = store.movements_now();
                for (operation, answer) in &answers[..3] {
                    let is_made = ledger.iter().any(|one| one.operation == *operation);
                    match answer {
                        Ok(()) => ensure!(is_made, "no movement of {operation}"),
                        Err(StockError::OutcomeUnknown { .. }) => {}
                        Err(error) => {
                            refused += 1;
                            ensure!(!is_made, "made, but the answer was `{error}`");
                        }
                    }
                }
                Ok(())
            },
        );
        explored.unwrap_or_else(|failure| panic!("{failure}"));
    }
    assert!(refused > 0 && late > 0, "{refused} refused, {late} late");
}
