-- The sale whose units came back, and how many. A returned unit that is not on hand again is not in
-- `delta`. `/*M! */` is read by MariaDB only: MySQL has no such clause.
ALTER TABLE movement
    ADD COLUMN /*M! IF NOT EXISTS */ reverses binary(16),
    ADD COLUMN /*M! IF NOT EXISTS */ returned bigint;
