-- Writes the sales of several levels in one transaction that waits for no row: leaves out a level whose row
-- is locked, or that has too few units. The comments of `stocklock_deduct_1` hold here too. The result is
-- one row with a JSON array: an array for each level that was written, with its `first_sale` and the
-- units that are available then. There is no row if no level was written or the attempt has expired.
--
-- The row of a level with too few units stays locked until the end of the transaction, too.
-- STRAIGHT_JOIN, because to read the levels in another order would lock all of them. Never change this
-- procedure: older replicas call it. A release that needs another one creates `stocklock_deduct_merged_2`.
-- MariaDB reads the first comment in the next statement, MySQL 8.0.29 the second.
CREATE PROCEDURE /*M! IF NOT EXISTS */ /*!80029 IF NOT EXISTS */ stocklock_deduct_merged_1 (
    p_strategy   varchar(32) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    -- The attempt changes nothing from this time on, in milliseconds since 1970.
    p_expires_at bigint,
    -- A JSON array with an array for each level, whose values are in the order of the columns below.
    -- `first_sale`: how many sales are before those of the level.
    p_levels     longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    -- A JSON array with an array for each movement. Bytes are hexadecimal digits.
    p_sales      longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
)
    MODIFIES SQL DATA
    SQL SECURITY INVOKER
BEGIN
    DECLARE v_levels, v_written longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        ROLLBACK;
        RESIGNAL;
    END;

    START TRANSACTION;
    SELECT group_concat(wanted.first_sale),
            group_concat('[', wanted.first_sale, ', ',
                stock.on_hand - wanted.units - stock.held + stock.backorder_limit, ']')
        INTO v_levels, v_written
        FROM json_table(p_levels, '$[*]' COLUMNS (
                first_sale bigint      PATH '$[0]',
                sku        varchar(64) CHARACTER SET utf8mb4 PATH '$[1]',
                warehouse  varchar(64) CHARACTER SET utf8mb4 PATH '$[2]',
                units      bigint      PATH '$[3]'
            )) AS wanted
            STRAIGHT_JOIN stock FORCE INDEX (PRIMARY)
                ON stock.sku = wanted.sku COLLATE utf8mb4_bin
                AND stock.warehouse = wanted.warehouse COLLATE utf8mb4_bin
        WHERE stock.home = 'sql'
            AND stock.on_hand - wanted.units - stock.held + stock.backorder_limit >= 0
        FOR UPDATE SKIP LOCKED;

    -- The rows are locked, so the clock is read now: the message may have waited long.
    IF v_levels IS NOT NULL AND unix_timestamp(sysdate(6)) * 1000 < p_expires_at THEN
        UPDATE json_table(p_levels, '$[*]' COLUMNS (
                first_sale bigint      PATH '$[0]',
                sku        varchar(64) CHARACTER SET utf8mb4 PATH '$[1]',
                warehouse  varchar(64) CHARACTER SET utf8mb4 PATH '$[2]',
                units      bigint      PATH '$[3]',
                movements  bigint      PATH '$[4]'
            )) AS wanted
            STRAIGHT_JOIN stock FORCE INDEX (PRIMARY)
                ON stock.sku = wanted.sku COLLATE utf8mb4_bin
                AND stock.warehouse = wanted.warehouse COLLATE utf8mb4_bin
            SET stock.on_hand = stock.on_hand - wanted.units,
                stock.version = stock.version + wanted.movements
            WHERE find_in_set(wanted.first_sale, v_levels);
        -- If another transaction is recording one of the keys, the rows must not stay locked meanwhile.
        -- MySQL has no such prefix, and waits.
        /*M! SET STATEMENT innodb_lock_wait_timeout = 0 FOR */ INSERT INTO movement
            (operation_id, line, sku, warehouse, kind, delta, strategy, durability, caller,
                idempotency_key, request_hash, reason, reference, available_after, level_version)
            SELECT unhex(sale.operation_id), 0, stock.sku, stock.warehouse, 'deducted', sale.delta,
                p_strategy, 'committed', sale.caller, sale.idempotency_key,
                unhex(sale.request_hash), sale.reason, sale.reference,
                stock.on_hand - stock.held + stock.backorder_limit + sale.units_after,
                stock.version - sale.sales_after
            FROM json_table(p_sales, '$[*]' COLUMNS (
                    first_sale      bigint       PATH '$[0]',
                    sku             varchar(64)  CHARACTER SET utf8mb4 PATH '$[1]',
                    warehouse       varchar(64)  CHARACTER SET utf8mb4 PATH '$[2]',
                    -- The sales of the level after this one.
                    sales_after     bigint       PATH '$[3]',
                    operation_id    varchar(32)  PATH '$[4][0]',
                    delta           bigint       PATH '$[4][1]',
                    units_after     bigint       PATH '$[4][2]',
                    caller          varchar(64)  CHARACTER SET utf8mb4 PATH '$[4][3]',
                    idempotency_key varchar(255) CHARACTER SET utf8mb4 PATH '$[4][4]',
                    request_hash    varchar(64)  PATH '$[4][5]',
                    reason          varchar(200) CHARACTER SET utf8mb4 PATH '$[4][6][0]',
                    reference       varchar(200) CHARACTER SET utf8mb4 PATH '$[4][6][1]'
                )) AS sale
                STRAIGHT_JOIN stock FORCE INDEX (PRIMARY)
                    ON stock.sku = sale.sku COLLATE utf8mb4_bin
                    AND stock.warehouse = sale.warehouse COLLATE utf8mb4_bin
            WHERE find_in_set(sale.first_sale, v_levels);
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
