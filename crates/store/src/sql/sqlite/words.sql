-- The words of SQLite: see ../read.sql. A word without text below its name is empty.

-- begin
BEGIN IMMEDIATE

-- begin_snapshot
BEGIN

-- begin_brief
BEGIN IMMEDIATE

-- begin_read_uncommitted

-- soon

-- lock_sku

-- lock_rows

-- lock_rows_now

-- lock_free_rows

-- with_stock
JOIN stock ON stock.sku = wanted.text_1 AND stock.warehouse = wanted.text_2

-- with_each
JOIN $index ON

-- end_with_each

-- now
unixepoch('now', 'subsec') * 1000

-- created_at
created_at

-- integer
integer

-- no_table

-- use_index: without statistics, SQLite may choose an index that reads all movements of the level
INDEXED BY $index

-- connection_limits

-- wanted
(SELECT value ->> 0 AS text_1, value ->> 1 AS text_2, value ->> 2 AS number, unhex(value ->> 0) AS bytes
        FROM jsonb_each($1)) AS wanted

-- set_version: follows the insert of `published`
ON CONFLICT (sku, warehouse) DO UPDATE SET version = excluded.version

-- wanted_lines
(SELECT unhex(value ->> 0) AS operation_id, value ->> 1 AS line, value ->> 2 AS ends_at, value ->> 3 AS sku,
        value ->> 4 AS warehouse, value ->> 5 AS units, value ->> 6 AS reference FROM jsonb_each($1)) AS wanted
