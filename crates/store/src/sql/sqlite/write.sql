-- The writes of SQLite. See ../write.sql.

-- update_levels (levels, expiry): those of `Write::levels_json`
UPDATE stock SET on_hand = on_hand + wanted.delta, held = held + wanted.held_delta,
        backorder_limit = coalesce(wanted.new_limit, backorder_limit), version = version + wanted.movements
    FROM (SELECT value ->> 1 AS sku, value ->> 2 AS warehouse, value ->> 3 AS delta, value ->> 4 AS movements,
            value ->> 5 AS read_version, value ->> 6 AS new_limit, value ->> 7 AS held_delta
        FROM jsonb_each($1)) AS wanted
    WHERE stock.sku = wanted.sku AND stock.warehouse = wanted.warehouse
        AND version = coalesce(wanted.read_version, version)
        AND on_hand + wanted.delta - held - wanted.held_delta >= -coalesce(wanted.new_limit, backorder_limit)
        AND {now} < $2
    RETURNING stock.sku, stock.warehouse, on_hand - held + backorder_limit, version

-- insert, a part: from a JSON array with an array for each movement. The short forms below do not look up what is NULL
-- in all rows, because that takes time.
INSERT INTO movement (available_after, level_version, operation_id, delta, caller, idempotency_key, request_hash,
        line, kind, read_version, reverses, returned, held_delta, {remarks}, strategy, sku, warehouse)
    SELECT value ->> '$[0][0]', value ->> '$[0][1]', unhex(value ->> '$[0][2]'), value ->> '$[0][3]',
        value ->> '$[0][4]', value ->> '$[0][5]', unhex(value ->> '$[0][6]')

-- plain, a part: rows without `MovementRow::rest`
0, 'deducted', NULL, NULL, NULL, 0, NULL, NULL, $2

-- rest, a part: the rows have one, or NULL
coalesce(value ->> '$[1][3]', 0), coalesce(value ->> '$[1][4]', 'deducted'), value ->> '$[1][5]',
        unhex(value ->> '$[1][6]'), value ->> '$[1][7]', coalesce(value ->> '$[1][9]', 0), value ->> '$[1][8][0]', value ->> '$[1][8][1]',
        CASE WHEN coalesce(value ->> '$[1][4]', 'deducted') = 'deducted' THEN $2 END

-- insert_plain (movements, strategy, expiry, sku, warehouse)
{insert}, {plain}, $4, $5 FROM jsonb_each($1) WHERE {now} < $3

-- insert_held (movements, strategy, expiry, sku, warehouse): each row has the units that it holds
{insert}, 0, 'held', NULL, NULL, NULL, value ->> '$[1]', NULL, NULL, NULL, $4, $5 FROM jsonb_each($1) WHERE {now} < $3

-- insert_rest (movements, strategy, expiry, sku, warehouse)
{insert}, {rest}, $4, $5 FROM jsonb_each($1) WHERE {now} < $3

-- insert_plain_of_levels (movements, strategy, expiry): each row has the names of its level
{insert}, {plain}, value ->> '$[2][0]', value ->> '$[2][1]' FROM jsonb_each($1) WHERE {now} < $3

-- insert_rest_of_levels (movements, strategy, expiry)
{insert}, {rest}, value ->> '$[2][0]', value ->> '$[2][1]' FROM jsonb_each($1) WHERE {now} < $3

-- delete_holds (lines): what expires was read in this transaction, so it cannot have been extended since
DELETE FROM hold WHERE (operation_id, line) IN (SELECT operation_id, line FROM {wanted_lines})
