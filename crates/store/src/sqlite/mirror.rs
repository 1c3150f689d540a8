//! What `SQLite` does for the stock that lives in Redis, in the same order as the other back
//! ends.

use std::collections::HashSet;

use async_trait::async_trait;
use sqlx::{QueryBuilder, Sqlite, Transaction};
use uuid::Uuid;

use super::{SqliteStore, transaction};
use crate::StoreError;
use crate::journal::{self, EntryId, Journaled, last_of_each_level};
use crate::mirror::{LedgerUpTo, Mirror, Mirrored, OPERATIONS_AT_ONCE};
use crate::pool::{self, conflict_if_duplicate, failed};
use crate::sql::ledger_row::LedgerRow;
use crate::sql::rows::{AuditRow, MirrorRow};
use stocklock_core::stock::{Durability, Sku, Warehouse};

const LEDGER_ID: &str = "SELECT id FROM ledger";

const MIRRORED: &str = "SELECT sku, warehouse, on_hand, held, backorder_limit, version,
        home, journal_millis, journal_number
    FROM stock WHERE sku = ?1 AND warehouse = ?2";

const MIRROR: &str = "UPDATE stock
    SET on_hand = ?3, held = ?4, backorder_limit = ?5, version = ?6,
        journal_millis = ?7, journal_number = ?8
    WHERE sku = ?1 AND warehouse = ?2 AND home = 'redis'
        AND (journal_millis < ?7 OR journal_millis = ?7 AND journal_number < ?8)";

/// Followed by rows.
const RECORD_ALL: &str = "INSERT INTO movement
    (operation_id, line, sku, warehouse, kind, delta, available_after, read_version, strategy,
     durability, caller, idempotency_key, request_hash, reason, reference, created_at,
     journal_millis, journal_number) ";

/// A key that another operation has is that operation's; the movement is recorded without it.
const RECORD: &str = "INSERT INTO movement
    (operation_id, line, sku, warehouse, kind, delta, available_after, read_version, strategy,
     durability, caller, idempotency_key, request_hash, reason, reference, created_at,
     journal_millis, journal_number)
    SELECT ?1, 0, ?2, ?3, ?4, ?5, ?6, ?7,
        ?8, ?9, ?10,
        CASE WHEN EXISTS (SELECT 1 FROM movement WHERE caller = ?10 AND idempotency_key = ?11)
            THEN NULL ELSE ?11 END,
        ?12, ?13, ?14,
        strftime('%Y-%m-%dT%H:%M:%fZ', ?15 / 1000.0, 'unixepoch'), ?15, ?16
    WHERE NOT EXISTS (SELECT 1 FROM movement WHERE operation_id = ?1 AND line = 0)";

/// Followed by a list of operations.
const RECORDED_AMONG: &str = "SELECT operation_id FROM movement
    WHERE line = 0 AND operation_id IN ";

const LEDGER_SUMS: &str = "SELECT s.warehouse, coalesce(m.received_by_then, 0) AS received,
        coalesce(m.sold_by_then, 0) AS sold,
        s.on_hand, s.held, s.backorder_limit
    FROM stock s LEFT JOIN (
        SELECT warehouse,
            sum(CASE WHEN kind <> 'deducted' THEN delta ELSE 0 END) AS received_by_then,
            sum(CASE WHEN kind = 'deducted' THEN -delta ELSE 0 END) AS sold_by_then
        FROM movement
        WHERE sku = ?1 AND NOT coalesce(journal_millis > ?2
            OR journal_millis = ?2 AND journal_number > ?3, false)
        GROUP BY warehouse
    ) m ON m.warehouse = s.warehouse
    WHERE s.sku = ?1 ORDER BY s.warehouse";

const LAST_RECORDED: &str = "SELECT journal_millis, journal_number FROM movement
    WHERE sku = ?1 AND journal_millis IS NOT NULL
    ORDER BY journal_millis DESC, journal_number DESC LIMIT 1";

#[async_trait]
impl Mirror for SqliteStore {
    async fn ledger_id(&self) -> Result<String, StoreError> {
        sqlx::query_scalar(LEDGER_ID)
            .fetch_one(&self.readers)
            .await
            .map_err(|error| self.unread(error))
    }

    async fn mirrored(
        &self,
        sku: &Sku,
        warehouse: &Warehouse,
    ) -> Result<Option<Mirrored>, StoreError> {
        let row = sqlx::query_as(MIRRORED)
            .bind(sku.as_str())
            .bind(warehouse.as_str())
            .fetch_optional(&self.readers)
            .await
            .map_err(|error| self.unread(error))?;
        row.map(|row: MirrorRow| row.try_into()).transpose()
    }

