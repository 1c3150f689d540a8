//! Reads: one statement each, outside any transaction.

use async_trait::async_trait;

use super::dialect::{AnyRow, Dialect, Value, values};
use super::errors::before_commit;
use super::ledger_row::LedgerRow;
use super::rows::{self, AuditRow};
use super::{LedgerQueries, SqlStore};
use crate::StoreError;
use stocklock_core::ports::LedgerReader;
use stocklock_core::stock::{
    Audit, Idempotency, LevelCursor, Movement, MovementFilter, MovementKind, OperationId, Sku,
    StockLevel, Warehouse,
};

impl<D: Dialect> SqlStore<D> {
    /// The rows of one statement.
    pub(super) async fn select<T: AnyRow>(
        &self,
        statement: &'static str,
        values: &[Value<'_>],
    ) -> Result<Vec<T>, StoreError> {
        self.read(async {
            let mut connection = self.readers.acquire().await?;
            let found = connection.fetch(statement, values).await;
            found.map_err(before_commit)
        })
        .await
    }
}

#[async_trait]
impl<D: Dialect> LedgerReader for SqlStore<D> {
    async fn level(
        &self,
        sku: &Sku,
        warehouse: &Warehouse,
    ) -> Result<Option<StockLevel>, StoreError> {
        let place = values![sku.as_str(), warehouse.as_str()];
        let found = self.select(D::STATEMENTS.level, &place).await?.pop();
        found.map(rows::level).transpose()
    }

    async fn recorded(
        &self,
        _: &Sku,
        operation: OperationId,
        idempotency: Option<&Idempotency>,
    ) -> Result<Option<Movement>, StoreError> {
        let identity = values![
            operation.0,
            idempotency.map(|idempotency| idempotency.caller.as_str()),
            idempotency.map(|idempotency| idempotency.key.as_str()),
        ];
        let found = self.select(D::STATEMENTS.recorded, &identity).await?.pop();
        found.map(LedgerRow::movement).transpose()
    }
}

#[async_trait]
impl<D: Dialect> LedgerQueries for SqlStore<D> {
    async fn levels_of(&self, sku: &Sku) -> Result<Vec<StockLevel>, StoreError> {
        let statement = D::STATEMENTS.levels_of_sku;
        rows::levels(self.select(statement, &values![sku.as_str()]).await?)
    }

    async fn levels(
        &self,
        after: Option<&LevelCursor>,
        limit: u32,
    ) -> Result<Vec<StockLevel>, StoreError> {
        let page = values![
            after.map_or("", |cursor| cursor.sku.as_str()),
            after.map_or("", |cursor| cursor.warehouse.as_str()),
            i64::from(limit),
        ];
        rows::levels(self.select(D::STATEMENTS.levels, &page).await?)
    }

    async fn movements(&self, filter: &MovementFilter) -> Result<Vec<Movement>, StoreError> {
        let page = values![
            filter.sku.as_str(),
            filter.warehouse.as_ref().map(Warehouse::as_str),
            filter.kind.map(MovementKind::as_str),
            filter.reference.as_deref(),
            filter.before.map(|operation| operation.0),
            i64::from(filter.limit),
        ];
        let found: Vec<LedgerRow> = self.select(D::STATEMENTS.movements, &page).await?;
        found.into_iter().map(LedgerRow::movement).collect()
    }

    async fn audit(&self, sku: &Sku) -> Result<Vec<Audit>, StoreError> {
        let statement = D::STATEMENTS.audit;
        let found: Vec<AuditRow> = self.select(statement, &values![sku.as_str()]).await?;
        Ok(found.into_iter().map(Audit::from).collect())
    }

    fn backend(&self) -> &'static str {
        D::NAME
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.read(self.probe.ping()).await
    }

    async fn unsafe_settings(&self) -> Result<Vec<String>, StoreError> {
        self.read(async {
            let mut connection = self.readers.acquire().await?;
            let found = D::unsafe_settings(&mut connection).await;
            found.map_err(before_commit)
        })
        .await
    }

    async fn close(&self) {
        tokio::join!(
            self.writers.close(),
            self.readers.close(),
            self.probe.close()
        );
    }
}
