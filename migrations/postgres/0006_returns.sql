-- The sale whose units came back, and how many. A returned unit that is not on hand again is not in
-- `delta`.
ALTER TABLE movement
    ADD COLUMN reverses uuid,
    ADD COLUMN returned bigint;
