-- no-transaction
-- CONCURRENTLY: sales continue while the index is built. It is partial, because few movements have a
-- reference.
CREATE INDEX CONCURRENTLY IF NOT EXISTS movement_of_reference
    ON movement (caller, reference, operation_id) WHERE reference IS NOT NULL;
