//! Reads: one statement each, outside any transaction. Audits and pages of the ledger have files of
//! their own.
//!
//! Those that a write needs use its connections. All others have connections of their own.

use async_trait::async_trait;

use super::dialect::Dialect;
use super::errors::before_commit;
use super::ledger_row::LedgerRow;
use super::pool::Pool;
use super::rows;
use super::statement::{AnyRow, Statement, Value, values};
use super::statements::{self, LEDGER_COLUMNS, LEVEL_COLUMNS, Words};
use super::{IDLE_LIMIT, LedgerQueries, READ, SqlStore, Store, audit, repeated_if_stale};
use crate::{Result, StoreError};
use stocklock_core::ports::LedgerReader;
use stocklock_core::stock::{
    Audit, Idempotency, LedgerPage, LevelCursor, Movement, MovementFilter, OperationId, Sku,
    StockLevel, Warehouse,
};

const LEDGER_ID: &str = "SELECT id FROM ledger";

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
                let found = connection.fetch(statement.clone(), values).await;
                found.map_err(before_commit)
            })
        };
        repeated_if_stale(read).await
    }

    /// The movements that a statement selects.
    pub(super) async fn select_movements(
        &self,
        pool: &Pool<D>,
        statement: Statement,
        values: &[Value<'_>],
    ) -> Result<Vec<Movement>> {
        let found: Vec<LedgerRow> = self.select(pool, statement, values).await?;
        found.into_iter().map(LedgerRow::movement).collect()
    }
}

#[async_trait]
impl<D: Dialect> LedgerReader for SqlStore<D> {
    async fn level(&self, sku: &Sku, warehouse: &Warehouse) -> Result<Option<StockLevel>> {
        let place = values![sku.as_str(), warehouse.as_str()];
        let pool = self.lookups().for_sku(sku);
        let found = self.select(&pool, statements::level(""), &place).await?;
        Ok(rows::levels(found).pop())
    }

    async fn recorded(
        &self,
        sku: &Sku,
        operation: OperationId,
        idempotency: Option<&Idempotency>,
    ) -> Result<Option<Movement>> {
        let (statement, identity) = recorded::<D>(operation, idempotency);
        let pool = self.lookups().for_sku(sku);
        let found = self.select_movements(&pool, statement, &identity).await;
        Ok(found?.pop())
    }
}

#[async_trait]
impl<D: Dialect> Store for SqlStore<D> {
    async fn ledger_id(&self) -> Result<String> {
        let found: Vec<(String,)> = self.select(&self.readers, LEDGER_ID, &[]).await?;
        let found = found.into_iter().next().map(|(id,)| id);
        found.ok_or_else(|| StoreError::Bug("the table `ledger` has no row".into()))
    }
}

/// Selects the columns of `LedgerRow` from `movement`, which `rest` starts with.
pub(super) fn movements<D: Dialect>(rest: &str) -> Statement {
    let Words {
        created_at,
        integer,
        ..
    } = D::WORDS;
    let columns = &*LEDGER_COLUMNS;
    Statement::built(format!(
        "SELECT {columns}, cast(line AS {integer}) AS line, {created_at} AS created_at FROM {rest}"
    ))
}

/// Selects the first movement of an operation, or else the one with its key.
pub(super) fn recorded<D: Dialect>(
    operation: OperationId,
    idempotency: Option<&Idempotency>,
) -> (Statement, [Value<'_>; 3]) {
    let by_identity = "movement WHERE operation_id = $1 OR caller = $2 AND idempotency_key = $3
            ORDER BY operation_id = $1 DESC, line LIMIT 1";
    let identity = values![
        operation.0,
        idempotency.map(|idempotency| idempotency.caller.as_str()),
        idempotency.map(|idempotency| idempotency.key.as_str()),
    ];
    (movements::<D>(by_identity), identity)
}

#[async_trait]
impl<D: Dialect> LedgerQueries for SqlStore<D> {
    async fn levels_of(&self, sku: &Sku) -> Result<Vec<StockLevel>> {
        let pool = self.readers.for_sku(sku);
        let statement = statements::levels_of_sku("");
        let found = self.select(&pool, statement, &values![sku.as_str()]).await;
        Ok(rows::levels(found?))
    }

    async fn levels(&self, after: Option<&LevelCursor>, limit: u32) -> Result<Vec<StockLevel>> {
        // MariaDB would read the index from its start for `(sku, warehouse) > ($1, $2)`.
        let statement = Statement::built(format!(
            "SELECT {LEVEL_COLUMNS} FROM stock
            WHERE sku >= $1 AND (sku > $1 OR warehouse > $2)
            ORDER BY sku, warehouse LIMIT $3"
        ));
        let page = values![
            after.map_or("", |cursor| cursor.sku.as_str()),
            after.map_or("", |cursor| cursor.warehouse.as_str()),
            i64::from(limit),
        ];
        let found = self.select(&self.readers, statement, &page).await;
        Ok(rows::levels(found?))
    }

    async fn movements(&self, filter: &MovementFilter) -> Result<LedgerPage> {
        repeated_if_stale(|| self.ledger_page(filter)).await
    }

    async fn audit(&self, sku: &Sku) -> Result<Vec<Audit>> {
        let pool = self.ledger_readers.for_sku(sku);
        let read = || {
            self.read(audit::STATEMENTS, async {
                let mut tx = pool.begin(D::WORDS.begin_snapshot).await?;
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
        let (mut found, limits) = self
            .read(2 * READ, async {
                let mut connection = self.readers.acquire().await?;
                let found = D::unsafe_settings(&mut connection).await;
                let limits = D::connection_limits(&mut connection).await;
                Ok((
                    found.map_err(before_commit)?,
                    limits.map_err(before_commit)?,
                ))
            })
            .await?;
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
