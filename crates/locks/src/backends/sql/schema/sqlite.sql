-- Locks: one row per held lock. Times are microseconds since 1970, by this machine's clock.
-- `nonce` identifies the acquisition, and is empty if the lock is free. `owner` is the process that
-- acquired the lock. `gone`: acquisitions that were released before all their requests had arrived;
-- those requests get no lock until `gone_until`.
CREATE TABLE distributed_lock (
    name       TEXT    NOT NULL PRIMARY KEY,
    nonce      TEXT    NOT NULL,
    owner      TEXT    NOT NULL,
    token      INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    gone       TEXT    NOT NULL DEFAULT '',
    gone_until INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

-- The id under which this database issues fencing tokens, and the greatest token of a lock that was
-- removed: one row.
CREATE TABLE distributed_lock_source (
    number INTEGER NOT NULL PRIMARY KEY CHECK (number = 1),
    id     TEXT    NOT NULL,
    token  INTEGER NOT NULL DEFAULT 0
) STRICT;

-- The clock counts in milliseconds, and one lock can be acquired twice within one.
CREATE TRIGGER distributed_lock_token AFTER DELETE ON distributed_lock BEGIN
    UPDATE distributed_lock_source SET token = max(token, old.token);
END;
