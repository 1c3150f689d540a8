//! Tests of the division of a large batch, with a store that refuses one row.

use std::sync::Mutex;

use super::*;

/// Refuses each batch with this operation.
struct Refusing {
    operation: OperationId,
    alone: Mutex<Vec<OperationId>>,
}

fn sold() -> AttemptOutcome {
    AttemptOutcome::Deducted { remaining: 0 }
}

impl BatchStore for Refusing {
    async fn attempt(
        &self,
        batch: &[Deduction],
        _: BatchGuard,
    ) -> Result<BatchAttempt, StoreError> {
        let is_refused = batch.iter().any(|one| one.operation == self.operation);
        Ok(if is_refused {
            BatchAttempt::Alone
        } else {
            BatchAttempt::Answered(batch.iter().map(|_| Ok(sold())).collect())
        })
    }

    async fn alone(&self, deduction: &Deduction) -> BatchAnswer {
        self.alone.lock().unwrap().push(deduction.operation);
        if deduction.operation == self.operation {
            return Err(StoreError::Bug("a refused row".into()));
        }
        Ok(sold())
    }

    async fn write_merged(
        &self,
        _: &[&BatchPlan<'_>],
    ) -> Result<Option<Vec<Option<i64>>>, StoreError> {
        unreachable!("one level")
    }

    async fn recorded_sales(&self, _: &[&BatchPlan<'_>]) -> Result<Vec<Movement>, StoreError> {
        unreachable!("one level")
    }
}

#[tokio::test]
async fn refused_row_lets_few_of_a_large_batch_be_made_alone() {
    let batch: Vec<_> = (0..1_000).map(|_| Deduction::sample("a")).collect();
    let store = Refusing {
        operation: batch[300].operation,
        alone: Mutex::default(),
    };

    let answers = deduct_batch(&store, &batch, false).await;

    let failed: Vec<_> = (0..1_000).filter(|&i| answers[i].is_err()).collect();
    assert_eq!(failed, [300]);
    let alone = store.alone.into_inner().unwrap();
    let part: Vec<_> = batch[256..512].iter().map(|one| one.operation).collect();
    assert_eq!(alone, part);
}
