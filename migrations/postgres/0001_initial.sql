-- The schema of Stocklock 0.3.0.
--
-- COLLATE "C": texts compare byte by byte, whatever the database's locale is.
CREATE TABLE stock (
    sku             varchar(64) COLLATE "C" NOT NULL,
    warehouse       varchar(64) COLLATE "C" NOT NULL,
    on_hand         bigint      NOT NULL,
    held            bigint      NOT NULL DEFAULT 0,
    backorder_limit bigint      NOT NULL DEFAULT 0,
    -- Each change of the level adds 1 for each movement that it records.
    version         bigint      NOT NULL DEFAULT 1,
    -- The fencing token of the last write under a lock, and who issued the token.
    fence           bigint      NOT NULL DEFAULT 0,
    fence_source    varchar(64) COLLATE "C" NOT NULL DEFAULT '',
    PRIMARY KEY (sku, warehouse),
    CONSTRAINT stock_not_oversold CHECK (on_hand - held >= -backorder_limit)
) WITH (fillfactor = 50); -- a hot row is updated in place, without touching its index

-- The ledger. A row is never changed.
CREATE TABLE movement (
    operation_id    uuid         NOT NULL,
    line            smallint     NOT NULL,
    sku             varchar(64)  COLLATE "C" NOT NULL,
    warehouse       varchar(64)  COLLATE "C" NOT NULL,
    kind            varchar(16)  COLLATE "C" NOT NULL,
    delta           bigint       NOT NULL,
    held_delta      bigint       NOT NULL DEFAULT 0,
    available_after bigint       NOT NULL,
    -- The version of the level after the movement.
    level_version   bigint       NOT NULL,
    -- The version of the level that the movement was computed from, if it was read first.
    read_version    bigint,
    strategy        varchar(32)  COLLATE "C",
    caller          varchar(64)  COLLATE "C" NOT NULL,
    idempotency_key varchar(255) COLLATE "C",
    request_hash    bytea,
    reason          varchar(200) COLLATE "C",
    reference       varchar(200) COLLATE "C",
    -- The sale whose units came back, and how many. Those that are not on hand again are not in `delta`.
    reverses        uuid,
    returned        bigint,
    created_at      timestamptz  NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (operation_id, line),
    -- A key is used once.
    CONSTRAINT movement_once_per_key UNIQUE (caller, idempotency_key)
);

-- Pages and sums read the ledger of a level in the order of its commits.
CREATE UNIQUE INDEX movement_in_order ON movement (sku, warehouse, level_version);
-- The same of one kind, of which a level may have few movements among millions. It leaves out the sales,
-- which are most movements, so that a sale does not maintain it.
CREATE INDEX movement_of_kind ON movement (sku, warehouse, kind, level_version)
    WHERE kind <> 'deducted';
-- The same with one reference.
CREATE INDEX movement_of_level_reference ON movement (sku, warehouse, reference, level_version)
    WHERE reference IS NOT NULL;
-- The operations of a caller with a reference.
CREATE INDEX movement_of_reference ON movement (caller, reference, operation_id)
    WHERE reference IS NOT NULL;
-- The returns of a sale.
CREATE INDEX movement_of_sale ON movement (reverses) WHERE reverses IS NOT NULL;

-- The sums of a level's movements up to a version, so that an audit reads only those that follow.
CREATE TABLE checkpoint (
    sku           varchar(64) COLLATE "C" NOT NULL,
    warehouse     varchar(64) COLLATE "C" NOT NULL,
    level_version bigint      NOT NULL,
    received      bigint      NOT NULL,
    sold          bigint      NOT NULL,
    held          bigint      NOT NULL,
    PRIMARY KEY (sku, warehouse)
);

-- The identity of this ledger, which keeps databases apart that share a Redis: one row.
CREATE TABLE ledger (id varchar(16) COLLATE "C" NOT NULL PRIMARY KEY);
INSERT INTO ledger SELECT left(replace(gen_random_uuid()::text, '-', ''), 16);

-- Locks: one row per held lock. Times are microseconds since 1970, by this server's clock.
-- `nonce` identifies the acquisition, and is empty if the lock is free. `owner` is the process that
-- acquired the lock. `is_awaited`: the release wakes waiters. `gone`: acquisitions that were released
-- before all their requests had arrived; those requests get no lock until `gone_until`.
CREATE TABLE distributed_lock (
    name       text    COLLATE "C" NOT NULL PRIMARY KEY,
    nonce      text    NOT NULL,
    owner      text    NOT NULL,
    token      bigint  NOT NULL,
    expires_at bigint  NOT NULL,
    is_awaited boolean NOT NULL DEFAULT false,
    gone       text    NOT NULL DEFAULT '',
    gone_until bigint  NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- The id under which this database issues fencing tokens: one row.
CREATE TABLE distributed_lock_source (
    number integer NOT NULL PRIMARY KEY CHECK (number = 1),
    id     text    NOT NULL
);
