-- The fencing token of the last write under a lock, and who minted it.
ALTER TABLE stock
    ADD COLUMN fence bigint NOT NULL DEFAULT 0,
    ADD COLUMN fence_source varchar(64) COLLATE "C" NOT NULL DEFAULT '';
