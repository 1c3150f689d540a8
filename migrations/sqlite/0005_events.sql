-- The feed: the movements that were published, in order. The ledger has the movements; a row of the feed names
-- those of a level with versions in a row. `seq` has no gaps.
CREATE TABLE feed (
    seq           integer NOT NULL PRIMARY KEY,
    sku           text    NOT NULL,
    warehouse     text    NOT NULL,
    first_version integer NOT NULL,
    last_version  integer NOT NULL,
    -- Milliseconds since 1970.
    published_at  integer NOT NULL,
    -- A version is published once.
    UNIQUE (sku, warehouse, last_version)
) STRICT;

-- One row, which a publisher locks. `seq`: the last number of the feed. `filled`: 1 when `published` has all
-- levels that were there when events were switched on for the first time.
CREATE TABLE feed_state (
    number integer NOT NULL PRIMARY KEY CHECK (number = 1),
    seq    integer NOT NULL,
    filled integer NOT NULL
) STRICT;
INSERT INTO feed_state VALUES (1, 0, 0);

-- Up to which version each level was published. Rows are kept when those of the feed are deleted.
CREATE TABLE published (
    sku       text    NOT NULL,
    warehouse text    NOT NULL,
    version   integer NOT NULL,
    PRIMARY KEY (sku, warehouse)
) STRICT, WITHOUT ROWID;

-- Who is sent the events. Times are milliseconds since 1970. Secrets are stored as they are, because each message
-- is signed with them.
CREATE TABLE webhook (
    id            text    NOT NULL PRIMARY KEY,
    url           text    NOT NULL,
    secret        text    NOT NULL,
    -- The secret before, with which messages are also signed for a while.
    old_secret    text,
    old_until     integer,
    -- Types of events with commas between them; empty: all.
    types         text    NOT NULL,
    low_at        integer,
    -- Grows with each change by a request, so that a message of another one has another id.
    revision      integer NOT NULL,
    -- After the last event that has arrived, and the end of the batch that is being sent: cursors.
    position      text    NOT NULL,
    batch_end     text,
    created_at    integer NOT NULL,
    failing_since integer,
    problem       text,
    disabled_at   integer
) STRICT, WITHOUT ROWID;
