-- no-transaction
-- The ledger of a level in the order of its commits. Sales go on while the index is built.
CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS movement_in_order
    ON movement (sku, warehouse, level_version);
