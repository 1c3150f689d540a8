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

-- Since when every new movement has a level_version; no row while older replicas may write.
CREATE TABLE numbering (since timestamptz NOT NULL PRIMARY KEY);

-- The last `level_version` of stock in Redis.
ALTER TABLE stock ADD COLUMN ledger_version bigint;
