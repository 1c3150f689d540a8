-- No query of this release uses it: `movement_in_order` begins with the SKU too. Each sale maintains it.
DROP INDEX IF EXISTS movement_of_sku;
