-- The writes of MariaDB and MySQL. Each is one call of a procedure, which is a whole transaction. Their texts are in
-- migrations/mysql. Replicas of several releases use one database, so a release whose movements have more columns
-- creates procedures of other names.

-- if_available (known…, expiry, available, version, token, source)
CALL stocklock_deduct_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)

-- set
{if_available}

-- if_unchanged
{if_available}

-- if_not_fenced
{if_available}

-- write_sales (sku, warehouse, strategy, version, expiry, units, movements, list): sales of one level. `write` can
-- write them too, but takes longer: it reads more values of each.
CALL stocklock_deduct_batch_1($1, $2, $3, $4, $5, $6, $7, $8)

-- write (begins, waits, whole, strategy, expiry, levels, movements)
CALL stocklock_write_1($1, $2, $3, $4, $5, $6, $7)

-- delete_holds (lines), planned each time: unless they were extended since they were read
DELETE hold FROM {wanted_lines}
    STRAIGHT_JOIN hold FORCE INDEX (PRIMARY) ON hold.operation_id = wanted.operation_id AND hold.line = wanted.line
    WHERE hold.expires_at <= wanted.ends_at
