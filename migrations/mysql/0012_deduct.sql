-- A conditional write: takes units from a level and records the sale, or does nothing.
--
-- The server ends the transaction in every case, so no lock is held while a message travels. The result
-- is one row with the units that are available then, or no row if the condition does not hold or the
-- attempt has expired. An error undoes everything, except for 1180: COMMIT failed and may have happened.
-- No handler runs after 1317 and 1969, with which the server interrupts a call at any point.
--
-- Never change this procedure: older replicas call it. A release that needs another one creates
-- `stocklock_deduct_2`. MariaDB reads the first comment in the next statement, MySQL 8.0.29 the second.
CREATE PROCEDURE /*M! IF NOT EXISTS */ /*!80029 IF NOT EXISTS */ stocklock_deduct_1 (
    -- The movement, in the order of the columns of the INSERT below.
    p_operation_id    binary(16),
    p_sku             varchar(64)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    p_warehouse       varchar(64)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    p_kind            varchar(16)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    p_delta           bigint,
    p_read_version    bigint,
    p_strategy        varchar(32)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    p_durability      varchar(16)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    p_caller          varchar(64)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    p_idempotency_key varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    p_request_hash    binary(32),
    p_reason          varchar(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    p_reference       varchar(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    -- The attempt changes nothing from this time on, in milliseconds since 1970.
    p_expires_at      bigint,
    -- What `on_hand` becomes; NULL: `delta` more than it is.
    p_on_hand         bigint,
    -- Conditions, unless NULL: the version of the level; no fence of the same source is later.
    p_version         bigint,
    p_fence           bigint,
    p_fence_source    varchar(64)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
)
    MODIFIES SQL DATA
    SQL SECURITY INVOKER
BEGIN
    DECLARE v_on_hand, v_version, v_available bigint;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        ROLLBACK;
        RESIGNAL;
    END;

    START TRANSACTION;
    SELECT coalesce(p_on_hand, on_hand + p_delta),
            coalesce(p_on_hand, on_hand + p_delta) - held + backorder_limit,
            version + 1
        INTO v_on_hand, v_available, v_version
        FROM stock
        WHERE sku = p_sku AND warehouse = p_warehouse AND home = 'sql'
            AND (p_version IS NULL OR version = p_version)
            AND (p_fence IS NULL OR fence_source <> p_fence_source OR fence <= p_fence)
        FOR UPDATE;

    -- The row is locked, so the clock is read now: a message may have waited long for the lock.
    IF v_available >= 0 AND unix_timestamp(sysdate(6)) * 1000 < p_expires_at THEN
        UPDATE stock
            SET on_hand = v_on_hand, version = v_version,
                fence = coalesce(p_fence, fence),
                fence_source = coalesce(p_fence_source, fence_source)
            WHERE sku = p_sku AND warehouse = p_warehouse;
        INSERT INTO movement
            (operation_id, line, sku, warehouse, kind, delta, read_version, strategy,
                durability, caller, idempotency_key, request_hash, reason, reference,
                available_after, level_version)
            VALUES (p_operation_id, 0, p_sku, p_warehouse, p_kind, p_delta, p_read_version, p_strategy,
                p_durability, p_caller, p_idempotency_key, p_request_hash, p_reason, p_reference,
                v_available, v_version);
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
