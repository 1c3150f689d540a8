//! Tests of the division of a large batch, with a store that refuses rows.

use std::sync::Mutex;

use super::*;
use crate::stock::OperationId;

/// Refuses each batch with one of these operations.
struct Refusing {
    operations: Vec<OperationId>,
    error: fn() -> StoreError,
    alone: Mutex<Vec<OperationId>>,
}

impl Refusing {
    fn refuses(&self, operation: &Operation) -> bool {
        self.operations.contains(&operation.id)
    }
}

fn sold() -> AttemptOutcome {
    AttemptOutcome::Deducted { remaining: 0 }
}

impl BatchStore for Refusing {
    async fn attempt(
        &self,
        batch: &[Operation],
        _: BatchGuard,
    ) -> Result<BatchAttempt, StoreError> {
        let is_refused = batch.iter().any(|one| self.refuses(one));
        Ok(if is_refused {
            BatchAttempt::Alone
        } else {
            BatchAttempt::Answered(batch.iter().map(|_| Ok(sold())).collect())
        })
    }

    async fn alone(&self, operation: &Operation) -> BatchAnswer {
        self.alone.lock().unwrap().push(operation.id);
        if self.refuses(operation) {
            return Err((self.error)());
        }
        Ok(sold())
    }

    async fn attempt_free(
        &self,
        _: &[Operation],
        _: bool,
    ) -> Result<(Vec<Option<usize>>, BatchAttempt), StoreError> {
        unreachable!("one level")
    }

    async fn write_free_levels(
        &self,
        _: &Plan<'_>,
    ) -> Result<Option<Vec<Option<i64>>>, StoreError> {
        unreachable!("one level")
    }

    async fn recorded_among(&self, _: &[&Operation]) -> Result<Vec<Movement>, StoreError> {
        unreachable!("one level")
    }
}

#[tokio::test]
async fn refused_row_lets_few_of_a_large_batch_be_made_alone() {
    let batch: Vec<_> = (0..1_000).map(|_| Operation::sample("a")).collect();
    let store = Refusing {
        operations: vec![batch[300].id],
        error: || StoreError::Bug("a refused row".into()),
        alone: Mutex::default(),
    };

    let answers = write_batch(&store, &batch, false).await;

    let failed: Vec<_> = (0..1_000).filter(|&i| answers[i].is_err()).collect();
    assert_eq!(failed, [300]);
    let alone = store.alone.into_inner().unwrap();
    let part: Vec<_> = batch[256..512].iter().map(|one| one.id).collect();
    assert_eq!(alone, part);
}

/// If the error is not of the row but of the server, each of the others would get it.
#[tokio::test]
async fn single_attempts_stop_after_two_unexpected_errors() {
    let batch: Vec<_> = (0..100).map(|_| Operation::sample("a")).collect();
    let store = Refusing {
        operations: batch.iter().map(|one| one.id).collect(),
        error: || StoreError::Unexpected("a new error".into()),
        alone: Mutex::default(),
    };

    let answers = write_batch(&store, &batch, false).await;

    let (attempted, others) = answers.split_at(2);
    let is_unexpected = |answer: &BatchAnswer| matches!(answer, Err(StoreError::Unexpected(_)));
    assert!(attempted.iter().all(is_unexpected), "{attempted:?}");
    let is_conflict = |answer: &BatchAnswer| matches!(answer, Ok(AttemptOutcome::Conflict));
    assert!(others.iter().all(is_conflict), "{others:?}");
    assert_eq!(store.alone.into_inner().unwrap().len(), 2);
}
