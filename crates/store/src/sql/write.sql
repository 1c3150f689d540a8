-- What is written. See read.sql. The expiry of an attempt is compared with the clock when its rows are locked.

-- create_level (sku, warehouse): without units; the write of the plan sets the rest
INSERT INTO stock (sku, warehouse, on_hand, version) VALUES ($1, $2, 0, 0)

-- delete_level (sku, warehouse): the one that this transaction has created
DELETE FROM stock WHERE sku = $1 AND warehouse = $2 AND version = 0

-- change_level (sku, warehouse, units, limit): a locked one; NULL keeps the backorder limit
UPDATE stock SET on_hand = on_hand + $3, backorder_limit = coalesce($4, backorder_limit), version = version + 1
    WHERE sku = $1 AND warehouse = $2

-- step_version (sku, warehouse, 1 or -1): locks the level as a sale does
UPDATE stock SET version = version + $3 WHERE sku = $1 AND warehouse = $2

-- inserted_columns, a part: those of each movement, in the order of `NewRow::known`; `line` is 0
operation_id, line, sku, warehouse, kind, delta, read_version, strategy, caller, idempotency_key,
    request_hash, {remarks}, available_after, level_version

-- known, a part: the values of `NewRow::known`, and the line; the value after them is $13
$1, 0, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12

-- record (known…, available, version, reverses, returned, expiry): a movement, in time
INSERT INTO movement ({inserted_columns}, reverses, returned)
    SELECT {known}, $13, $14, $15, $16 {no_table} WHERE {now} < $17

-- in_time, a part: whether an attempt has not expired
{now} < $13

-- written, a part: what it returns
RETURNING on_hand - held + backorder_limit AS available, version

-- if_available (known…, expiry, NULL, NULL, NULL, NULL): a sale, if enough units are available
UPDATE stock SET version = version + 1, on_hand = on_hand + $5
    WHERE sku = $2 AND warehouse = $3 AND on_hand + $5 - held >= -backorder_limit AND {in_time}
    {written}

-- set (known…, expiry, available, NULL, NULL, NULL): sets the level to what was computed, without a condition
UPDATE stock SET version = version + 1, on_hand = $14 + held - backorder_limit
    WHERE sku = $2 AND warehouse = $3 AND $14 >= 0 AND {in_time}
    {written}

-- if_unchanged (known…, expiry, NULL, version, NULL, NULL): a sale, if the level still has the version
UPDATE stock SET version = version + 1, on_hand = on_hand + $5
    WHERE sku = $2 AND warehouse = $3 AND version = $15 AND {in_time}
    {written}

-- if_not_fenced (known…, expiry, NULL, version, token, source): the same, and no later holder of the lock has written
UPDATE stock SET version = version + 1, on_hand = on_hand + $5, fence = $16, fence_source = $17
    WHERE sku = $2 AND warehouse = $3 AND version = $15 AND (fence_source <> $17 OR fence <= $16) AND {in_time}
    {written}

-- insert_checkpoint (sku, warehouse, version, received, sold, held)
INSERT INTO checkpoint (sku, warehouse, level_version, received, sold, held) VALUES ($1, $2, $3, $4, $5, $6)

-- update_checkpoint (sku, warehouse, version, received, sold, held, version): if it still has the last version
UPDATE checkpoint SET level_version = $3, received = $4, sold = $5, held = $6
    WHERE sku = $1 AND warehouse = $2 AND level_version = $7

-- insert_api_key (id, name, caller, hash, scopes, rate, burst, time, time)
INSERT INTO api_key (id, name, caller, secret_hash, scopes, rate, burst, created_at, expires_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)

-- revoke_api_key (id): a key that is revoked already keeps its time
UPDATE api_key SET revoked_at = cast({now} AS {integer}) WHERE id = $1 AND revoked_at IS NULL

-- publish (list, seq), planned each time: gives the changed levels of the list the numbers after `seq`
INSERT INTO feed (seq, sku, warehouse, first_version, last_version, published_at)
    SELECT $2 + row_number() OVER (ORDER BY sku, warehouse), sku, warehouse, last_version + 1, version,
        cast({now} AS {integer})
    {changed_levels}

-- set_published (seq): what has just got numbers after `seq`
INSERT INTO published (sku, warehouse, version) SELECT sku, warehouse, last_version FROM feed WHERE seq > $1
    {set_version}

-- set_feed_state (seq)
UPDATE feed_state SET seq = $1

-- set_filled
UPDATE feed_state SET filled = 1

-- fill_published (sku, warehouse, limit): the next levels as they are, so that only later changes are published
INSERT INTO published (sku, warehouse, version) SELECT sku, warehouse, version FROM stock
    WHERE sku >= $1 AND (sku > $1 OR warehouse > $2) ORDER BY sku, warehouse LIMIT $3

-- trim_feed (seq)
DELETE FROM feed WHERE seq <= $1

-- insert_webhook (id, url, secret, types, limit, cursor, time)
INSERT INTO webhook (id, url, secret, types, low_at, revision, position, created_at)
    VALUES ($1, $2, $3, $4, $5, 1, $6, $7)

-- keeps_old, a part: MySQL assigns from left to right, and both columns still have their old values when this is read
secret = $4 OR old_until > {now} + $6

-- change_webhook (id, revision, url, secret, time, time, types, limit, time, problem): unless another request was
-- faster. A replaced secret becomes the old one, and is used for the first time. If the old one is still to be used
-- for longer than the second time, it was replaced a moment ago, and stays.
UPDATE webhook SET old_secret = CASE WHEN {keeps_old} THEN old_secret ELSE secret END,
        old_until = CASE WHEN {keeps_old} THEN old_until ELSE cast({now} AS {integer}) + $5 END,
        url = $3, secret = $4, types = $7, low_at = $8, disabled_at = $9, problem = $10,
        failing_since = NULL, revision = revision + 1
    WHERE id = $1 AND revision = $2

-- move_webhook (id, revision, cursor, cursor, cursor, cursor or empty): to a position and the end of a batch, unless
-- either is not what it was
UPDATE webhook SET position = $4, batch_end = $5, failing_since = NULL, problem = NULL
    WHERE id = $1 AND revision = $2 AND position = $3 AND coalesce(batch_end, '') = $6

-- gives_up, a part: whether a failure disables a webhook
$5 = 1 OR failing_since < {now} - $4

-- fail_webhook (id, revision, text, time, 1 or 0): disabled if it has failed for so long, or is gone
UPDATE webhook SET problem = $3, failing_since = coalesce(failing_since, cast({now} AS {integer})),
        disabled_at = CASE WHEN {gives_up} THEN cast({now} AS {integer}) END,
        revision = revision + CASE WHEN {gives_up} THEN 1 ELSE 0 END
    WHERE id = $1 AND revision = $2 AND disabled_at IS NULL

-- delete_webhook (id)
DELETE FROM webhook WHERE id = $1

-- insert_holds (lines)
INSERT INTO hold (operation_id, line, sku, warehouse, units, expires_at, reference)
    SELECT operation_id, line, sku, warehouse, units, ends_at, reference FROM {wanted_lines}

-- extend_hold (operation, milliseconds): from now, or without an end if that is NULL. No line that is due; none becomes
-- shorter.
UPDATE hold SET expires_at = CASE WHEN expires_at > coalesce(cast({now} AS {integer}) + $2, 9223372036854775807)
        THEN expires_at ELSE coalesce(cast({now} AS {integer}) + $2, 9223372036854775807) END
    WHERE operation_id = $1 AND expires_at > {now}
