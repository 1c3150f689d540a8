//! What every answer promises, and how many schedules are explored.

use std::fmt::Debug;

use anyhow::ensure;
use stocklock_core::model::{Explorer, MemoryStore};
use stocklock_core::stock::{Deducted, OperationId, StockError};

/// Maximum number of schedules per scenario. All scenarios together should take seconds.
const BOUND: u64 = 200_000;

/// The value of an environment variable.
#[expect(
    clippy::disallowed_methods,
    reason = "the environment chooses the seed and the size of the tests"
)]
pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The number in an environment variable.
pub(super) fn number(name: &str) -> Option<u64> {
    variable(name).map(|text| text.parse().expect("a number"))
}

/// What the random schedules are drawn from.
pub(super) fn seed() -> u64 {
    number("TEST_SEED").unwrap_or(1)
}

/// The random schedule with this number.
pub(super) fn random_schedule(number: u64) -> Explorer {
    let start = seed().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Explorer::walk(start.wrapping_add(number))
}

/// Whether `make verify` runs the tests.
pub(super) fn is_full_size() -> bool {
    variable("EXPLORE").is_some_and(|size| size == "full")
}

pub(super) fn explorer() -> Explorer {
    Explorer::up_to(if is_full_size() { u64::MAX } else { BOUND })
}

/// Checks that each answer says of its operation what the ledger has of it.
pub(super) fn check_answers<T: Answered>(
    store: &MemoryStore,
    answers: &[(OperationId, Result<T, StockError>)],
) -> anyhow::Result<()> {
    let ledger = store.movements_now();
    let movements = |operation| {
        let own = ledger.iter().filter(|one| one.operation == operation);
        own.count()
    };
    for (operation, result) in answers {
        let own = movements(*operation);
        match result {
            Ok(answer) => {
                let recorded = movements(answer.replay_of().unwrap_or(*operation));
                ensure!(recorded == 1, "{recorded} movements for {answer:?}");
                let is_first = answer.replay_of().is_none();
                ensure!(own == usize::from(is_first), "{own} for {answer:?}");
            }
            Err(StockError::OutcomeUnknown { .. }) => ensure!(own <= 1, "made {own} times"),
            Err(error) => ensure!(own == 0, "made, but the answer was `{error}`"),
        }
    }
    Ok(())
}

/// The answer to a request that was carried out.
pub(super) trait Answered: Debug {
    /// The operation of an earlier request, if this answers a retry of it.
    fn replay_of(&self) -> Option<OperationId>;
}

impl Answered for Deducted {
    fn replay_of(&self) -> Option<OperationId> {
        self.replayed.then_some(self.operation)
    }
}

impl<T: Answered> Answered for Option<T> {
    fn replay_of(&self) -> Option<OperationId> {
        self.as_ref().and_then(T::replay_of)
    }
}
