-- The schema of Stocklock 0.3.0.
CREATE TABLE stock (
    sku             text    NOT NULL,
    warehouse       text    NOT NULL,
    on_hand         integer NOT NULL,
    held            integer NOT NULL DEFAULT 0,
    backorder_limit integer NOT NULL DEFAULT 0,
    -- Each change of the level adds 1 for each movement that it records.
    version         integer NOT NULL DEFAULT 1,
    -- The fencing token of the last write under a lock, and who issued the token.
    fence           integer NOT NULL DEFAULT 0,
    fence_source    text    NOT NULL DEFAULT '',
    PRIMARY KEY (sku, warehouse),
    CONSTRAINT stock_not_oversold CHECK (on_hand - held >= -backorder_limit)
) STRICT, WITHOUT ROWID;

-- The ledger. A row is never changed.
CREATE TABLE movement (
    operation_id    blob    NOT NULL,
    line            integer NOT NULL,
    sku             text    NOT NULL,
    warehouse       text    NOT NULL,
    kind            text    NOT NULL,
    delta           integer NOT NULL,
    held_delta      integer NOT NULL DEFAULT 0,
    available_after integer NOT NULL,
    -- The version of the level after the movement.
    level_version   integer NOT NULL,
    -- The version of the level that the movement was computed from, if it was read first.
    read_version    integer,
    strategy        text,
    caller          text    NOT NULL,
    idempotency_key text,
    request_hash    blob,
    reason          text,
    reference       text,
    -- The sale whose units came back, and how many. Those that are not on hand again are not in `delta`.
    reverses        blob,
    returned        integer,
    created_at      text    NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    PRIMARY KEY (operation_id, line),
    -- A key is used once.
    CONSTRAINT movement_once_per_key UNIQUE (caller, idempotency_key)
) STRICT, WITHOUT ROWID;

-- Pages and sums read the ledger of a level in the order of its commits.
CREATE UNIQUE INDEX movement_in_order ON movement (sku, warehouse, level_version);
-- The same of one kind, of which a level may have few movements among millions. It leaves out the sales,
-- which are most movements, so that a sale does not maintain it.
CREATE INDEX movement_of_kind ON movement (sku, warehouse, kind, level_version)
    WHERE kind <> 'deducted';
-- The same with one reference.
CREATE INDEX movement_of_level_reference ON movement (sku, warehouse, reference, level_version)
    WHERE reference IS NOT NULL;
-- The operations of a caller with a reference, in the order of the primary key.
CREATE INDEX movement_of_reference ON movement (caller, reference) WHERE reference IS NOT NULL;
-- The returns of a sale.
CREATE INDEX movement_of_sale ON movement (reverses) WHERE reverses IS NOT NULL;

-- The sums of a level's movements up to a version, so that an audit reads only those that follow.
CREATE TABLE checkpoint (
    sku           text    NOT NULL,
    warehouse     text    NOT NULL,
    level_version integer NOT NULL,
    received      integer NOT NULL,
    sold          integer NOT NULL,
    held          integer NOT NULL,
    PRIMARY KEY (sku, warehouse)
) STRICT, WITHOUT ROWID;

-- The identity of this ledger, which keeps databases apart that share a Redis: one row.
CREATE TABLE ledger (id text NOT NULL PRIMARY KEY) STRICT, WITHOUT ROWID;
INSERT INTO ledger VALUES (lower(hex(randomblob(8))));

-- Locks: one row per held lock. Times are microseconds since 1970, by this machine's clock.
-- `nonce` identifies the acquisition, and is empty if the lock is free. `owner` is the process that
-- acquired the lock. `gone`: acquisitions that were released before all their requests had arrived;
-- those requests get no lock until `gone_until`.
CREATE TABLE distributed_lock (
    name       TEXT    NOT NULL PRIMARY KEY,
    nonce      TEXT    NOT NULL,
    owner      TEXT    NOT NULL,
    token      INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    gone       TEXT    NOT NULL DEFAULT '',
    gone_until INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

-- The id under which this database issues fencing tokens, and the greatest token of a lock that was
-- removed: one row.
CREATE TABLE distributed_lock_source (
    number INTEGER NOT NULL PRIMARY KEY CHECK (number = 1),
    id     TEXT    NOT NULL,
    token  INTEGER NOT NULL DEFAULT 0
) STRICT;

-- The clock counts in milliseconds, and one lock can be acquired twice within one.
CREATE TRIGGER distributed_lock_token AFTER DELETE ON distributed_lock BEGIN
    UPDATE distributed_lock_source SET token = max(token, old.token);
END;
