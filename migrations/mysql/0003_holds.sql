-- Units that are set aside for a caller: the open lines of holds. A line that ends loses its row in the
-- transaction that records its end, so it ends once.
CREATE TABLE IF NOT EXISTS hold (
    operation_id binary(16)  NOT NULL,
    line         smallint    NOT NULL,
    sku          varchar(64) NOT NULL,
    warehouse    varchar(64) NOT NULL,
    units        bigint      NOT NULL,
    -- When it ends: milliseconds since 1970, or the largest number if it does not expire.
    expires_at   bigint      NOT NULL,
    -- Of the hold; its sale gets it, too.
    reference    varchar(200),
    PRIMARY KEY (operation_id, line),
    -- The holds of a level, and all holds, in the order of their ends.
    INDEX hold_of_level (sku, warehouse, expires_at, operation_id, line),
    INDEX hold_by_end (expires_at, operation_id, line)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */;
