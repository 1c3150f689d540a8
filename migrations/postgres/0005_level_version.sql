-- The order in which the movements of one level were committed; NULL in rows of older releases. Stock
-- in SQL: the version of the level after the movement. Stock in Redis: a counter in `stock`.
ALTER TABLE movement ADD COLUMN level_version bigint;
ALTER TABLE stock ADD COLUMN ledger_version bigint;

-- The sums of a level's movements up to a version, so that an audit reads only those that follow.
CREATE TABLE checkpoint (
    sku            varchar(64) COLLATE "C" NOT NULL,
    warehouse      varchar(64) COLLATE "C" NOT NULL,
    level_version  bigint      NOT NULL,
    received       bigint      NOT NULL,
    sold           bigint      NOT NULL,
    held           bigint      NOT NULL,
    journal_millis bigint      NOT NULL,
    journal_number bigint      NOT NULL,
    PRIMARY KEY (sku, warehouse)
);

-- Since when every new movement has a level_version; no row while older replicas may write. A ledger
-- without movements has no older replica.
CREATE TABLE numbering (since timestamptz NOT NULL PRIMARY KEY);
INSERT INTO numbering SELECT clock_timestamp() WHERE NOT EXISTS (SELECT 1 FROM movement);
