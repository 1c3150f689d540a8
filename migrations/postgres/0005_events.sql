-- The feed: the movements that were published, in order. The ledger has the movements; a row of the feed names
-- those of a level with versions in a row. `seq` has no gaps.
CREATE TABLE feed (
    seq           bigint      NOT NULL PRIMARY KEY,
    sku           varchar(64) COLLATE "C" NOT NULL,
    warehouse     varchar(64) COLLATE "C" NOT NULL,
    first_version bigint      NOT NULL,
    last_version  bigint      NOT NULL,
    -- Milliseconds since 1970.
    published_at  bigint      NOT NULL,
    -- A version is published once.
    UNIQUE (sku, warehouse, last_version)
);

-- One row, which a publisher locks. `seq`: the last number of the feed. `filled`: 1 when `published` has all
-- levels that were there when events were switched on for the first time.
CREATE TABLE feed_state (
    number integer NOT NULL PRIMARY KEY CHECK (number = 1),
    seq    bigint  NOT NULL,
    filled bigint  NOT NULL
) WITH (fillfactor = 50); -- updated in place
INSERT INTO feed_state VALUES (1, 0, 0);

-- Up to which version each level was published. Rows are kept when those of the feed are deleted.
CREATE TABLE published (
    sku       varchar(64) COLLATE "C" NOT NULL,
    warehouse varchar(64) COLLATE "C" NOT NULL,
    version   bigint      NOT NULL,
    PRIMARY KEY (sku, warehouse)
) WITH (fillfactor = 50);

-- Who is sent the events. Times are milliseconds since 1970. Secrets are stored as they are, because each message
-- is signed with them.
CREATE TABLE webhook (
    id            varchar(36)   COLLATE "C" NOT NULL PRIMARY KEY,
    url           varchar(2000) COLLATE "C" NOT NULL,
    secret        varchar(64)   COLLATE "C" NOT NULL,
    -- The secret before, with which messages are also signed for a while.
    old_secret    varchar(64)   COLLATE "C",
    old_until     bigint,
    -- Types of events with commas between them; empty: all.
    types         varchar(255)  COLLATE "C" NOT NULL,
    low_at        bigint,
    -- Grows with each change by a request, so that a message of another one has another id.
    revision      bigint        NOT NULL,
    -- After the last event that has arrived, and the end of the batch that is being sent: cursors.
    position      varchar(64)   COLLATE "C" NOT NULL,
    batch_end     varchar(64)   COLLATE "C",
    created_at    bigint        NOT NULL,
    failing_since bigint,
    problem       varchar(255)  COLLATE "C",
    disabled_at   bigint
);
