-- The movements of older releases in the order of their operations.
CREATE INDEX movement_unnumbered ON movement (sku, warehouse, operation_id)
    WHERE level_version IS NULL;
