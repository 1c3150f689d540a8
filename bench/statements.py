"""What `single-sql` sends, as the databases' own load tools can send it.

It is read from the snapshots that the store's unit tests hold against what it sends, so that what is
driven directly and what the service sends cannot drift apart. Only values are replaced: parameters
by constants, and what each transaction must have for itself by expressions.
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

WAREHOUSE = "main"
QUANTITY = 1

SNAPSHOTS = {
    "postgres": ROOT
    / "src/store/postgres/snapshots/stocklock__store__postgres__sql__tests__single_sql.snap",
    "mariadb": ROOT
    / "src/store/mysql/snapshots/stocklock__store__mysql__script__tests__single_sql.snap",
}

# What each parameter of the PostgreSQL statement is, in order: a movement as `bind_record!` in
# src/store/record.rs binds it, and then the units.
MOVEMENT = (
    "operation_id", "sku", "warehouse", "kind", "delta", "read_version", "strategy", "durability",
    "caller", "idempotency_key", "request_hash", "reason", "reference",
)  # fmt: skip
PARAMETERS = (*MOVEMENT, "quantity")

# What the service writes for a deduction of one unit with a key.
VALUES = {
    "warehouse": f"'{WAREHOUSE}'",
    "quantity": str(QUANTITY),
    "kind": "'deducted'",
    "delta": str(-QUANTITY),
    "read_version": "NULL::bigint",
    "strategy": "'single-sql'",
    "durability": "'committed'",
    "caller": "'anonymous'",
    "request_hash": "'\\x" + "00" * 32 + "'::bytea",
    "reason": "NULL",
    "reference": "NULL",
}

# Operation ids begin with the milliseconds, as the service's do (UUID version 7): rows then come
# in the order of the primary key.
POSTGRES_OPERATION = (
    "(lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0')"
    " || substr(gen_random_uuid()::text, 14))::uuid"
)
MARIADB_OPERATION = (
    "unhex(concat(lpad(hex(floor(unix_timestamp(sysdate(3)) * 1000)), 12, '0'),"
    " hex(random_bytes(10))))"
)

# The values of the sample in MariaDB's snapshot that each transaction must have for itself.
SAMPLE_SKU = "'sample'"
SAMPLE_KEY = "'sample-key'"
SAMPLE_OPERATION = "x'0123456789ab7def8123456789abcdef'"


class StatementError(Exception):
    """The snapshots and what is known of them here do not fit together."""


def snapshot(text: str) -> str:
    """What a snapshot file is of, with white space as a single blank."""
    _, _, content = text.split("---\n", 2)
    return " ".join(content.split())


def pgbench_script(sku: str, text: str | None = None) -> str:
    """A script for `pgbench --define n=0`: one statement, which is a transaction by itself."""
    statement = _read("postgres", text)
    numbers = {int(number) for number in re.findall(r"\$(\d+)", statement)}
    if numbers != set(range(1, len(PARAMETERS) + 1)):
        raise StatementError(
            f"the statement has {len(numbers)} parameters, and {len(PARAMETERS)} are known"
        )
    values = VALUES | {
        "sku": f"'{sku}'",
        "operation_id": POSTGRES_OPERATION,
        # The counter is the client's own, and so is its number.
        "idempotency_key": f"concat('{sku}-', (:client_id)::text, '-', (:n)::text)",
    }
    statement = re.sub(r"\$(\d+)", lambda m: values[PARAMETERS[int(m[1]) - 1]], statement)
    return f"\\set n :n + 1\n{statement};\n"


def slap_message(sku: str, text: str | None = None) -> str:
    """What `mariadb-slap --query=…` repeats: one message, which is a whole transaction."""
    message = _read("mariadb", text)
    for sample, value in (
        (SAMPLE_SKU, f"'{sku}'"),
        (SAMPLE_OPERATION, MARIADB_OPERATION),
        (SAMPLE_KEY, f"concat('{sku}-', uuid_short())"),
    ):
        if sample not in message:
            raise StatementError(f"the message has no {sample}")
        message = message.replace(sample, value)
    return message


def _read(database: str, text: str | None) -> str:
    return snapshot(SNAPSHOTS[database].read_text() if text is None else text)
