CREATE TABLE stock (
    sku             text    NOT NULL,
    warehouse       text    NOT NULL,
    on_hand         integer NOT NULL,
    held            integer NOT NULL DEFAULT 0,
    backorder_limit integer NOT NULL DEFAULT 0,
    version         integer NOT NULL DEFAULT 1,
    home            text    NOT NULL,
    PRIMARY KEY (sku, warehouse),
    CONSTRAINT stock_not_oversold CHECK (on_hand - held >= -backorder_limit)
) STRICT, WITHOUT ROWID;

CREATE TABLE movement (
    operation_id    blob    NOT NULL,
    line            integer NOT NULL,
    sku             text    NOT NULL,
    warehouse       text    NOT NULL,
    kind            text    NOT NULL,
    delta           integer NOT NULL,
    held_delta      integer NOT NULL DEFAULT 0,
    available_after integer NOT NULL,
    read_version    integer,
    strategy        text,
    durability      text    NOT NULL,
    caller          text    NOT NULL,
    idempotency_key text,
    request_hash    blob,
    reason          text,
    reference       text,
    created_at      text    NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    PRIMARY KEY (operation_id, line),
    CONSTRAINT movement_once_per_key UNIQUE (caller, idempotency_key)
) STRICT, WITHOUT ROWID;

CREATE INDEX movement_of_sku ON movement (sku, operation_id);
