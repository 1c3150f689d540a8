-- no-transaction
-- CONCURRENTLY: sales continue while the index is built.
CREATE INDEX CONCURRENTLY IF NOT EXISTS movement_of_sale
    ON movement (reverses) WHERE reverses IS NOT NULL;
