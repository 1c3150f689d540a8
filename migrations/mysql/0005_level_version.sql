-- The order in which the movements of one level were committed; NULL in rows of older releases. Stock
-- in SQL: the version of the level after the movement. Stock in Redis: a counter in `stock`.
-- `/*M! */` is read by MariaDB only: MySQL has no such clause.
ALTER TABLE movement
    ADD COLUMN /*M! IF NOT EXISTS */ level_version bigint, ALGORITHM = INSTANT;
ALTER TABLE stock
    ADD COLUMN /*M! IF NOT EXISTS */ ledger_version bigint, ALGORITHM = INSTANT;

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

-- Since when every new movement has a level_version; no row while older replicas may write. A ledger
-- without movements has no older replica.
CREATE TABLE IF NOT EXISTS numbering (
    since timestamp(6) NOT NULL DEFAULT current_timestamp(6) PRIMARY KEY
) ENGINE = InnoDB;
INSERT INTO numbering
    SELECT current_timestamp(6) FROM dual
    WHERE NOT EXISTS (SELECT 1 FROM movement) AND NOT EXISTS (SELECT 1 FROM numbering);
