//! Every schedule of a hold that is confirmed while it expires.

use std::sync::Arc;

use anyhow::ensure;
use stocklock_core::level_service;
use stocklock_core::model::{Faults, MemoryStore, Task, World};
use stocklock_core::ports::HoldStore as _;
use stocklock_core::stock::{
    Caller, Change, Ending, Holding, How, Idempotency, IdempotencyKey, Line, MovementKind,
    Operation, OperationId, Quantity, Remarks, RequestHash, StockError, Warehouse,
};
use tokio::time::Instant;

use super::answers::{explorer, is_full_size};
use super::requests::{SKU, sku};
use super::scenario::{WAIT_LIMIT, policy, scheduler};

/// An operation of one line of [`SKU`].
fn operation(key: &str, change: Change) -> Operation {
    let lines = vec![Line::new(sku(SKU), Warehouse::default(), change)];
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

fn end(key: &str, hold: OperationId, how: How) -> Operation {
    let line = 0;
    operation(key, Change::End(Ending { hold, line, how }))
}

type Answer = (OperationId, Result<(), StockError>);

/// In `make verify`, a COMMIT may lose its connection. The unit is held once, the hold ends once, and its unit is sold once, in time
/// or late.
#[test]
fn hold_ends_once_in_every_schedule() {
    let (mut confirmed, mut expired, mut lost) = (0, 0, 0);
    let explored = explorer().explore(
        |decisions| {
            let faults = Faults {
                // With one there are millions of schedules.
                commits: u32::from(is_full_size()),
                ..Faults::default()
            };
            let state = MemoryStore::new(decisions).with_faults(faults);
            state.stock(&sku(SKU), 1);
            let policy = policy(6, false);
            let scheduler = scheduler(decisions, &state, &policy);
            let hold = operation(
                "hold",
                Change::Hold(Holding {
                    quantity: Quantity::ONE,
                    lasts: Some(1),
                }),
            );
            let hold_id = hold.id;
            let change = |operation: Operation| {
                let (store, scheduler, policy) =
                    (state.clone(), Arc::clone(&scheduler), policy.clone());
                async move {
                    let id = operation.id;
                    let made = level_service::change(&store, &scheduler, &policy, &operation).await;
                    (id, made.map(drop))
                }
            };
            let confirm = How::Confirm {
                units: 1,
                late: true,
            };
            let (hold, confirm) = (change(hold), change(end("confirm", hold_id, confirm)));
            let owner: Task<Answer> = Box::pin(async move {
                let made = hold.await;
                if made.1.is_err() {
                    return made;
                }
                confirm.await
            });
            let (store, expire) = (state.clone(), change(end("expire", hold_id, How::Expire)));
            let janitor: Task<Answer> = Box::pin(async move {
                store.pass_time().await;
                store.pass_time().await;
                let due = store.open_lines(&[hold_id]).await;
                if due.is_ok_and(|due| due.iter().any(|one| one.is_due)) {
                    return expire.await;
                }
                (hold_id, Err(StockError::NotAHold))
            });
            World {
                state,
                tasks: vec![owner, janitor],
            }
        },
        |store, answers: &[Answer]| {
            let audit = store.audit_now(&sku(SKU));
            ensure!(audit.consistent(), "{audit:?}");
            let open: i64 = store.holds_now().iter().map(|one| one.units).sum();
            ensure!(audit.held == open, "{audit:?}, {open} open");
            let ledger = store.movements_now();
            let count = |kind: &MovementKind| ledger.iter().filter(|one| one.kind == *kind).count();
            let (held, sold) = (count(&MovementKind::Held), count(&MovementKind::Deducted));
            let ended = count(&MovementKind::Expired);
            ensure!(held <= 1 && ended <= held && sold <= held, "{ledger:?}");
            for (operation, answer) in answers {
                let own = ledger.iter().filter(|one| one.operation == *operation);
                let own = own.count();
                match answer {
                    Ok(()) => ensure!(own == 1, "{own} movements of {operation}"),
                    Err(StockError::OutcomeUnknown { .. } | StockError::NotAHold) => {}
                    Err(error) => ensure!(own == 0, "made, but the answer was `{error}`"),
                }
            }
            confirmed += usize::from(sold == 1);
            expired += usize::from(ended == 1);
            lost += usize::from(ended == 1 && sold == 1);
            Ok(())
        },
    );
    explored.unwrap_or_else(|failure| panic!("{failure}"));
    assert!(
        confirmed > 0 && expired > 0 && lost > 0,
        "{confirmed} confirmed, {expired} expired, {lost} of them sold late"
    );
}
