-- What is read, in the words of the dialects.
--
-- Each text has a name, and ends at an empty line. Its parameters stand behind the name. `{…}` is an earlier text,
-- `{… index}` one with its $index. A part is only sent in other texts.
-- Planned each time: PostgreSQL would keep a plan that reads more of the ledger, made when that was short.
--
-- A dialect has these words:
--   begin, begin_snapshot   begin a transaction that writes, or that reads one snapshot.
--   begin_brief, soon       A transaction begins so, and a query, if it waits at most 100 ms for a row.
--   begin_read_uncommitted  Begins a transaction that also reads what others have not committed, if an insert into the
--                           ledger may wait for more than the same key.
--   lock_sku                Excludes other transactions that may create a level of the SKU $1, if `begin` does not.
--   lock_rows               Follows a query whose rows are locked; `lock_rows_now`: it fails if one is locked already;
--                           `lock_free_rows`: a query on `wanted` and `stock`, without the rows that are locked.
--   with_stock              Joins the levels that `wanted` names, by their primary key.
--   with_each               Joins the rows of $index that meet what follows, by an index; `end_with_each` ends that.
--   now                     The clock in milliseconds since 1970, at the moment of its evaluation: not at the start of
--                           the statement or transaction.
--   created_at              The column as RFC 3339 text.
--   integer                 The 64-bit integer in a `cast`.
--   no_table                Follows the columns of a query that reads no table.
--   use_index               Follows the table of a query that must use $index, if the optimizer would read more rows.
--   connection_limits       The settings that limit the connections of the user, and how many each allows.
--   wanted                  A table of the arrays in the JSON array $1: a text, another text, a number, and the bytes
--                           of which the first text has the hexadecimal digits.
--   set_version             Follows an insert into `published`: a row that exists gets the new version.
--   wanted_lines            The same of arrays that are lines of holds: the bytes of the operation id; number, end in
--                           milliseconds since 1970, SKU, warehouse, units, reference.

-- level_columns, a part: the columns of `LevelRow`
sku, warehouse, on_hand, held, backorder_limit, version

-- remarks, a part: the columns of `Remarks`
reason, reference

-- ledger_columns, a part: the columns of `LedgerRow`
operation_id, sku, warehouse, kind, delta, held_delta, available_after, level_version, read_version,
    strategy, caller, idempotency_key, request_hash, {remarks}, reverses, returned,
    cast(line AS {integer}) AS line, {created_at} AS created_at

-- movements: what begins a query of `LedgerRow`
SELECT {ledger_columns} FROM

-- sums: of movements; the sums of `bigint` are decimals until they are cast
cast(coalesce(sum(CASE WHEN kind <> 'deducted' THEN delta ELSE 0 END), 0) AS {integer}) AS received,
    cast(coalesce(sum(CASE WHEN kind = 'deducted' THEN -delta ELSE 0 END), 0) AS {integer}) AS sold,
    cast(coalesce(sum(held_delta), 0) AS {integer}) AS held

-- clock
SELECT cast({now} AS {integer})

-- ledger_id
SELECT id FROM ledger

-- level (sku, warehouse)
SELECT {level_columns} FROM stock WHERE sku = $1 AND warehouse = $2

-- level_locked (sku, warehouse)
{level} {lock_rows}

-- level_locked_now (sku, warehouse): fails if the row is locked
{level} {lock_rows_now}

-- level_locked_soon (sku, warehouse): waits at most 100 ms for the row, after `begin_brief`
{soon} {level_locked}

-- wanted_levels (list)
SELECT {level_columns} FROM {wanted}
    {with_stock}

-- wanted_levels_free (list): locked, without those that are locked already
{wanted_levels} {lock_free_rows}

-- levels_of_sku (sku)
SELECT {level_columns} FROM stock WHERE sku = $1 ORDER BY warehouse

-- levels_of_sku_locked (sku)
{levels_of_sku} {lock_rows}

