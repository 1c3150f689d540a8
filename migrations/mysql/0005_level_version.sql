-- The order in which the movements of one level were committed; NULL in rows of older releases. Stock
-- in SQL: the version of the level after the movement. Stock in Redis: a counter in `stock`.
-- `/*M! */` is read by MariaDB only: MySQL has no such clause.
ALTER TABLE movement
    ADD COLUMN /*M! IF NOT EXISTS */ level_version bigint, ALGORITHM = INSTANT;
