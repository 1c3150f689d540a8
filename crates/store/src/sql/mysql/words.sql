-- The words of MariaDB and MySQL: see ../read.sql. A word without text below its name is empty.

-- begin
BEGIN

-- begin_snapshot
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION READ ONLY, WITH CONSISTENT SNAPSHOT

-- begin_brief
BEGIN

-- begin_read_uncommitted
SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED; BEGIN

-- soon: a lock wait is bounded in seconds; MySQL waits as long as the session does
/*M! SET STATEMENT max_statement_time = 0.1 FOR */

-- lock_sku
-- Row locks do not cover rows that do not exist yet. Locks on the gaps between the rows, at REPEATABLE READ, would:
-- but transactions that create other SKUs share the gaps, and deadlock.

-- lock_rows
FOR UPDATE

-- lock_rows_now
FOR UPDATE NOWAIT

-- lock_free_rows
FOR UPDATE SKIP LOCKED

-- with_stock: the optimizer would read the whole table if it is short
STRAIGHT_JOIN stock FORCE INDEX (PRIMARY) ON stock.sku = wanted.text_1 AND stock.warehouse = wanted.text_2

-- with_each
STRAIGHT_JOIN $index ON

-- end_with_each

-- now: the function `now` is the time at the start of the statement
unix_timestamp(sysdate(6)) * 1000

-- created_at
date_format(created_at, '%Y-%m-%dT%H:%i:%s.%fZ')

-- integer
signed

-- no_table
FROM dual

-- use_index: MariaDB 10.11 would scan a level from its newest movement to where the page starts
FORCE INDEX ($index)

-- connection_limits: the second one is the limit of the user, or else the one of all users. Zero means no limit.
SELECT 'max_connections', cast(@@max_connections AS signed) FROM dual WHERE @@max_connections > 0
    UNION ALL SELECT 'max_user_connections', cast(@@max_user_connections AS signed)
        FROM dual WHERE @@max_user_connections > 0

-- wanted: with the collation of the columns; MariaDB reads the first comment, MySQL the second
(SELECT text_1 COLLATE /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */ AS text_1,
            text_2 COLLATE /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */ AS text_2,
            number, unhex(text_1) AS bytes
        FROM json_table($1, '$[*]' COLUMNS (
            text_1 varchar(64) CHARACTER SET utf8mb4 PATH '$[0]',
            text_2 varchar(255) CHARACTER SET utf8mb4 PATH '$[1]',
            number bigint PATH '$[2]')) AS list) AS wanted

-- set_version
ON DUPLICATE KEY UPDATE version = values(version)

-- wanted_lines
(SELECT unhex(id) AS operation_id, line, ends_at, sku, warehouse, units, reference
        FROM json_table($1, '$[*]' COLUMNS (
            id varchar(32) PATH '$[0]', line bigint PATH '$[1]', ends_at bigint PATH '$[2]',
            sku varchar(64) CHARACTER SET utf8mb4 PATH '$[3]',
            warehouse varchar(64) CHARACTER SET utf8mb4 PATH '$[4]', units bigint PATH '$[5]',
            reference varchar(200) CHARACTER SET utf8mb4 PATH '$[6]')) AS list) AS wanted