-- levels_page (sku, warehouse, limit): MariaDB would read the index from its start for `(sku, warehouse) > ($1, $2)`
SELECT {level_columns} FROM stock
    WHERE sku >= $1 AND (sku > $1 OR warehouse > $2)
    ORDER BY sku, warehouse LIMIT $3

-- fence (sku, warehouse)
SELECT fence, fence_source FROM stock WHERE sku = $1 AND warehouse = $2

-- warehouses (sku)
SELECT warehouse FROM stock WHERE sku = $1 ORDER BY warehouse

-- recorded (operation, caller, key): the first movement of an operation, or else the one with its key
{movements} movement WHERE operation_id = $1 OR caller = $2 AND idempotency_key = $3
    ORDER BY operation_id = $1 DESC, line LIMIT 1

-- operation (operation)
{movements} movement WHERE operation_id = $1 ORDER BY line

-- operation_with_key (caller, key): only its first movement has the key
{movements} movement WHERE operation_id = (SELECT operation_id FROM movement
        WHERE caller = $1 AND idempotency_key = $2) ORDER BY line

-- operations_with_reference (caller, reference, operation, limit), planned each time
-- Without OR, for which a database would read the pages before this one. Operations and lines are in the order of
-- the index.
{movements} movement {use_index movement_of_reference} WHERE caller = $1 AND reference = $2 AND operation_id < $3
    ORDER BY operation_id DESC, line DESC LIMIT $4

-- with_keys (list)
{movements} {wanted} {with_each movement}
    movement.caller = wanted.text_1 AND movement.idempotency_key = wanted.text_2 {end_with_each movement}

-- with_ids (list)
{movements} {wanted} {with_each movement} movement.operation_id = wanted.bytes {end_with_each movement}

-- children (operation): what ended lines of a hold, or gave units of a sale back
{movements} movement WHERE reverses = $1 ORDER BY line, level_version

-- last_end (operation, line): how a line of a hold ended at last
SELECT kind FROM movement WHERE reverses = $1 AND line = $2 ORDER BY level_version DESC LIMIT 1

-- was_held (sku, warehouse): SQLite uses the index only if the query repeats what it leaves out
SELECT level_version FROM movement {use_index movement_of_kind} WHERE sku = $1 AND warehouse = $2
    AND kind = 'held' AND kind <> 'deducted' ORDER BY level_version DESC LIMIT 1

-- hold_columns, a part: the columns of `HoldRow`
hold.operation_id, cast(hold.line AS {integer}) AS line, hold.sku, hold.warehouse, hold.units, hold.expires_at,
    hold.reference, cast({now} AS {integer}) AS now

-- open_lines (lines): those of them that are open
SELECT {hold_columns} FROM {wanted_lines}
    {with_each hold} hold.operation_id = wanted.operation_id AND hold.line = wanted.line {end_with_each hold}

-- holds_with_ids (list): all open lines of holds
SELECT {hold_columns} FROM {wanted} {with_each hold} hold.operation_id = wanted.bytes {end_with_each hold}
    ORDER BY hold.operation_id, hold.line

-- page_of_holds, a part: the end of the page as a parameter, so that the database reads no others in the index
FROM hold WHERE expires_at >= $1 AND expires_at <= $5
    AND (expires_at > $1 OR operation_id > $2 OR operation_id = $2 AND line > $3)

-- holds_page (end, operation, line, limit, last end)
SELECT {hold_columns} {page_of_holds} ORDER BY expires_at, operation_id, line LIMIT $4

-- holds_page_of_level (end, operation, line, limit, last end, sku, warehouse)
SELECT {hold_columns} {page_of_holds} AND sku = $6 AND warehouse = $7 ORDER BY expires_at, operation_id, line LIMIT $4

-- returned (operation): how many units of each line of a sale have come back
SELECT cast(line AS {integer}), cast(coalesce(sum(returned), 0) AS {integer})
    FROM movement WHERE reverses = $1 GROUP BY line

