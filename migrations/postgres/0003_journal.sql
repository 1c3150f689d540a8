-- Which entry of the journal in Redis a level, or a movement, is from; for stock that lives there.
ALTER TABLE stock
    ADD COLUMN journal_millis bigint NOT NULL DEFAULT 0,
    ADD COLUMN journal_number bigint NOT NULL DEFAULT 0;
ALTER TABLE movement
    ADD COLUMN journal_millis bigint,
    ADD COLUMN journal_number bigint;

-- This ledger's identity: the stock in Redis carries it in its keys.
CREATE TABLE ledger (id varchar(16) NOT NULL PRIMARY KEY);
INSERT INTO ledger SELECT left(replace(gen_random_uuid()::text, '-', ''), 16);
