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

-- Since when every new movement has a level_version; no row while older replicas may write.
CREATE TABLE numbering (since text NOT NULL PRIMARY KEY) STRICT, WITHOUT ROWID;

-- The last `level_version` of stock in Redis.
ALTER TABLE stock ADD COLUMN ledger_version integer;
