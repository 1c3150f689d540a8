-- Units that are set aside for a caller: the open lines of holds. A line that ends loses its row in the
-- transaction that records its end, so it ends once.
CREATE TABLE hold (
    operation_id BLOB    NOT NULL,
    line         INTEGER NOT NULL,
    sku          TEXT    NOT NULL,
    warehouse    TEXT    NOT NULL,
    units        INTEGER NOT NULL,
    -- When it ends: milliseconds since 1970, or the largest number if it does not expire.
    expires_at   INTEGER NOT NULL,
    -- Of the hold; its sale gets it, too.
    reference    TEXT,
    PRIMARY KEY (operation_id, line)
) WITHOUT ROWID;

-- The holds of a level, and all holds, in the order of their ends.
CREATE INDEX hold_of_level ON hold (sku, warehouse, expires_at, operation_id, line);
CREATE INDEX hold_by_end ON hold (expires_at, operation_id, line);
