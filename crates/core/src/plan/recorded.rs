//! Which operations are recorded already, by their ids and keys.

use std::collections::{HashMap, HashSet};

use crate::stock::{Idempotency, Movement, Operation, OperationId};

/// The movements that the ledger has.
#[derive(Debug)]
pub struct Recorded<'a> {
    operations: HashMap<OperationId, &'a Movement>,
    keys: HashMap<(&'a str, &'a str), &'a Movement>,
}

impl<'a> Recorded<'a> {
    /// Finds operations among `movements`.
    #[must_use]
    pub fn new(movements: &'a [Movement]) -> Self {
        let with_key = |movement: &'a Movement| {
            let key = movement.idempotency_key.as_deref()?;
            Some(((&*movement.caller, key), movement))
        };
        let mut operations = HashMap::with_capacity(movements.len());
        for one in movements {
            // The first movement has the key.
            let first = operations.entry(one.operation).or_insert(one);
            if one.line < first.line {
                *first = one;
            }
        }
        Self {
            operations,
            keys: movements.iter().filter_map(with_key).collect(),
        }
    }

    /// The first movement of the operation, or else the one with its key.
    #[must_use]
    pub fn find(&self, operation: &Operation) -> Option<&'a Movement> {
        let by_key = || self.keys.get(&key(operation.idempotency.as_ref()?));
        let by_operation = self.operations.get(&operation.id);
        by_operation.or_else(by_key).copied()
    }
}

/// The ids and keys of the operations that a plan writes.
#[derive(Debug, Default)]
pub(super) struct Identities<'a> {
    operations: HashSet<OperationId>,
    keys: HashSet<(&'a str, &'a str)>,
}

impl<'a> Identities<'a> {
    pub(super) fn has(&self, operation: &Operation) -> bool {
        let idempotency = operation.idempotency.as_ref();
        self.operations.contains(&operation.id)
            || idempotency.is_some_and(|one| self.keys.contains(&key(one)))
    }

    pub(super) fn add(&mut self, operation: &'a Operation) {
        self.operations.insert(operation.id);
        self.keys.extend(operation.idempotency.as_ref().map(key));
    }
}

/// The values of the ledger's unique index.
fn key(idempotency: &Idempotency) -> (&str, &str) {
    (idempotency.caller.as_str(), idempotency.key.as_str())
}
