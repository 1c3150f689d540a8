-- The procedure that writes what was planned: levels and movements. Its rules are those of the procedures in
-- 0001_initial.sql. It replaces `stocklock_deduct_merged_1`, which replicas of the release before call.
-- `stocklock_deduct_batch_1` stays for sales of one level, because it is faster.
--
-- Writes the levels whose condition holds, with their movements. The answer is a JSON array: an array for each
-- level that was written, with its number and the units that are available then. No row: nothing was written,
-- because a condition does not hold, or the attempt has expired.
--
-- The row of a level whose condition does not hold stays locked until the end of the transaction, too.
-- STRAIGHT_JOIN, because to read the levels in another order would lock all of them.
CREATE PROCEDURE /*M! IF NOT EXISTS */ /*!80029 IF NOT EXISTS */ stocklock_write_1 (
    -- Whether it begins the transaction. Otherwise the session has one, which it ends.
    p_begins     boolean,
    -- Whether it waits for a locked row. Otherwise it leaves out that level.
    p_waits      boolean,
    -- Whether it writes all levels or none.
    p_whole      boolean,
    -- The strategy of sales.
    p_strategy   varchar(32) CHARACTER SET utf8mb4,
    p_expires_at bigint,
    -- A JSON array with an array for each level, whose values are in the order of the columns below.
    -- `read_version`: what the version must be, unless NULL. `new_limit`: the new backorder limit, unless NULL.
    p_levels     longtext CHARACTER SET utf8mb4,
    -- A JSON array with two values for each movement: an array, and a text or NULL. Bytes are hexadecimal digits.
    p_movements  longtext CHARACTER SET utf8mb4
)
    MODIFIES SQL DATA
    SQL SECURITY INVOKER
