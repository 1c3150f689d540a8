"""The statement of `single-sql`, in a form that the databases' own load tools can send.

The text comes from snapshots, which the unit tests of the store compare with what it sends. So the
load tools and the service always execute the same statement. Only values are replaced: parameters by
constants, and values that must differ in each transaction by expressions.
"""

import re

from .process import ROOT

WAREHOUSE = "main"
QUANTITY = 1

# The PostgreSQL parameters by name: the columns of `movement`, and the quantity.
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

# A UUID of version 7 starts with the time in milliseconds, so rows arrive in primary key order.
POSTGRES_OPERATION = (
    "(lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0')"
    " || substr(gen_random_uuid()::text, 14))::uuid"
)
MARIADB_OPERATION = (
    "unhex(concat(lpad(hex(floor(unix_timestamp(sysdate(3)) * 1000)), 12, '0'),"
    " hex(random_bytes(10))))"
)

# Values in MariaDB's snapshot that must differ in each transaction or run.
SAMPLE_SKU = "'sample'"
SAMPLE_KEY = "'sample-key'"
SAMPLE_OPERATION = "x'0123456789ab7def8123456789abcdef'"


class StatementError(Exception):
    """A snapshot has changed in a way that this module does not understand."""


def snapshot(dialect: str) -> str:
    """The snapshot of `single-sql` for `mysql` or `postgres`."""
    # Not in `target`, which has too many files to search.
    folders = (path for path in ROOT.iterdir() if path.is_dir() and path.name != "target")
    snapshots = (path for folder in folders for path in folder.rglob("*single_sql.snap"))
    found = [path for path in snapshots if dialect in str(path.relative_to(ROOT))]
    if len(found) != 1:
        raise StatementError(f"one snapshot *{dialect}*single_sql.snap is needed, found: {found}")
    return found[0].read_text()


def content(text: str) -> str:
    """The text of a snapshot without its header, each white space replaced by one blank."""
    return " ".join(text.split("---\n", 2)[2].split())


def pgbench_script(sku: str, text: str | None = None) -> str:
    """A script for `pgbench --define n=0`. Its one statement is a transaction."""
    statement = content(snapshot("postgres") if text is None else text)
    values = VALUES | {
        "sku": f"'{sku}'",
        "operation_id": POSTGRES_OPERATION,
        # pgbench counts `n` per client.
        "idempotency_key": f"concat('{sku}-', (:client_id)::text, '-', (:n)::text)",
    }
    names = _parameters(statement)
    unknown = set(re.findall(r"\$\d+", statement)) - {
        number for number, name in names.items() if name in values
    }
    if unknown:
        raise StatementError(f"no value is known for the parameters {sorted(unknown)}")
    statement = re.sub(r"\$\d+", lambda found: values[names[found[0]]], statement)
    return f"\\set n :n + 1\n{statement};\n"


def _parameters(statement: str) -> dict[str, str]:
    """The name of each parameter: the column that it is inserted into, or the quantity."""
    insert = re.search(r"INSERT INTO movement \((.*?)\) SELECT (.*?) FROM", statement)
    quantity = re.search(r"on_hand = on_hand - (\$\d+)", statement)
    if not insert or not quantity:
        raise StatementError(f"not an update and an insert: {statement}")
    columns, values = (part.split(", ") for part in insert.groups())
    if len(columns) != len(values):
        raise StatementError(f"{len(columns)} columns, but {len(values)} values: {statement}")
    return dict(zip(values, columns, strict=True)) | {quantity[1]: "quantity"}


def slap_message(sku: str, text: str | None = None) -> str:
    """The message that `mariadb-slap --query` repeats. It is a whole transaction."""
    message = content(snapshot("mysql") if text is None else text)
    for sample, value in (
        (SAMPLE_SKU, f"'{sku}'"),
        (SAMPLE_OPERATION, MARIADB_OPERATION),
        (SAMPLE_KEY, f"concat('{sku}-', uuid_short())"),
    ):
        if sample not in message:
            raise StatementError(f"the message has no {sample}")
        message = message.replace(sample, value)
    return message