-- audit_levels (sku): each level, and its checkpoint or zeros
SELECT s.warehouse, s.on_hand, s.held, s.backorder_limit,
        coalesce(c.level_version, 0) AS summed, coalesce(c.received, 0) AS received,
        coalesce(c.sold, 0) AS sold, coalesce(c.held, 0) AS held_sum
    FROM stock s LEFT JOIN checkpoint c ON c.sku = s.sku AND c.warehouse = s.warehouse
    WHERE s.sku = $1 ORDER BY s.warehouse

-- checkpoint_levels (sku, warehouse, limit): the next levels, and the checkpoint of each or zeros
SELECT s.sku, s.warehouse, s.version, c.level_version, coalesce(c.received, 0) AS received,
        coalesce(c.sold, 0) AS sold, coalesce(c.held, 0) AS held
    FROM stock s LEFT JOIN checkpoint c ON c.sku = s.sku AND c.warehouse = s.warehouse
    WHERE s.sku >= $1 AND (s.sku > $1 OR s.warehouse > $2)
    ORDER BY s.sku, s.warehouse LIMIT $3

-- checkpoint_step (sku, warehouse, version, version): the version of a level, and the sums of its movements after
-- one version, up to another one.
SELECT s.version, m.received, m.sold, m.held
    FROM stock s CROSS JOIN (
        SELECT {sums} FROM movement {use_index movement_in_order} WHERE sku = $1 AND warehouse = $2
            AND level_version > $3 AND level_version <= $4
    ) m WHERE s.sku = $1 AND s.warehouse = $2

-- key_rows, a part: what begins a query of `KeyRow`
SELECT id, name, caller, secret_hash, scopes, rate, burst, created_at, expires_at, revoked_at
    FROM api_key

-- api_keys
{key_rows} ORDER BY created_at, id

-- valid_api_keys (now)
{key_rows} WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $1)

-- feed_state: the number of the last row of the feed, and whether `published` has the levels of the start
SELECT seq, filled FROM feed_state

-- feed_state_locked: by one publisher at a time
{feed_state} {lock_rows}

-- feed_page (seq, limit), planned each time: the rows from a number on, beside the state at the same moment
SELECT feed_state.seq AS end_seq, filled, rows_from.seq AS seq, sku, warehouse, first_version, last_version
    FROM feed_state LEFT JOIN (
        SELECT seq, sku, warehouse, first_version, last_version FROM feed WHERE seq >= $1 ORDER BY seq LIMIT $2
    ) AS rows_from ON 1 = 1 ORDER BY rows_from.seq

-- with_versions (list), planned each time
{movements} {wanted} JOIN movement {use_index movement_in_order} ON movement.sku = wanted.text_1
    AND movement.warehouse = wanted.text_2 AND movement.level_version = wanted.number

-- changed_levels, a part: those of a list that have changed since they were published
FROM (
        SELECT stock.sku, stock.warehouse, stock.version, coalesce((
            SELECT published.version FROM published
            WHERE published.sku = stock.sku AND published.warehouse = stock.warehouse
        ), 0) AS last_version FROM {wanted} {with_stock}
    ) AS changed WHERE version > last_version

-- unpublished (list), planned each time
SELECT sku, warehouse {changed_levels}

-- last_filled: the level after which the first look through the levels goes on
SELECT sku, warehouse FROM published ORDER BY sku DESC, warehouse DESC LIMIT 1

-- last_old (time, limit): the last of the oldest rows of the feed that is older than so many milliseconds
SELECT max(seq) FROM (SELECT seq, published_at FROM feed ORDER BY seq LIMIT $2) AS oldest
    WHERE published_at < {now} - $1

-- webhooks
SELECT id, url, secret, old_secret, old_until, types, low_at, revision, position, batch_end, created_at, failing_since,
        problem, disabled_at, cast({now} AS {integer}) AS now
    FROM webhook ORDER BY created_at, id
