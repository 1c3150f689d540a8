-- The fencing token of the last write under a lock, and who minted it. `/*M! */` is read by MariaDB
-- only: MySQL has no such clause.
ALTER TABLE stock
    ADD COLUMN /*M! IF NOT EXISTS */ fence bigint NOT NULL DEFAULT 0,
    ADD COLUMN /*M! IF NOT EXISTS */ fence_source varchar(64) NOT NULL DEFAULT '';
