-- utf8mb4_bin: names and keys compare by code point; a server's default collation may take
-- 'abc' and 'ABC' for one key.
CREATE TABLE IF NOT EXISTS stock (
    sku             varchar(64) NOT NULL,
    warehouse       varchar(64) NOT NULL,
    on_hand         bigint      NOT NULL,
    held            bigint      NOT NULL DEFAULT 0,
    backorder_limit bigint      NOT NULL DEFAULT 0,
    version         bigint      NOT NULL DEFAULT 1,
    home            varchar(5)  NOT NULL,
    PRIMARY KEY (sku, warehouse),
    CONSTRAINT stock_not_oversold CHECK (on_hand - held >= -backorder_limit)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS movement (
    operation_id    binary(16)   NOT NULL,
    line            smallint     NOT NULL,
    sku             varchar(64)  NOT NULL,
    warehouse       varchar(64)  NOT NULL,
    kind            varchar(16)  NOT NULL,
    delta           bigint       NOT NULL,
    held_delta      bigint       NOT NULL DEFAULT 0,
    available_after bigint       NOT NULL,
    read_version    bigint,
    strategy        varchar(32),
    durability      varchar(16)  NOT NULL,
    caller          varchar(64)  NOT NULL,
    idempotency_key varchar(255),
    request_hash    binary(32),
    reason          varchar(200),
    reference       varchar(200),
    created_at      timestamp(6) NOT NULL DEFAULT current_timestamp(6),
    PRIMARY KEY (operation_id, line),
    UNIQUE KEY movement_once_per_key (caller, idempotency_key),
    KEY movement_of_sku (sku, operation_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
