//! Binds a ledger row, all of it but the units that it leaves.

/// Binds a record's values to a statement that inserts it: a macro, for the three drivers' query
/// types have no common one that could be named in a line.
macro_rules! bind_record {
    ($query:expr, $record:expr) => {
        $query
            .bind($record.operation_id)
            .bind($record.sku.as_str().to_owned())
            .bind($record.warehouse.as_str().to_owned())
            .bind($record.kind.clone())
            .bind($record.delta)
            .bind($record.read_version)
            .bind($record.strategy.clone())
            .bind($record.durability.clone())
            .bind($record.caller.clone())
            .bind($record.idempotency_key.clone())
            .bind($record.request_hash.clone())
            .bind($record.reason.clone())
            .bind($record.reference.clone())
    };
}
pub(super) use bind_record;
