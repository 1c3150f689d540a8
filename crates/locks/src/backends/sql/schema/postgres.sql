-- Locks: one row per held lock. Times are microseconds since 1970, by this server's clock.
-- `nonce` identifies the acquisition, and is empty if the lock is free. `owner` is the process that
-- acquired the lock. `is_awaited`: the release wakes waiters. `gone`: acquisitions that were released
-- before all their requests had arrived; those requests get no lock until `gone_until`.
CREATE TABLE distributed_lock (
    name       text    COLLATE "C" NOT NULL PRIMARY KEY,
    nonce      text    NOT NULL,
    owner      text    NOT NULL,
    token      bigint  NOT NULL,
    expires_at bigint  NOT NULL,
    is_awaited boolean NOT NULL DEFAULT false,
    gone       text    NOT NULL DEFAULT '',
    gone_until bigint  NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- The id under which this database issues fencing tokens: one row.
CREATE TABLE distributed_lock_source (
    number integer NOT NULL PRIMARY KEY CHECK (number = 1),
    id     text    NOT NULL
);