    async fn follow(&self, entries: &[&Journaled]) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        mirror_all(&mut tx, entries).await?;
        let movements = journal::movements(entries);
        if !record_all(&mut tx, &movements).await? {
            // Some are there already: each is to be looked at.
            transaction::roll_back(tx).await;
            tx = self.begin().await?;
            mirror_all(&mut tx, entries).await?;
            for movement in movements {
                record(&mut tx, movement).await?;
            }
        }
        transaction::commit(tx).await
    }

    async fn ledger_up_to(
        &self,
        sku: &Sku,
        last: EntryId,
        operations: &[Uuid],
    ) -> Result<LedgerUpTo, StoreError> {
        // One that reads sees what the file had when it first did.
        let mut tx = self
            .readers
            .begin()
            .await
            .map_err(|error| self.unread(error))?;
        let sums = sqlx::query_as(LEDGER_SUMS)
            .bind(sku.as_str())
            .bind(last.millis)
            .bind(last.number)
            .fetch_all(&mut *tx)
            .await
            .map_err(failed)?;
        let mut recorded = HashSet::new();
        for operations in operations.chunks(OPERATIONS_AT_ONCE) {
            recorded.extend(recorded_among(&mut tx, operations).await?);
        }
        transaction::roll_back(tx).await;
        let sums = sums.into_iter().map(|row: AuditRow| row.into());
        Ok(LedgerUpTo {
            sums: sums.collect(),
            recorded,
        })
    }

    async fn last_recorded(&self, sku: &Sku) -> Result<EntryId, StoreError> {
        let found: Option<(i64, i64)> = sqlx::query_as(LAST_RECORDED)
            .bind(sku.as_str())
            .fetch_optional(&self.readers)
            .await
            .map_err(|error| self.unread(error))?;
        Ok(
            found.map_or(EntryId::default(), |(millis, number)| EntryId {
                millis,
                number,
            }),
        )
    }
}

async fn recorded_among(
    tx: &mut Transaction<'static, Sqlite>,
    operations: &[Uuid],
) -> Result<Vec<Uuid>, StoreError> {
    let mut query = QueryBuilder::<Sqlite>::new(RECORDED_AMONG);
    let mut list = query.push("(").separated(", ");
    for operation in operations {
        list.push_bind(*operation);
    }
    query.push(")");
    query
        .build_query_scalar()
        .persistent(false)
        .fetch_all(&mut **tx)
        .await
        .map_err(failed)
}

/// Brings the mirrors up to the last of the entries.
async fn mirror_all(
    tx: &mut Transaction<'static, Sqlite>,
    entries: &[&Journaled],
) -> Result<(), StoreError> {
    for entry in last_of_each_level(entries) {
        let (sku, warehouse) = entry.place();
        sqlx::query(MIRROR)
            .bind(sku)
            .bind(warehouse)
            .bind(entry.on_hand)
            .bind(entry.held)
            .bind(entry.backorder_limit)
            .bind(entry.version)
            .bind(entry.id.millis)
            .bind(entry.id.number)
            .execute(&mut **tx)
            .await
            .map_err(failed)?;
    }
    Ok(())
}

/// Records movements that are new to the ledger by one statement; answers whether all are. Where they
/// are not, the transaction is of no use any more.
async fn record_all(
    tx: &mut Transaction<'static, Sqlite>,
    movements: &[&LedgerRow],
) -> Result<bool, StoreError> {
    if movements.is_empty() {
        return Ok(true);
    }
    let mut query = QueryBuilder::<Sqlite>::new(RECORD_ALL);
    query.push_values(movements, |mut row, movement| {
        let note = movement;
        row.push_bind(note.operation_id)
            .push("0")
            .push_bind(&note.sku.as_str())
            .push_bind(&note.warehouse.as_str())
            .push_bind(&*note.kind)
            .push_bind(note.delta)
            .push_bind(movement.available_after)
            .push_bind(note.read_version)
            .push_bind(&note.strategy)
            .push_bind(Durability::Redis.as_str())
            .push_bind(&note.caller)
            .push_bind(&note.idempotency_key)
            .push_bind(&note.request_hash)
            .push_bind(&note.reason)
            .push_bind(&note.reference)
            .push("strftime('%Y-%m-%dT%H:%M:%fZ', ")
            .push_bind_unseparated(movement.entry.millis)
            .push_unseparated(" / 1000.0, 'unixepoch')")
            .push_bind(movement.entry.millis)
            .push_bind(movement.entry.number);
    });
    let inserted = query.build().persistent(false).execute(&mut **tx).await;
    pool::recorded(inserted.map(drop), false)
}

/// Another one that records the same operation, or the same key, at this moment makes it a conflict;
/// afterwards the statement sees what it is.
async fn record(
    tx: &mut Transaction<'static, Sqlite>,
    movement: &LedgerRow,
) -> Result<(), StoreError> {
    let note = movement;
    let inserted = sqlx::query(RECORD)
        .bind(note.operation_id)
        .bind(&note.sku.as_str())
        .bind(&note.warehouse.as_str())
        .bind(&*note.kind)
        .bind(note.delta)
        .bind(movement.available_after)
        .bind(note.read_version)
        .bind(&note.strategy)
        .bind(Durability::Redis.as_str())
        .bind(&note.caller)
        .bind(&note.idempotency_key)
        .bind(&note.request_hash)
        .bind(&note.reason)
        .bind(&note.reference)
        .bind(movement.entry.millis)
        .bind(movement.entry.number)
        .execute(&mut **tx)
        .await;
    inserted
        .map(drop)
        .map_err(|error| conflict_if_duplicate(error, failed))
}
