//! Looking up what operations did.

use async_trait::async_trait;
use uuid::Uuid;

use super::SqlStore;
use super::dialect::Dialect;
use super::reads::movements;
use super::statement::{Statement, Value, values};
use super::statements::OF_CALLER_REFERENCE;
use crate::Result;
use stocklock_core::stock::{Movement, OperationFilter};

/// Looks up operations in the ledger.
#[async_trait]
pub trait OperationQueries: Send + Sync {
    /// The movements that the ledger has of the operations. An empty list says nothing about requests that
    /// still run.
    async fn operations(&self, of: &OperationFilter) -> Result<Vec<Movement>>;
}

#[async_trait]
impl<D: Dialect> OperationQueries for SqlStore<D> {
    async fn operations(&self, of: &OperationFilter) -> Result<Vec<Movement>> {
        let (statement, values) = select::<D>(of);
        self.select_movements(&self.ledger_readers, statement, &values)
            .await
    }
}

/// Selects the movements of the operations.
pub(super) fn select<D: Dialect>(of: &OperationFilter) -> (Statement, Vec<Value<'_>>) {
    let (table, rest, values) = match of {
        OperationFilter::Id(operation) => (
            "movement".to_owned(),
            "operation_id = $1 ORDER BY line".to_owned(),
            values![operation.0].to_vec(),
        ),
        OperationFilter::Key(caller, key) => (
            "movement".to_owned(),
            // Only the first movement has the key.
            "operation_id = (SELECT operation_id FROM movement
                WHERE caller = $1 AND idempotency_key = $2) ORDER BY line"
                .to_owned(),
            values![caller.as_str(), key.as_str()].to_vec(),
        ),
        OperationFilter::Reference {
            caller,
            reference,
            before,
            limit,
        } => (
            D::WORDS.movements_by(OF_CALLER_REFERENCE),
            // Without `OR`, for which a database would read the pages before this one.
            // The lines too in the order of the index.
            "caller = $1 AND reference = $2 AND operation_id < $3
                ORDER BY operation_id DESC, line DESC LIMIT $4"
                .to_owned(),
            values![
                caller.as_str(),
                reference.as_str(),
                before.map_or(Uuid::max(), |operation| operation.0),
                i64::from(*limit),
            ]
            .to_vec(),
        ),
    };
    let statement = Statement {
        // PostgreSQL would keep a plan that reads the whole ledger, made when that was short.
        persistent: D::WORDS.plans_for_any_size,
        ..movements::<D>(&format!("{table} WHERE {rest}"))
    };
    (statement, values)
}
