"""The statement of `single-sql`, in a form that the databases' own load tools can send.

The text comes from snapshots. The store's unit tests compare them with the statement that the store
sends, so the load tools and the service always execute the same statement. Only values are
replaced: parameters by constants, and values that must differ in each transaction by expressions.
"""

import re

from .process import ROOT, BenchError

# The PostgreSQL parameters by name: the columns of `movement`, and the expiry.
VALUES = {
    "warehouse": "'main'",
    "kind": "'deducted'",
    "delta": "-1",
    "read_version": "NULL::bigint",
    "strategy": "'single-sql'",
    "caller": "'anonymous'",
    "request_hash": "'\\x" + "00" * 32 + "'::bytea",
    "reason": "NULL",
    "reference": "NULL",
    "expiry": "4102444800000",  # in the year 2100
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


def snapshot(dialect: str) -> str:
    """The text of `single-sql` for `mysql` or `postgres`, with white space collapsed to blanks."""
    # Not in `target`, which has too many files to search.
    folders = (path for path in ROOT.iterdir() if path.is_dir() and path.name != "target")
    snapshots = (path for folder in folders for path in folder.rglob("*single_sql.snap"))
    found = [path for path in snapshots if dialect in str(path.relative_to(ROOT))]
    if len(found) != 1:
        raise BenchError(f"one snapshot *{dialect}*single_sql.snap is needed, found: {found}")
    return " ".join(found[0].read_text().split("---\n", 2)[2].split())


def pgbench_script(sku: str, text: str | None = None) -> str:
    """A script for `pgbench --define n=0`. Its one statement is a transaction."""
    # pgbench counts `n` per client.
    key = f"concat('{sku}-', (:client_id)::text, '-', (:n)::text)"
    return _script(text or snapshot("postgres"), VALUES | {"sku": f"'{sku}'", "idempotency_key": key})


def pgbench_batches(sku: str, lines: int, text: str | None = None) -> str:
    """The same for so many deductions of one unit: one update, and one insert of as many rows."""
    statement = text or snapshot("postgres")
    for old, new in (
        ("version = version + 1, on_hand = on_hand + $5",
         f"version = version + {lines}, on_hand = on_hand - {lines}"),
        ("on_hand + $5 - held", f"on_hand - {lines} - held"),
        ("available, version FROM written RETURNING 1",
         f"available + {lines} - number, version - {lines} + number"
         f" FROM written, generate_series(1, {lines}) AS number RETURNING 1"),
    ):  # fmt: skip
        if statement.count(old) != 1:
            raise BenchError(f"the statement does not have once: {old}")
        statement = statement.replace(old, new)
    key = f"concat('{sku}-', (:client_id)::text, '-', (:n)::text, '-', number::text)"
    values = {"sku": f"'{sku}'", "idempotency_key": key, "strategy": "'group-commit'"}
    return _script(statement, VALUES | values)


def _script(statement: str, values: dict[str, str]) -> str:
    values = values | {"operation_id": POSTGRES_OPERATION}
    names = _parameters(statement)
    unknown = set(re.findall(r"\$\d+", statement)) - {
        number for number, name in names.items() if name in values
    }
    if unknown:
        raise BenchError(f"no value is known for the parameters {sorted(unknown)}")
    statement = re.sub(r"\$\d+", lambda found: values[names[found[0]]], statement)
    return f"\\set n :n + 1\n{statement};\n"


def _parameters(statement: str) -> dict[str, str]:
    """The name of each parameter: the column that it is inserted into, or the expiry."""
    insert = re.search(r"INSERT INTO movement \((.*?)\) SELECT (.*?) FROM", statement)
    expiry = re.search(r"clock_timestamp\(\)\) \* 1000 < (\$\d+)", statement)
    if not insert or not expiry:
        raise BenchError(f"not an update that can expire, and an insert: {statement}")
    columns, values = (part.split(", ") for part in insert.groups())
    if len(columns) != len(values):
        raise BenchError(f"{len(columns)} columns, but {len(values)} values: {statement}")
    return dict(zip(values, columns, strict=True)) | {expiry[1]: "expiry"}


def slap_message(sku: str, text: str | None = None) -> str:
    """The message that `mariadb-slap --query` repeats. It is a whole transaction."""
    message = text or snapshot("mysql")
    for sample, value in (
        ("'sample'", f"'{sku}'"),
        ("x'0123456789ab7def8123456789abcdef'", MARIADB_OPERATION),
        ("'sample-key'", f"concat('{sku}-', uuid_short())"),
    ):
        if sample not in message:
            raise BenchError(f"the message has no {sample}")
        message = message.replace(sample, value)
    return message
