-- API keys. Times are milliseconds since 1970. `secret_hash` is the SHA-256 of the secret, which is not stored.
CREATE TABLE api_key (
    id          text    NOT NULL PRIMARY KEY,
    name        text    NOT NULL,
    -- Who owns the idempotency keys and references of its requests.
    caller      text    NOT NULL,
    secret_hash blob    NOT NULL,
    -- Names with commas between them.
    scopes      text    NOT NULL,
    -- Lines per second, and at once; NULL: no limit.
    rate        integer,
    burst       integer,
    created_at  integer NOT NULL,
    expires_at  integer,
    revoked_at  integer
) STRICT, WITHOUT ROWID;
