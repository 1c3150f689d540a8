-- The sums of a level's movements up to a version, so that an audit reads only those that follow.
CREATE TABLE IF NOT EXISTS checkpoint (
    sku            varchar(64) NOT NULL,
    warehouse      varchar(64) NOT NULL,
    level_version  bigint      NOT NULL,
    received       bigint      NOT NULL,
    sold           bigint      NOT NULL,
    held           bigint      NOT NULL,
    journal_millis bigint      NOT NULL,
    journal_number bigint      NOT NULL,
    PRIMARY KEY (sku, warehouse)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Since when every new movement has a level_version; no row while older replicas may write.
CREATE TABLE IF NOT EXISTS numbering (
    since timestamp(6) NOT NULL DEFAULT current_timestamp(6) PRIMARY KEY
) ENGINE = InnoDB;

-- The last `level_version` of stock in Redis.
ALTER TABLE stock
    ADD COLUMN /*M! IF NOT EXISTS */ ledger_version bigint, ALGORITHM = INSTANT;
