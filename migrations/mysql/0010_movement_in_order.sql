-- The ledger of a level in the order of its commits. Sales go on while the index is built.
ALTER TABLE movement
    ADD UNIQUE KEY /*M! IF NOT EXISTS */ movement_in_order (sku, warehouse, level_version),
    ALGORITHM = INPLACE, LOCK = NONE;
