-- The words of PostgreSQL: see ../read.sql. A word without text below its name is empty.

-- begin
BEGIN

-- begin_snapshot
BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY

-- begin_brief
BEGIN; SET LOCAL lock_timeout = 100

-- begin_read_uncommitted

-- soon

-- lock_sku: row locks do not cover rows that do not exist yet. Without this lock, two transactions could both find a
-- SKU absent and create it, although both asked for that.
SELECT pg_advisory_xact_lock(hashtextextended($1, 0))

-- lock_rows
FOR UPDATE

-- lock_rows_now
FOR UPDATE NOWAIT

-- lock_free_rows
FOR UPDATE OF stock SKIP LOCKED

-- with_each: otherwise the planner, which expects a list of 100, would read the whole table if it has, or had, few rows
CROSS JOIN LATERAL (SELECT * FROM $index WHERE

-- end_with_each
OFFSET 0) AS $index

-- with_stock
{with_each stock} stock.sku = wanted.text_1 AND stock.warehouse = wanted.text_2 {end_with_each stock}

-- now: the function `now` is the time at the start of the transaction
extract(epoch FROM clock_timestamp()) * 1000

-- created_at
to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')

-- integer
bigint

-- no_table

-- use_index

-- connection_limits: superusers have none of their own. -1 means no limit.
SELECT limits.name, limits.connections
    FROM pg_roles CROSS JOIN pg_database CROSS JOIN LATERAL (VALUES
        ('max_connections', current_setting('max_connections')::bigint - CASE WHEN rolsuper THEN 0
            ELSE current_setting('superuser_reserved_connections')::bigint END),
        ('the CONNECTION LIMIT of the user', CASE WHEN NOT rolsuper THEN rolconnlimit END),
        ('the CONNECTION LIMIT of the database', CASE WHEN NOT rolsuper THEN datconnlimit END)
    ) AS limits (name, connections)
    WHERE rolname = session_user AND datname = current_database() AND limits.connections >= 0

-- wanted
(SELECT value ->> 0 AS text_1, value ->> 1 AS text_2, (value ->> 2)::bigint AS number, (value ->> 0)::uuid AS bytes
        FROM json_array_elements($1::json)) AS wanted

-- set_version
ON CONFLICT (sku, warehouse) DO UPDATE SET version = excluded.version

-- wanted_lines
(SELECT (value ->> 0)::uuid AS operation_id, (value ->> 1)::smallint AS line, (value ->> 2)::bigint AS ends_at,
        value ->> 3 AS sku, value ->> 4 AS warehouse, (value ->> 5)::bigint AS units, value ->> 6 AS reference
        FROM json_array_elements($1::json)) AS wanted
