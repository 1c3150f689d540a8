"""The statements of `single-sql`, as the databases' own load tools can run them.

They are read from the store's own `sql.rs`, so that what is driven directly and what the service
sends cannot drift apart. Only the parameters are replaced: by constants, and by expressions where
each transaction must have a value of its own.
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

WAREHOUSE = "main"
QUANTITY = 1

# The order in which `bind_record!` in src/store/record.rs binds a movement.
MOVEMENT = (
    "operation_id", "sku", "warehouse", "kind", "delta", "available_after", "read_version",
    "strategy", "durability", "caller", "idempotency_key", "request_hash", "reason", "reference",
)  # fmt: skip


@dataclass(frozen=True)
class Plain:
    """A statement without parameters, which stands in no `sql.rs`."""

    text: str


@dataclass(frozen=True)
class Stored:
    """A constant of `sql.rs`, and what each of its parameters is, in order: `$1`, `$2`, … in
    PostgreSQL, the question marks from left to right in MariaDB. `result` names the one column
    that it returns, for the statements after it."""

    constant: str
    parameters: tuple[str, ...]
    result: str | None = None


# What one deduction by `single-sql` sends, in order: to be changed with `if_available` in
# src/store/*/deduct.rs. The bench compares the rows that both have written, and so finds parameters
# in a wrong order; the number of the statements it cannot see.
SINGLE_SQL: dict[str, tuple[Plain | Stored, ...]] = {
    "postgres": (
        Plain("BEGIN"),
        Stored("DEDUCT_IF_AVAILABLE", ("sku", "warehouse", "quantity"), result="available_after"),
        Stored("INSERT_MOVEMENT", MOVEMENT),
        Plain("COMMIT"),
    ),
    "mariadb": (
        Plain("BEGIN"),
        Stored("DEDUCT_IF_AVAILABLE", ("quantity", "quantity", "sku", "warehouse", "quantity")),
        Stored("INSERT_MOVEMENT", MOVEMENT),
        Plain("COMMIT"),
    ),
}

SOURCES = {
    "postgres": ROOT / "src/store/postgres/sql.rs",
    "mariadb": ROOT / "src/store/mysql/sql.rs",
}

# The same in both: what the service writes for a deduction of one unit with a key.
COMMON_VALUES = {
    "warehouse": f"'{WAREHOUSE}'",
    "quantity": str(QUANTITY),
    "kind": "'deducted'",
    "delta": str(-QUANTITY),
    "read_version": "NULL",
    "strategy": "'single-sql'",
    "durability": "'committed'",
    "caller": "'anonymous'",
    "reason": "NULL",
    "reference": "NULL",
}

# Operation ids begin with the milliseconds, as the service's do (UUID version 7): rows then come
# in the order of the primary key.
POSTGRES_VALUES = {
    "operation_id": "(lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0')"
    " || substr(gen_random_uuid()::text, 14))::uuid",
    "available_after": ":available_after",
    "request_hash": "'\\x" + "00" * 32 + "'::bytea",
}
MARIADB_VALUES = {
    "operation_id": "unhex(concat(lpad(hex(floor(unix_timestamp(sysdate(3)) * 1000)), 12, '0'),"
    " hex(random_bytes(10))))",
    "available_after": "last_insert_id()",
    "request_hash": "x'" + "00" * 32 + "'",
}

_CONSTANT = re.compile(r'const (\w+): &str =\s*(?:r#"(.*?)"#|"((?:[^"\\]|\\.)*)");', re.DOTALL)


class StatementError(Exception):
    """`sql.rs` and the list of statements here do not fit together."""


def constants(source: str) -> dict[str, str]:
    """The string constants of a Rust source, with white space as a single blank."""
    found = {}
    for name, raw, quoted in _CONSTANT.findall(source):
        text = raw or quoted.replace("\\\n", "").replace('\\"', '"')
        found[name] = " ".join(text.split())
    return found


def pgbench_script(sku: str, source: str | None = None) -> str:
    """A script for `pgbench --define n=0`, one transaction long."""
    values = COMMON_VALUES | POSTGRES_VALUES | {"sku": f"'{sku}'"}
    # The counter is the client's own, and so is its number.
    values["idempotency_key"] = f"concat('{sku}-', (:client_id)::text, '-', (:n)::text)"
    lines = ["\\set n :n + 1"]
    for statement, text in _statements("postgres", source):
        if isinstance(statement, Plain):
            lines.append(f"{text};")
            continue
        end = f" AS {statement.result} \\gset" if statement.result else ";"
        lines.append(_numbered(text, statement, values) + end)
    return "\n".join(lines) + "\n"


def slap_query(sku: str, source: str | None = None) -> str:
    """What `mariadb-slap --delimiter=';' --query=…` repeats, one transaction long."""
    values = COMMON_VALUES | MARIADB_VALUES | {"sku": f"'{sku}'"}
    values["idempotency_key"] = f"concat('{sku}-', uuid_short())"
    return ";".join(
        text if isinstance(statement, Plain) else _positional(text, statement, values)
        for statement, text in _statements("mariadb", source)
    )


def _statements(database: str, source: str | None) -> list[tuple[Plain | Stored, str]]:
    path = SOURCES[database]
    known = constants(path.read_text() if source is None else source)
    texts: list[tuple[Plain | Stored, str]] = []
    for statement in SINGLE_SQL[database]:
        if isinstance(statement, Plain):
            texts.append((statement, statement.text))
        elif statement.constant in known:
            texts.append((statement, known[statement.constant]))
        else:
            raise StatementError(f"{path.relative_to(ROOT)} has no {statement.constant}")
    return texts


def _numbered(text: str, statement: Stored, values: dict[str, str]) -> str:
    numbers = {int(number) for number in re.findall(r"\$(\d+)", text)}
    if numbers != set(range(1, len(statement.parameters) + 1)):
        raise _disagreement(statement, len(numbers))
    return re.sub(r"\$(\d+)", lambda m: values[statement.parameters[int(m[1]) - 1]], text)


def _positional(text: str, statement: Stored, values: dict[str, str]) -> str:
    if text.count("?") != len(statement.parameters):
        raise _disagreement(statement, text.count("?"))
    names = iter(statement.parameters)
    return re.sub(r"\?", lambda _: values[next(names)], text)


def _disagreement(statement: Stored, found: int) -> StatementError:
    return StatementError(
        f"{statement.constant} has {found} parameters in sql.rs,"
        f" and {len(statement.parameters)} in bench/statements.py"
    )
