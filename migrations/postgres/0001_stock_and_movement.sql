-- COLLATE "C": names and keys compare byte by byte, whatever the database's locale says.
CREATE TABLE stock (
    sku             varchar(64) COLLATE "C" NOT NULL,
    warehouse       varchar(64) COLLATE "C" NOT NULL,
    on_hand         bigint      NOT NULL,
    held            bigint      NOT NULL DEFAULT 0,
    backorder_limit bigint      NOT NULL DEFAULT 0,
    version         bigint      NOT NULL DEFAULT 1,
    home            varchar(5)  COLLATE "C" NOT NULL,
    PRIMARY KEY (sku, warehouse),
    CONSTRAINT stock_not_oversold CHECK (on_hand - held >= -backorder_limit)
) WITH (fillfactor = 50); -- a hot row is updated in place, without touching its index

CREATE TABLE movement (
    operation_id    uuid         NOT NULL,
    line            smallint     NOT NULL,
    sku             varchar(64)  COLLATE "C" NOT NULL,
    warehouse       varchar(64)  COLLATE "C" NOT NULL,
    kind            varchar(16)  COLLATE "C" NOT NULL,
    delta           bigint       NOT NULL,
    held_delta      bigint       NOT NULL DEFAULT 0,
    available_after bigint       NOT NULL,
    read_version    bigint,
    strategy        varchar(32)  COLLATE "C",
    durability      varchar(16)  COLLATE "C" NOT NULL,
    caller          varchar(64)  COLLATE "C" NOT NULL,
    idempotency_key varchar(255) COLLATE "C",
    request_hash    bytea,
    reason          varchar(200),
    reference       varchar(200) COLLATE "C",
    created_at      timestamptz  NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (operation_id, line),
    CONSTRAINT movement_once_per_key UNIQUE (caller, idempotency_key)
);

CREATE INDEX movement_of_sku ON movement (sku, operation_id);
