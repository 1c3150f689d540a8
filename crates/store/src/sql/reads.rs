//! Reads: one statement each, outside any transaction. Audits and pages of the ledger have files of
//! their own.
//!
//! Those that a write needs use its connections. All others have connections of their own.

use async_trait::async_trait;

use super::dialect::Dialect;
use super::errors::before_commit;
use super::ledger_row;
use super::pool::Pool;
use super::rows;
use super::statement::{AnyRow, Statement, Value, values};
use super::write::json;
use super::{IDLE_LIMIT, LedgerQueries, READ, SqlStore, Store, audit, repeated_if_stale};
use crate::{Result, StoreError};
use stocklock_core::ports::LedgerReader;
use stocklock_core::stock::{
    Audit, Idempotency, LedgerPage, Movement, MovementFilter, OperationId, Sku, StockLevel,
    Warehouse,
};

impl<D: Dialect> SqlStore<D> {
    /// The rows of one statement.
    pub(super) async fn select<T: AnyRow>(
        &self,
        pool: &Pool<D>,
        statement: impl Into<Statement> + Send,
        values: &[Value<'_>],
    ) -> Result<Vec<T>> {
        let statement: Statement = statement.into();
        let read = || {
            self.read(READ, async {
                let mut connection = pool.acquire().await?;
                connection.rows(statement.clone(), values).await
            })
        };
        repeated_if_stale(read).await
    }

    /// The movements that a statement selects.
    pub(super) async fn select_movements(
        &self,
        pool: &Pool<D>,
        statement: impl Into<Statement> + Send,
        values: &[Value<'_>],
    ) -> Result<Vec<Movement>> {
        let found = self.select(pool, statement, values).await?;
        Ok(ledger_row::movements(found))
    }
}

#[async_trait]
impl<D: Dialect> LedgerReader for SqlStore<D> {
    async fn level(&self, sku: &Sku, warehouse: &Warehouse) -> Result<Option<StockLevel>> {
        let place = values![sku.as_str(), warehouse.as_str()];
        let pool = self.lookups().for_sku(sku);
        let found = self.select(&pool, &D::texts().level, &place).await?;
        Ok(rows::levels(found).pop())
    }

    async fn recorded(
        &self,
        sku: &Sku,
        operation: OperationId,
        idempotency: Option<&Idempotency>,
    ) -> Result<Option<Movement>> {
        let (pool, identity) = (
            self.lookups().for_sku(sku),
            identity(operation, idempotency),
        );
        let found = self
            .select_movements(&pool, &D::texts().recorded, &identity)
            .await?;
        Ok(self.at_standby(found).await?.pop())
    }
}

#[async_trait]
impl<D: Dialect> Store for SqlStore<D> {
    async fn ledger_id(&self) -> Result<String> {
        let found: Vec<(String,)> = self
            .select(&self.readers, &D::texts().ledger_id, &[])
            .await?;
        let found = found.into_iter().next().map(|(id,)| id);
        found.ok_or_else(|| StoreError::Bug("the table `ledger` has no row".into()))
    }
}

/// Selects the columns of `LedgerRow` from `movement`, which `rest` starts with.
pub(super) fn movements<D: Dialect>(rest: &str) -> Statement {
    Statement::built(format!("{} {rest}", D::texts().movements.as_str()))
}

/// The values of the statement `recorded`.
pub(super) fn identity(
    operation: OperationId,
    idempotency: Option<&Idempotency>,
) -> [Value<'_>; 3] {
    values![
        operation.0,
        idempotency.map(|idempotency| idempotency.caller.as_str()),
        idempotency.map(|idempotency| idempotency.key.as_str()),
    ]
}

#[async_trait]
impl<D: Dialect> LedgerQueries for SqlStore<D> {
    async fn levels_of(&self, sku: &Sku) -> Result<Vec<StockLevel>> {
        let pool = self.readers.for_sku(sku);
        let statement = &D::texts().levels_of_sku;
        let found = self.select(&pool, statement, &values![sku.as_str()]).await;
        Ok(rows::levels(found?))
    }

    async fn levels(&self, (sku, warehouse): (&str, &str), limit: u32) -> Result<Vec<StockLevel>> {
        let page = values![sku, warehouse, i64::from(limit)];
        let found = self
            .select(&self.readers, &D::texts().levels_page, &page)
            .await;
        Ok(rows::levels(found?))
    }

    async fn levels_among(&self, names: &[(Sku, Warehouse)]) -> Result<Vec<StockLevel>> {
        let list = json(names.iter());
        let statement = &D::texts().wanted_levels;
        let found = self
            .select(&self.readers, statement, &values![&*list])
            .await;
        Ok(rows::levels(found?))
    }

    async fn movements(&self, filter: &MovementFilter) -> Result<LedgerPage> {
        repeated_if_stale(|| self.ledger_page(filter)).await
    }

    async fn audit(&self, sku: &Sku) -> Result<Vec<Audit>> {
        let pool = self.ledger_readers.for_sku(sku);
        let read = || {
            self.read(audit::STATEMENTS, async {
                let mut tx = pool.begin(D::texts().begin_snapshot.as_str()).await?;
                let audits = audit::audit(&mut tx, sku).await?;
                tx.roll_back().await;
                Ok(audits)
            })
        };
        repeated_if_stale(read).await
    }

    fn backend(&self) -> &'static str {
        D::NAME
    }

    async fn check_writable(&self) -> Result<()> {
        self.read(READ, self.probe.check_writable()).await
    }

    async fn unsafe_settings(&self) -> Result<Vec<String>> {
        let limits = &D::texts().connection_limits;
        let reading = async {
            let mut connection = self.readers.acquire().await?;
            let found = D::unsafe_settings(&mut connection).await;
            let mut opened: Vec<(String, i64)> = Vec::new();
            if !limits.is_empty() {
                opened = connection.rows(limits, &[]).await?;
            }
            Ok((found.map_err(before_commit)?, opened))
        };
        let (mut found, limits) = self.read(2 * READ, reading).await?;
        let pools = [
            &self.writers,
            &self.readers,
            &self.ledger_readers,
            &self.probe,
        ];
        let opened: usize = pools.into_iter().map(Pool::size).sum();
        for (setting, limit) in limits {
            if usize::try_from(limit).is_ok_and(|limit| limit < opened) {
                found.push(format!(
                    "{setting} allows {limit} connections, but this replica may open {opened}, and with \
                     sql-lock 6 more; increase it, or lower DATABASE_POOL_SIZE"
                ));
            }
        }
        Ok(found)
    }

    async fn close_idle(&self) {
        // To close the last connection to a file of SQLite writes back its whole log.
        if !D::EMBEDDED {
            // Not the one for readiness.
            tokio::join!(
                self.writers.close_idle(IDLE_LIMIT),
                self.readers.close_idle(IDLE_LIMIT),
                self.ledger_readers.close_idle(IDLE_LIMIT)
            );
        }
    }

    async fn close(&self) {
        tokio::join!(
            self.writers.close(),
            self.readers.close(),
            self.ledger_readers.close(),
            self.probe.close()
        );
    }
}
