-- One table per migration: sales lock `stock` first and `movement` next, so a transaction that changes
-- both tables could rarely get both locks.
--
-- The order in which the movements of one level were committed; NULL in rows of older releases. Stock
-- in SQL: the version of the level after the movement. Stock in Redis: a counter in `stock`.
ALTER TABLE movement ADD COLUMN level_version bigint;
