-- API keys. Times are milliseconds since 1970. `secret_hash` is the SHA-256 of the secret, which is not stored.
CREATE TABLE api_key (
    id          varchar(16)  COLLATE "C" NOT NULL PRIMARY KEY,
    name        varchar(64)  COLLATE "C" NOT NULL,
    -- Who owns the idempotency keys and references of its requests.
    caller      varchar(64)  COLLATE "C" NOT NULL,
    secret_hash bytea        NOT NULL,
    -- Names with commas between them.
    scopes      varchar(255) COLLATE "C" NOT NULL,
    -- Lines per second, and at once; NULL: no limit.
    rate        bigint,
    burst       bigint,
    created_at  bigint       NOT NULL,
    expires_at  bigint,
    revoked_at  bigint
);
