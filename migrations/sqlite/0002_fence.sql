-- The fencing token of the last write under a lock, and who minted it.
ALTER TABLE stock ADD COLUMN fence integer NOT NULL DEFAULT 0;
ALTER TABLE stock ADD COLUMN fence_source text NOT NULL DEFAULT '';
