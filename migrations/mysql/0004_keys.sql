-- API keys. Times are milliseconds since 1970. `secret_hash` is the SHA-256 of the secret, which is not stored.
CREATE TABLE IF NOT EXISTS api_key (
    id          varchar(16)  NOT NULL PRIMARY KEY,
    name        varchar(64)  NOT NULL,
    -- Who owns the idempotency keys and references of its requests.
    caller      varchar(64)  NOT NULL,
    secret_hash binary(32)   NOT NULL,
    -- Names with commas between them.
    scopes      varchar(255) NOT NULL,
    -- Lines per second, and at once; NULL: no limit.
    rate        bigint,
    burst       bigint,
    created_at  bigint       NOT NULL,
    expires_at  bigint,
    revoked_at  bigint
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */;
