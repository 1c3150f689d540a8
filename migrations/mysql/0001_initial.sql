-- The schema of Stocklock 0.3.0.
--
-- Data definitions commit one by one. If this migration is interrupted, it is executed again from its
-- start, so each statement can be repeated. MariaDB reads the comments `/*M! */`, MySQL those with a
-- version. The collations compare byte by byte, and do not pad: 'A', 'a' and 'A ' are three texts.
CREATE TABLE IF NOT EXISTS stock (
    sku             varchar(64) NOT NULL,
    warehouse       varchar(64) NOT NULL,
    on_hand         bigint      NOT NULL,
    held            bigint      NOT NULL DEFAULT 0,
    backorder_limit bigint      NOT NULL DEFAULT 0,
    -- Each change of the level adds 1 for each movement that it records.
    version         bigint      NOT NULL DEFAULT 1,
    -- The fencing token of the last write under a lock, and who issued the token.
    fence           bigint      NOT NULL DEFAULT 0,
    fence_source    varchar(64) NOT NULL DEFAULT '',
    PRIMARY KEY (sku, warehouse),
    CONSTRAINT stock_not_oversold CHECK (on_hand - held >= -backorder_limit)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */;

-- The ledger. A row is never changed.
CREATE TABLE IF NOT EXISTS movement (
    operation_id    binary(16)   NOT NULL,
    line            smallint     NOT NULL,
    sku             varchar(64)  NOT NULL,
    warehouse       varchar(64)  NOT NULL,
    kind            varchar(16)  NOT NULL,
    delta           bigint       NOT NULL,
    held_delta      bigint       NOT NULL DEFAULT 0,
    available_after bigint       NOT NULL,
    -- The version of the level after the movement.
    level_version   bigint       NOT NULL,
    -- The version of the level that the movement was computed from, if it was read first.
    read_version    bigint,
    strategy        varchar(32),
    caller          varchar(64)  NOT NULL,
    idempotency_key varchar(255),
    request_hash    binary(32),
    reason          varchar(200),
    reference       varchar(200),
    -- The sale whose units came back, and how many. Those that are not on hand again are not in `delta`.
    reverses        binary(16),
    returned        bigint,
    created_at      timestamp(6) NOT NULL DEFAULT current_timestamp(6),
    PRIMARY KEY (operation_id, line),
    -- A key is used once.
    UNIQUE KEY movement_once_per_key (caller, idempotency_key),
    -- Pages and sums read the ledger of a level in the order of its commits.
    UNIQUE KEY movement_in_order (sku, warehouse, level_version),
    -- The same of one kind, of which a level may have few movements among millions.
    KEY movement_of_kind (sku, warehouse, kind, level_version),
    -- The same with one reference.
    KEY movement_of_level_reference (sku, warehouse, reference, level_version),
    -- The operations of a caller with a reference, in the order of the primary key.
    KEY movement_of_reference (caller, reference),
    -- The returns of a sale.
    KEY movement_of_sale (reverses)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */;

-- The sums of a level's movements up to a version, so that an audit reads only those that follow.
CREATE TABLE IF NOT EXISTS checkpoint (
    sku           varchar(64) NOT NULL,
    warehouse     varchar(64) NOT NULL,
    level_version bigint      NOT NULL,
    received      bigint      NOT NULL,
    sold          bigint      NOT NULL,
    held          bigint      NOT NULL,
    PRIMARY KEY (sku, warehouse)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */;

-- The identity of this ledger, which keeps databases apart that share a Redis: one row.
CREATE TABLE IF NOT EXISTS ledger (
    id varchar(16) NOT NULL PRIMARY KEY
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */;
INSERT INTO ledger
    SELECT left(md5(concat(uuid(), rand())), 16) FROM dual
    WHERE NOT EXISTS (SELECT id FROM ledger);

-- The procedures write a level with its movements, and commit, in one message: no lock is held while a
-- message travels. They all have these rules:
-- * The server ends the transaction in every case. No row in the answer: nothing was written.
-- * An error undoes everything, except for 1180: COMMIT failed, and may have happened. No handler runs
--   after 1317 and 1969, with which the server interrupts a call at any point.
-- * `p_expires_at`: the attempt writes nothing from this time on, in milliseconds since 1970. The clock
--   is read after the rows are locked, because a message may wait long for a lock.
-- * Replicas of several releases call them. A release that needs another procedure creates one with
--   the next number in its name.

-- Takes units from a level on a condition. The answer is the units that are available then. No row: the
-- condition does not hold, the level has too few units, or the attempt has expired.
CREATE PROCEDURE /*M! IF NOT EXISTS */ /*!80029 IF NOT EXISTS */ stocklock_deduct_1 (
    -- The movement, in the order of the columns of the INSERT below.
    p_operation_id    binary(16),
    p_sku             varchar(64)  CHARACTER SET utf8mb4 COLLATE /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */,
    p_warehouse       varchar(64)  CHARACTER SET utf8mb4 COLLATE /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */,
    p_kind            varchar(16)  CHARACTER SET utf8mb4,
    p_delta           bigint,
    p_read_version    bigint,
    p_strategy        varchar(32)  CHARACTER SET utf8mb4,
    p_caller          varchar(64)  CHARACTER SET utf8mb4,
    p_idempotency_key varchar(255) CHARACTER SET utf8mb4,
    p_request_hash    binary(32),
    p_reason          varchar(200) CHARACTER SET utf8mb4,
    p_reference       varchar(200) CHARACTER SET utf8mb4,
    p_expires_at      bigint,
    -- Unless NULL, the level is set, so that this many units are available. Otherwise `p_delta` is added.
    p_available       bigint,
    -- Conditions, unless NULL: the version of the level; no fence of the same source is later.
    p_version         bigint,
    p_fence           bigint,
    p_fence_source    varchar(64)  CHARACTER SET utf8mb4 COLLATE /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */
)
    MODIFIES SQL DATA
    SQL SECURITY INVOKER
BEGIN
    DECLARE v_on_hand, v_available, v_version bigint;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        ROLLBACK;
        RESIGNAL;
    END;

    START TRANSACTION;
    SELECT coalesce(p_available + held - backorder_limit, on_hand + p_delta),
            coalesce(p_available, on_hand + p_delta - held + backorder_limit),
            version + 1
        INTO v_on_hand, v_available, v_version
        FROM stock
        WHERE sku = p_sku AND warehouse = p_warehouse
            AND (p_version IS NULL OR version = p_version)
            AND (p_fence IS NULL OR fence_source <> p_fence_source OR fence <= p_fence)
        FOR UPDATE;

    IF v_available >= 0 AND unix_timestamp(sysdate(6)) * 1000 < p_expires_at THEN
        UPDATE stock
            SET on_hand = v_on_hand, version = v_version,
                fence = coalesce(p_fence, fence),
                fence_source = coalesce(p_fence_source, fence_source)
            WHERE sku = p_sku AND warehouse = p_warehouse;
        INSERT INTO movement
            (operation_id, line, sku, warehouse, kind, delta, read_version, strategy, caller,
                idempotency_key, request_hash, reason, reference, available_after, level_version)
            VALUES (p_operation_id, 0, p_sku, p_warehouse, p_kind, p_delta, p_read_version, p_strategy,
                p_caller, p_idempotency_key, p_request_hash, p_reason, p_reference, v_available,
                v_version);
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

-- Writes the sales of a batch of one level. The answer is the units that are available then. No row: the
-- level has too few units or another version, or the attempt has expired.
CREATE PROCEDURE /*M! IF NOT EXISTS */ /*!80029 IF NOT EXISTS */ stocklock_deduct_batch_1 (
    -- What all movements have in common.
    p_sku        varchar(64) CHARACTER SET utf8mb4 COLLATE /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */,
    p_warehouse  varchar(64) CHARACTER SET utf8mb4 COLLATE /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */,
    p_strategy   varchar(32) CHARACTER SET utf8mb4,
    -- The version that the level must have, unless NULL.
    p_version    bigint,
    p_expires_at bigint,
    -- The units of all sales, and how many sales these are.
    p_units      bigint,
    p_movements  bigint,
    -- The movements in their order: a JSON array with an array for each, whose values are in the order
    -- of the columns below. Bytes are hexadecimal digits.
    p_sales      longtext CHARACTER SET utf8mb4
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
        WHERE sku = p_sku AND warehouse = p_warehouse
            AND (p_version IS NULL OR version = p_version)
        FOR UPDATE;

    IF v_available >= 0 AND unix_timestamp(sysdate(6)) * 1000 < p_expires_at THEN
        UPDATE stock
            SET on_hand = on_hand - p_units, version = v_version + p_movements
            WHERE sku = p_sku AND warehouse = p_warehouse;
        INSERT INTO movement
            (operation_id, line, sku, warehouse, kind, delta, strategy, caller, idempotency_key,
                request_hash, reason, reference, available_after, level_version)
            SELECT unhex(operation_id), 0, p_sku, p_warehouse, 'deducted', delta, p_strategy, caller,
                idempotency_key, unhex(request_hash), reason, reference, v_available + units_after,
                v_version + number
            FROM json_table(p_sales, '$[*]' COLUMNS (
                number          FOR ORDINALITY,
                operation_id    varchar(32)  PATH '$[0]',
                delta           bigint       PATH '$[1]',
                -- The units that the later sales of the batch take.
                units_after     bigint       PATH '$[2]',
                caller          varchar(64)  CHARACTER SET utf8mb4 PATH '$[3]',
                idempotency_key varchar(255) CHARACTER SET utf8mb4 PATH '$[4]',
                request_hash    varchar(64)  PATH '$[5]',
                reason          varchar(200) CHARACTER SET utf8mb4 PATH '$[6][0]',
                reference       varchar(200) CHARACTER SET utf8mb4 PATH '$[6][1]'
            )) AS sale;
        BEGIN
            DECLARE EXIT HANDLER FOR 1213 RESIGNAL;
            DECLARE EXIT HANDLER FOR SQLEXCEPTION RESIGNAL SET MYSQL_ERRNO = 1180;
            COMMIT;
        END;
        SELECT v_available AS available;
    ELSE
        ROLLBACK;
    END IF;
END;

-- Writes the sales of several levels, and waits for no row: leaves out a level whose row is locked, or
-- that has too few units. The answer is a JSON array: an array for each level that was written, with its
-- `first_sale` and the units that are available then. No row: no level was written, or the attempt has
-- expired.
--
-- The row of a level with too few units stays locked until the end of the transaction, too.
-- STRAIGHT_JOIN, because to read the levels in another order would lock all of them.
CREATE PROCEDURE /*M! IF NOT EXISTS */ /*!80029 IF NOT EXISTS */ stocklock_deduct_merged_1 (
    p_strategy   varchar(32) CHARACTER SET utf8mb4,
    p_expires_at bigint,
    -- A JSON array with an array for each level, whose values are in the order of the columns below.
    -- `first_sale`: how many sales are before those of the level.
    p_levels     longtext CHARACTER SET utf8mb4,
    -- A JSON array with an array for each movement. Bytes are hexadecimal digits.
    p_sales      longtext CHARACTER SET utf8mb4
)
    MODIFIES SQL DATA
    SQL SECURITY INVOKER
BEGIN
    DECLARE v_levels, v_written longtext CHARACTER SET utf8mb4;
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
                ON stock.sku = wanted.sku COLLATE /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */
                AND stock.warehouse = wanted.warehouse COLLATE /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */
        WHERE stock.on_hand - wanted.units - stock.held + stock.backorder_limit >= 0
        FOR UPDATE SKIP LOCKED;

    IF v_levels IS NOT NULL AND unix_timestamp(sysdate(6)) * 1000 < p_expires_at THEN
        UPDATE json_table(p_levels, '$[*]' COLUMNS (
                first_sale bigint      PATH '$[0]',
                sku        varchar(64) CHARACTER SET utf8mb4 PATH '$[1]',
                warehouse  varchar(64) CHARACTER SET utf8mb4 PATH '$[2]',
                units      bigint      PATH '$[3]',
                movements  bigint      PATH '$[4]'
            )) AS wanted
            STRAIGHT_JOIN stock FORCE INDEX (PRIMARY)
                ON stock.sku = wanted.sku COLLATE /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */
                AND stock.warehouse = wanted.warehouse COLLATE /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */
            SET stock.on_hand = stock.on_hand - wanted.units,
                stock.version = stock.version + wanted.movements
            WHERE find_in_set(wanted.first_sale, v_levels);
        -- If another transaction is recording one of the keys, the levels must not stay locked until it
        -- ends. MySQL has no such prefix, and waits.
        /*M! SET STATEMENT innodb_lock_wait_timeout = 0 FOR */ INSERT INTO movement
            (operation_id, line, sku, warehouse, kind, delta, strategy, caller, idempotency_key,
                request_hash, reason, reference, available_after, level_version)
            SELECT unhex(sale.operation_id), 0, stock.sku, stock.warehouse, 'deducted', sale.delta,
                p_strategy, sale.caller, sale.idempotency_key, unhex(sale.request_hash), sale.reason,
                sale.reference,
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
                    ON stock.sku = sale.sku COLLATE /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */
                    AND stock.warehouse = sale.warehouse COLLATE /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */
            WHERE find_in_set(sale.first_sale, v_levels);
        BEGIN
            DECLARE EXIT HANDLER FOR 1213 RESIGNAL;
            DECLARE EXIT HANDLER FOR SQLEXCEPTION RESIGNAL SET MYSQL_ERRNO = 1180;
            COMMIT;
        END;
        SELECT concat('[', v_written, ']') AS written;
    ELSE
        ROLLBACK;
    END IF;
END;

-- Locks: one row per held lock. Times are microseconds since 1970, by this server's clock.
-- `nonce` identifies the acquisition, and is empty if the lock is free. `owner` is the process that
-- acquired the lock. `gone`: acquisitions that were released before all their requests had arrived;
-- those requests get no lock until `gone_until`.
CREATE TABLE IF NOT EXISTS distributed_lock (
    name       varbinary(2048) NOT NULL PRIMARY KEY,
    nonce      varchar(32)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    owner      varchar(255)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    token      bigint        NOT NULL,
    expires_at bigint        NOT NULL,
    gone       varchar(2048) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    gone_until bigint        NOT NULL DEFAULT 0
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- The id under which this database issues fencing tokens: one row.
CREATE TABLE IF NOT EXISTS distributed_lock_source (
    number tinyint NOT NULL PRIMARY KEY CHECK (number = 1),
    id     varchar(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL
) ENGINE=InnoDB;
