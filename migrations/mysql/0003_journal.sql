-- Which entry of the journal in Redis a level, or a movement, is from; for stock that lives there.
-- `/*M! */` is read by MariaDB only: MySQL has no such clause.
ALTER TABLE stock
    ADD COLUMN /*M! IF NOT EXISTS */ journal_millis bigint NOT NULL DEFAULT 0,
    ADD COLUMN /*M! IF NOT EXISTS */ journal_number bigint NOT NULL DEFAULT 0;
ALTER TABLE movement
    ADD COLUMN /*M! IF NOT EXISTS */ journal_millis bigint,
    ADD COLUMN /*M! IF NOT EXISTS */ journal_number bigint;

-- This ledger's identity: the stock in Redis carries it in its keys.
CREATE TABLE IF NOT EXISTS ledger (
    id varchar(16) NOT NULL PRIMARY KEY
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
INSERT INTO ledger
    SELECT left(md5(concat(uuid(), rand())), 16) FROM dual
    WHERE NOT EXISTS (SELECT id FROM ledger);