BEGIN
    DECLARE v_levels, v_written longtext CHARACTER SET utf8mb4;
    DECLARE v_number, v_movements bigint;
    -- The only level, if there is one.
    DECLARE v_sku, v_warehouse varchar(64) CHARACTER SET utf8mb4;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        ROLLBACK;
        RESIGNAL;
    END;

    IF p_begins THEN
        START TRANSACTION;
    /*M! ELSEIF NOT @@in_transaction THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'the rows are not locked'; */
    END IF;
    IF p_waits THEN
        SELECT group_concat(wanted.number),
                group_concat('[', wanted.number, ', ', stock.on_hand + wanted.delta - stock.held - coalesce(wanted.held_delta, 0)
                    + coalesce(wanted.new_limit, stock.backorder_limit), ']'),
                count(*), sum(wanted.movements), max(stock.sku), max(stock.warehouse)
            INTO v_levels, v_written, v_number, v_movements, v_sku, v_warehouse
            FROM json_table(p_levels, '$[*]' COLUMNS (
                    number       bigint      PATH '$[0]',
                    sku          varchar(64) CHARACTER SET utf8mb4 PATH '$[1]',
                    warehouse    varchar(64) CHARACTER SET utf8mb4 PATH '$[2]',
                    delta        bigint      PATH '$[3]',
                    movements    bigint      PATH '$[4]',
                    read_version bigint      PATH '$[5]',
                    new_limit    bigint      PATH '$[6]',
                    held_delta   bigint      PATH '$[7]'
                )) AS wanted
                STRAIGHT_JOIN stock FORCE INDEX (PRIMARY)
                    ON stock.sku = wanted.sku COLLATE /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */
                    AND stock.warehouse = wanted.warehouse COLLATE /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */
            WHERE stock.version = coalesce(wanted.read_version, stock.version)
                AND stock.on_hand + wanted.delta - stock.held - coalesce(wanted.held_delta, 0)
                    + coalesce(wanted.new_limit, stock.backorder_limit) >= 0
            FOR UPDATE;
    ELSE
        -- If a session waits for no lock (0), MariaDB cannot commit after it has skipped a locked row (1180).
        /*M! SET STATEMENT innodb_lock_wait_timeout = 1 FOR */ SELECT group_concat(wanted.number),
                group_concat('[', wanted.number, ', ', stock.on_hand + wanted.delta - stock.held - coalesce(wanted.held_delta, 0)
                    + coalesce(wanted.new_limit, stock.backorder_limit), ']'),
                count(*), sum(wanted.movements), max(stock.sku), max(stock.warehouse)
            INTO v_levels, v_written, v_number, v_movements, v_sku, v_warehouse
            FROM json_table(p_levels, '$[*]' COLUMNS (
                    number       bigint      PATH '$[0]',
                    sku          varchar(64) CHARACTER SET utf8mb4 PATH '$[1]',
                    warehouse    varchar(64) CHARACTER SET utf8mb4 PATH '$[2]',
                    delta        bigint      PATH '$[3]',
                    movements    bigint      PATH '$[4]',
                    read_version bigint      PATH '$[5]',
                    new_limit    bigint      PATH '$[6]',
                    held_delta   bigint      PATH '$[7]'
                )) AS wanted
                STRAIGHT_JOIN stock FORCE INDEX (PRIMARY)
                    ON stock.sku = wanted.sku COLLATE /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */
                    AND stock.warehouse = wanted.warehouse COLLATE /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */
            WHERE stock.version = coalesce(wanted.read_version, stock.version)
                AND stock.on_hand + wanted.delta - stock.held - coalesce(wanted.held_delta, 0)
                    + coalesce(wanted.new_limit, stock.backorder_limit) >= 0
            FOR UPDATE SKIP LOCKED;
    END IF;

    IF v_levels IS NOT NULL AND (NOT p_whole OR v_number = json_length(p_levels))
        AND unix_timestamp(sysdate(6)) * 1000 < p_expires_at
    THEN
        UPDATE json_table(p_levels, '$[*]' COLUMNS (
                number    bigint      PATH '$[0]',
                sku       varchar(64) CHARACTER SET utf8mb4 PATH '$[1]',
                warehouse varchar(64) CHARACTER SET utf8mb4 PATH '$[2]',
                delta     bigint      PATH '$[3]',
                movements bigint      PATH '$[4]',
                new_limit bigint      PATH '$[6]',
                held_delta bigint     PATH '$[7]'
            )) AS wanted
            STRAIGHT_JOIN stock FORCE INDEX (PRIMARY)
                ON stock.sku = wanted.sku COLLATE /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */
                AND stock.warehouse = wanted.warehouse COLLATE /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */
            SET stock.on_hand = stock.on_hand + wanted.delta,
                stock.held = stock.held + coalesce(wanted.held_delta, 0),
                stock.backorder_limit = coalesce(wanted.new_limit, stock.backorder_limit),
                stock.version = stock.version + wanted.movements
            WHERE find_in_set(wanted.number, v_levels);
        -- If it does not wait, and another transaction is recording one of the keys, the levels must not stay
        -- locked until that ends. MySQL has no such prefix, and waits.
        /*M! SET STATEMENT innodb_lock_wait_timeout = IF(p_waits, @@innodb_lock_wait_timeout, 0) FOR */
        INSERT INTO movement
            (operation_id, line, sku, warehouse, kind, delta, read_version, strategy, caller,
                idempotency_key, request_hash, reason, reference, available_after, level_version,
                reverses, returned, held_delta)
            SELECT unhex(row_.operation_id), coalesce(json_value(row_.rest, '$[3]'), 0), stock.sku,
                stock.warehouse, coalesce(json_value(row_.rest, '$[4]'), 'deducted'), row_.delta,
                json_value(row_.rest, '$[5]'),
                CASE WHEN coalesce(json_value(row_.rest, '$[4]'), 'deducted') = 'deducted'
                    THEN p_strategy END,
                row_.caller, row_.idempotency_key, unhex(row_.request_hash),
                json_value(row_.rest, '$[8][0]'), json_value(row_.rest, '$[8][1]'),
                stock.on_hand - stock.held + stock.backorder_limit + row_.units_after,
                stock.version - row_.movements_after, unhex(json_value(row_.rest, '$[6]')),
                json_value(row_.rest, '$[7]'), coalesce(json_value(row_.rest, '$[9]'), 0)
            FROM json_table(p_movements, '$[*]' COLUMNS (
                    -- The movements of the level after this one, and the units that they take.
                    movements_after bigint       PATH '$[0][0]',
                    units_after     bigint       PATH '$[0][1]',
                    operation_id    varchar(32)  PATH '$[0][2]',
                    delta           bigint       PATH '$[0][3]',
                    caller          varchar(64)  CHARACTER SET utf8mb4 PATH '$[0][4]',
                    idempotency_key varchar(255) CHARACTER SET utf8mb4 PATH '$[0][5]',
                    request_hash    varchar(64)  PATH '$[0][6]',
                    -- What few movements have, as a JSON array: number, SKU and warehouse of the level, if
                    -- there are several; line, kind, read_version, reverses, returned; an array of reason
                    -- and reference; units added to `held`. Few columns, because each reads the row from its start.
                    rest            text         CHARACTER SET utf8mb4 PATH '$[1]'
                )) AS row_
                STRAIGHT_JOIN stock FORCE INDEX (PRIMARY)
                    ON stock.sku = coalesce(json_value(row_.rest, '$[1]'), v_sku) COLLATE /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */
                    AND stock.warehouse = coalesce(json_value(row_.rest, '$[2]'), v_warehouse) COLLATE /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */
            WHERE row_.rest IS NULL OR json_value(row_.rest, '$[0]') IS NULL
                OR find_in_set(json_value(row_.rest, '$[0]'), v_levels);
        IF row_count() <> v_movements THEN
            SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'movements are missing';
        END IF;
        BEGIN
            -- A deadlock (a conflict between Galera's nodes) undoes the COMMIT.
            DECLARE EXIT HANDLER FOR 1213 RESIGNAL;
            DECLARE EXIT HANDLER FOR SQLEXCEPTION RESIGNAL SET MYSQL_ERRNO = 1180;
            COMMIT;
        END;
        SELECT concat('[', v_written, ']') AS written;
    ELSE
        ROLLBACK;
    END IF;
END;
