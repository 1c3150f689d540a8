-- The movements of older releases in the order of their operations. There is no partial index, and
-- a unique index does not have the primary key's order.
ALTER TABLE movement
    ADD KEY /*M! IF NOT EXISTS */ movement_unnumbered (sku, warehouse, level_version, operation_id),
    ALGORITHM = INPLACE, LOCK = NONE;
