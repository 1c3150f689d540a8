-- Writes the sales of a batch of one level, or does nothing. The comments of `stocklock_deduct_1` hold here
-- too. The result is one row with the units that are available then, or none if the level has too few
-- units or another version, or the attempt has expired.
--
-- Unlike `stocklock_deduct_batch_1`, which replicas of earlier builds call, it needs no version that was
-- read before. Never change this procedure: older replicas call it. A release that needs another one
-- creates `stocklock_deduct_batch_3`. MariaDB reads the first comment in the next statement, MySQL 8.0.29
-- the second.
CREATE PROCEDURE /*M! IF NOT EXISTS */ /*!80029 IF NOT EXISTS */ stocklock_deduct_batch_2 (
    -- What all movements have in common.
    p_sku        varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    p_warehouse  varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    p_strategy   varchar(32) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    -- The version that the level must have, unless NULL.
    p_version    bigint,
    -- The attempt changes nothing from this time on, in milliseconds since 1970.
    p_expires_at bigint,
    -- The units of all sales, and how many sales these are.
    p_units      bigint,
    p_movements  bigint,
    -- The movements in their order: a JSON array with an array for each, whose values are in the order
    -- of the columns below. Bytes are hexadecimal digits.
    p_sales      longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
)
    MODIFIES SQL DATA
    SQL SECURITY INVOKER
BEGIN
    DECLARE v_available, v_version bigint;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        ROLLBACK;
        RESIGNAL;
    END;

    START TRANSACTION;
    SELECT on_hand - p_units - held + backorder_limit, version INTO v_available, v_version
        FROM stock
        WHERE sku = p_sku AND warehouse = p_warehouse AND home = 'sql'
            AND (p_version IS NULL OR version = p_version)
        FOR UPDATE;

    -- The row is locked, so the clock is read now: a message may have waited long for the lock.
    IF v_available >= 0 AND unix_timestamp(sysdate(6)) * 1000 < p_expires_at THEN
        UPDATE stock
            SET on_hand = on_hand - p_units, version = v_version + p_movements
            WHERE sku = p_sku AND warehouse = p_warehouse;
        INSERT INTO movement
            (operation_id, line, sku, warehouse, kind, delta, strategy, durability, caller,
                idempotency_key, request_hash, reason, reference, available_after, level_version)
            SELECT unhex(operation_id), 0, p_sku, p_warehouse, 'deducted', delta, p_strategy,
                'committed', caller, idempotency_key, unhex(request_hash), reason, reference,
                v_available + units_after, v_version + number
            FROM json_table(p_sales, '$[*]' COLUMNS (
                number          FOR ORDINALITY,
                operation_id    varchar(32)  PATH '$[0]',
                delta           bigint       PATH '$[1]',
                units_after     bigint       PATH '$[2]',
                caller          varchar(64)  CHARACTER SET utf8mb4 PATH '$[3]',
                idempotency_key varchar(255) CHARACTER SET utf8mb4 PATH '$[4]',
                request_hash    varchar(64)  PATH '$[5]',
                reason          varchar(200) CHARACTER SET utf8mb4 PATH '$[6][0]',
                reference       varchar(200) CHARACTER SET utf8mb4 PATH '$[6][1]'
            )) AS sale;
        BEGIN
            -- A deadlock (a conflict between Galera's nodes) undoes the COMMIT.
            DECLARE EXIT HANDLER FOR 1213 RESIGNAL;
            DECLARE EXIT HANDLER FOR SQLEXCEPTION RESIGNAL SET MYSQL_ERRNO = 1180;
            COMMIT;
        END;
        SELECT v_available AS available;
    ELSE
        ROLLBACK;
    END IF;
END;
