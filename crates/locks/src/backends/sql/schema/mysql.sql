-- Locks: one row per held lock. Times are microseconds since 1970, by this server's clock.
-- `nonce` identifies the acquisition, and is empty if the lock is free. `owner` is the process that
-- acquired the lock. `gone`: acquisitions that were released before all their requests had arrived;
-- those requests get no lock until `gone_until`.
CREATE TABLE IF NOT EXISTS distributed_lock (
    name       varbinary(2048) NOT NULL PRIMARY KEY,
    nonce      varchar(32)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    owner      varchar(255)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    token      bigint        NOT NULL,
    expires_at bigint        NOT NULL,
    gone       varchar(2048) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    gone_until bigint        NOT NULL DEFAULT 0
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- The id under which this database issues fencing tokens: one row.
CREATE TABLE IF NOT EXISTS distributed_lock_source (
    number tinyint NOT NULL PRIMARY KEY CHECK (number = 1),
    id     varchar(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL
) ENGINE=InnoDB;
