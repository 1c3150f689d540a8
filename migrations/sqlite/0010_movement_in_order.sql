-- The ledger of a level in the order of its commits.
CREATE UNIQUE INDEX movement_in_order ON movement (sku, warehouse, level_version);
