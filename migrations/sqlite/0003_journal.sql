-- Which entry of the journal in Redis a level, or a movement, is from; for stock that lives there.
ALTER TABLE stock ADD COLUMN journal_millis integer NOT NULL DEFAULT 0;
ALTER TABLE stock ADD COLUMN journal_number integer NOT NULL DEFAULT 0;
ALTER TABLE movement ADD COLUMN journal_millis integer;
ALTER TABLE movement ADD COLUMN journal_number integer;

-- This ledger's identity: the stock in Redis carries it in its keys.
CREATE TABLE ledger (id text NOT NULL PRIMARY KEY) STRICT, WITHOUT ROWID;
INSERT INTO ledger VALUES (lower(hex(randomblob(8))));
