//! Looking up what operations did.

use async_trait::async_trait;
use uuid::Uuid;

use super::SqlStore;
use super::dialect::Dialect;
use super::statement::{Statement, Value, values};
use super::write::json;
use crate::Result;
use stocklock_core::stock::{Caller, IdempotencyKey, Movement, OperationFilter};

/// Looks up operations in the ledger.
#[async_trait]
pub trait OperationQueries: Send + Sync {
    /// The movements that the ledger has of the operations. An empty list says nothing about requests that
    /// still run.
    async fn operations(&self, of: &OperationFilter) -> Result<Vec<Movement>>;

    /// The movements that the ledger has with these keys of a caller, in any order.
    async fn with_keys(&self, caller: &Caller, keys: &[IdempotencyKey]) -> Result<Vec<Movement>>;
}

#[async_trait]
impl<D: Dialect> OperationQueries for SqlStore<D> {
    async fn operations(&self, of: &OperationFilter) -> Result<Vec<Movement>> {
        let (statement, values) = select::<D>(of);
        let found = self
            .select_movements(&self.ledger_readers, statement, &values)
            .await?;
        self.at_standby(found).await
    }

    async fn with_keys(&self, caller: &Caller, keys: &[IdempotencyKey]) -> Result<Vec<Movement>> {
        let list = json(keys.iter().map(|key| (caller.as_str(), key.as_str())));
        let (readers, statement) = (&self.ledger_readers, &D::texts().with_keys);
        let found = self
            .select_movements(readers, statement, &values![&*list])
            .await?;
        self.at_standby(found).await
    }
}

/// Selects the movements of the operations.
pub(super) fn select<D: Dialect>(of: &OperationFilter) -> (&'static Statement, Vec<Value<'_>>) {
    let texts = D::texts();
    match of {
        OperationFilter::Id(operation) => (&texts.operation, values![operation.0].to_vec()),
        OperationFilter::Key(caller, key) => {
            let values = values![caller.as_str(), key.as_str()];
            (&texts.operation_with_key, values.to_vec())
        }
        OperationFilter::Reference {
            caller,
            reference,
            before,
            limit,
        } => {
            let values = values![
                caller.as_str(),
                reference.as_str(),
                before.map_or(Uuid::max(), |operation| operation.0),
                i64::from(*limit),
            ];
            (&texts.operations_with_reference, values.to_vec())
        }
    }
}
