-- The order in which the movements of one level were committed; NULL in rows of older releases. Stock
-- in SQL: the version of the level after the movement. Stock in Redis: a counter in `stock`.
ALTER TABLE movement ADD COLUMN level_version integer;
ALTER TABLE stock ADD COLUMN ledger_version integer;

-- The sums of a level's movements up to a version, so that an audit reads only those that follow.
CREATE TABLE checkpoint (
    sku            text    NOT NULL,
    warehouse      text    NOT NULL,
    level_version  integer NOT NULL,
    received       integer NOT NULL,
    sold           integer NOT NULL,
    held           integer NOT NULL,
    journal_millis integer NOT NULL,
    journal_number integer NOT NULL,
    PRIMARY KEY (sku, warehouse)
) STRICT, WITHOUT ROWID;

-- Since when every new movement has a level_version; no row while older replicas may write. A ledger
-- without movements has no older replica.
CREATE TABLE numbering (since text NOT NULL PRIMARY KEY) STRICT, WITHOUT ROWID;
INSERT INTO numbering
    SELECT strftime('%Y-%m-%dT%H:%M:%fZ', 'now') WHERE NOT EXISTS (SELECT 1 FROM movement);
