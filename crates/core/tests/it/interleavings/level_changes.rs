//! Every schedule of two changes of a level, through the retries of the service.

use std::sync::Arc;

use anyhow::ensure;
use rstest::rstest;
use stocklock_core::deduct::Scheduler;
use stocklock_core::level_service::{self, Changed};
use stocklock_core::model::{Faults, MemoryStore, Task, World, yield_once};
use stocklock_core::stock::{
    self, Caller, Line, Operation, OperationId, Precondition, Scope, Setting, StockError, Warehouse,
};
use tokio::time::Instant;

use super::answers::{Answered, check_answers, explorer};
use super::requests::{SKU, adjustment, sku};
use super::scenario::{policy, scheduler};

/// Sets the level of [`SKU`] if the precondition holds.
pub(super) fn level_change(on_hand: i64, precondition: Precondition) -> Operation {
    let setting = stock::Change::Set(Setting {
        on_hand: Some(on_hand),
        backorder_limit: None,
        precondition: Some(precondition),
        scope: Scope::Sku,
    });
    let line = Line::new(sku(SKU), Warehouse::default(), setting);
    Operation::of_line(Caller::anonymous(), line, None, Instant::now())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    /// Creates the level with one unit.
    Create,
    /// Sets the existing level to five units.
    Set,
    /// Removes one unit.
    Remove,
}

impl Answered for Changed {
    fn replay_of(&self) -> Option<OperationId> {
        self.replayed.then_some(self.operation)
    }
}

type Answer = (OperationId, Result<Changed, StockError>);

impl Change {
    fn task(self, store: MemoryStore, scheduler: Arc<Scheduler>) -> Task<Answer> {
        Box::pin(async move {
            let policy = policy(6, false);
            yield_once().await;
            let change = match self {
                Self::Create => level_change(1, Precondition::Absent),
                Self::Set => level_change(5, Precondition::Exists),
                Self::Remove => adjustment(-1),
            };
            let made = level_service::change(&store, &scheduler, &policy, &change).await;
            (change.id, made)
        })
    }
}

/// A COMMIT loses its connection, and any statement may fail if there is one change. An answer says what the
/// ledger has, although the retry of a removal finds no unit left, and the retry of a creation a level.
#[rstest]
#[case::create([Change::Create].into())]
#[case::remove_the_last_unit([Change::Remove].into())]
#[case::set_and_remove([Change::Set, Change::Remove].into())]
fn answer_to_a_level_change_is_right_after_faults(#[case] changes: Vec<Change>) {
    let statements = u32::from(changes.len() == 1);
    let mut refused = 0;
    let explored = explorer().explore(
        |decisions| {
            let faults = Faults {
                commits: 1,
                statements,
                ..Faults::default()
            };
            let state = MemoryStore::new(decisions).with_faults(faults);
            if changes[0] != Change::Create {
                state.stock(&sku(SKU), 1);
            }
            let scheduler = scheduler(decisions, &state, &policy(6, false));
            let tasks = changes.iter();
            let tasks = tasks.map(|change| change.task(state.clone(), Arc::clone(&scheduler)));
            let tasks = tasks.collect();
            World { state, tasks }
        },
        |store, answers: &[Answer]| {
            check_answers(store, answers)?;
            for (change, (_, answer)) in changes.iter().zip(answers) {
                refused += u64::from(answer.is_err());
                // Who sets a level gets it.
                let right = |done: &Changed| {
                    done.created == (*change == Change::Create)
                        && (done.level.is_some() || *change == Change::Remove)
                };
                ensure!(
                    answer.as_ref().map_or(true, right),
                    "{change:?}: {answer:?}"
                );
            }
            if !store.movements_now().is_empty() {
                let audit = store.audit_now(&sku(SKU));
                ensure!(audit.consistent(), "{audit:?}");
            }
            Ok(())
        },
    );
    explored.unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(refused > 0, statements > 0);
}
