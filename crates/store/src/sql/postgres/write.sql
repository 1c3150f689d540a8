-- The writes of PostgreSQL. Each is one statement, which is a transaction by itself: it takes one round trip, and no
-- row is locked while messages travel. See ../write.sql.
--
-- `1 / (…)::integer` undoes the statement if a condition does not hold. In what an UPDATE returns, it is evaluated
-- after the wait for the row. The condition of the UPDATE is evaluated before that wait, and not again if the holder
-- of the lock rolls back. A SELECT … FOR UPDATE before it would lock the row twice.
--
-- `('…' || column)::integer` undoes the statement if movements are missing: a trigger may leave them out. That is an
-- error, and no refusal. Without a column in the text, the planner would read it.

-- recorded_one, a part
1 / ({in_time})::integer), recorded AS (
        INSERT INTO movement ({inserted_columns}) SELECT {known}, available, version FROM written
        RETURNING 1
    )
    SELECT available, CASE WHEN EXISTS (SELECT FROM recorded) THEN 0
        ELSE ('movements are missing beside ' || version)::integer END FROM written

-- if_available
WITH written AS ({if_available}, {recorded_one}

-- set
WITH written AS ({set}, {recorded_one}

-- if_unchanged
WITH written AS ({if_unchanged}, {recorded_one}

-- if_not_fenced
WITH written AS ({if_not_fenced}, {recorded_one}

-- wanted_rows, a part: the levels of a plan. Because of the limit, the planner expects one, and looks it up. A plan that
-- was made for ten, when the table was short, would read the whole table.
(SELECT * FROM unnest($3::bigint[], $4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[])
        AS wanted (number, sku, warehouse, delta, movements, read_version, new_limit, held_delta)
        LIMIT cardinality($3::bigint[])) AS wanted

-- movement_rows, a part: the movements of a plan
unnest($11::bigint[], $12::bigint[], $13::uuid[], $14::bigint[], $15::bigint[], $16::text[], $17::text[],
            $18::text[], $19::text[], $20::bytea[], $21::bigint[], $22::text[], $23::bigint[],
            $24::uuid[], $25::bigint[], $26::bigint[])
        AS movement_row (number, movements_after, operation_id, delta, units_after, caller, idempotency_key,
            {remarks}, request_hash, line, kind, read_version, reverses, returned, held_delta)

-- holds, a part: whether a level is as the plan requires
stock.version = coalesce(wanted.read_version, stock.version)
        AND on_hand + wanted.delta - held - wanted.held_delta >= -coalesce(wanted.new_limit, backorder_limit)

-- plan_in_time, a part
{now} < $2

-- free_rows, a part: those that no transaction has locked
free AS MATERIALIZED (
        SELECT wanted.* FROM {wanted_rows} JOIN stock USING (sku, warehouse)
        WHERE {holds} AND {plan_in_time}
        FOR NO KEY UPDATE OF stock SKIP LOCKED
    )

-- changed, a part
UPDATE stock SET on_hand = on_hand + wanted.delta, held = held + wanted.held_delta,
            backorder_limit = coalesce(wanted.new_limit, backorder_limit), version = version + wanted.movements

-- returning, a part
RETURNING wanted.number, wanted.movements, stock.sku, stock.warehouse, stock.version,
            on_hand - held + backorder_limit AS available, 1 / ({plan_in_time})::integer

-- written_waiting, a part
{changed} FROM {wanted_rows}
        WHERE stock.sku = wanted.sku AND stock.warehouse = wanted.warehouse AND {holds} AND {plan_in_time}
        {returning}

-- written_free, a part
{changed} FROM free AS wanted
        WHERE stock.sku = wanted.sku AND stock.warehouse = wanted.warehouse AND {holds}
        {returning}

-- key_wait, a part: how long operations wait for another transaction that is recording the key of one of them. The levels
-- are locked then, and the others can be made without it.
set_config('lock_timeout', '100', true)

-- recorded_all, a part
), recorded AS (
        INSERT INTO movement (operation_id, line, sku, warehouse, kind, delta, read_version,
            strategy, caller, idempotency_key, request_hash, {remarks}, available_after,
            level_version, reverses, returned, held_delta)
        SELECT operation_id, coalesce(line, 0), sku, warehouse, coalesce(kind, 'deducted'), delta,
            read_version, CASE WHEN coalesce(kind, 'deducted') = 'deducted' THEN $1 END, caller,
            idempotency_key, request_hash, {remarks}, available + units_after,
            version - movements_after, reverses, returned, coalesce(held_delta, 0)
        FROM written JOIN {movement_rows} USING (number)
        RETURNING 1
    )
    SELECT number, available,
        CASE WHEN (SELECT count(*) FROM recorded) = (SELECT sum(movements) FROM written) THEN 0
            ELSE ('movements are missing beside ' || number)::integer END

-- all_levels, a part
1 / ((SELECT count(*) FROM written) = cardinality($3::bigint[]))::integer

-- write (strategy, expiry, levels…, movements…): of one operation, which waits for keys as long as for rows
WITH written AS ({written_waiting}{recorded_all} FROM written

-- write_whole: all levels, or none
WITH written AS ({written_waiting}{recorded_all}, {all_levels} FROM written

-- write_shared
WITH written AS ({written_waiting}, {key_wait}{recorded_all} FROM written

-- write_shared_whole
WITH written AS ({written_waiting}, {key_wait}{recorded_all}, {all_levels} FROM written

-- write_free: without the levels whose rows are locked
WITH {free_rows}, written AS ({written_free}, {key_wait}{recorded_all} FROM written

-- write_free_whole
WITH {free_rows}, written AS ({written_free}, {key_wait}{recorded_all}, {all_levels} FROM written

-- delete_holds (lines), planned each time: unless they were extended since they were read
DELETE FROM hold USING {wanted_lines}
    WHERE hold.operation_id = wanted.operation_id AND hold.line = wanted.line AND hold.expires_at <= wanted.ends_at
