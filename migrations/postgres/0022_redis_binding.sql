-- The Redis that has the stock of this ledger: its key of the binding contains the same `id`. `run_id`
-- is the run of the server, and the number of the database in it. `beat` increases while replicas use
-- the Redis; 0: the id may not be in Redis yet. The key has the same beat, or still `beat_before`.
-- There is at most one row.
CREATE TABLE redis_binding (
    ledger      varchar(16) NOT NULL PRIMARY KEY,
    id          varchar(32) NOT NULL,
    run_id      varchar(64) NOT NULL,
    beat        bigint      NOT NULL,
    beat_before bigint      NOT NULL
);
