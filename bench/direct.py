"""The same statements without the service: driven by the database's own load tool."""

import re
import secrets
import signal
from dataclasses import dataclass
from pathlib import Path

from .process import BenchError, Process, program, run
from .servers import NAME, MariaDb, PostgreSql
from .service import Service
from .statements import pgbench_script, slap_message

# The sessions of the service's pool, see session() and SESSION in src/store/*/connect.rs. Only the
# limits are longer: a timer costs the same whatever it is set to, but the tools give up where the
# service would answer 503.
POSTGRES_SESSION = {
    "default_transaction_isolation": r"read\ committed",
    "lock_timeout": "30000",
    "statement_timeout": "30500",
    "idle_in_transaction_session_timeout": "10000",
}
MARIADB_SESSION = (
    "SET SESSION tx_isolation = 'READ-COMMITTED',"
    " sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', idle_transaction_timeout = 10,"
    " innodb_lock_wait_timeout = 30, max_statement_time = 30.5"
)

# slap is ended when the time is over; until then it has more to do than any server can.
ENDLESS = 1_000_000_000
WARM_UP_SECONDS = 0.5

# All that a movement says beside which one it is: the same, whoever wrote it.
SAME_COLUMNS = (
    "line, kind, delta, held_delta, read_version, strategy, durability, caller, reason, reference"
)


@dataclass(frozen=True)
class Direct:
    """What the load tool reached."""

    clients: int
    rate: float  # transactions a second


def measure(
    database: MariaDb | PostgreSql, service: Service, clients: int, seconds: float, state: Path
) -> Direct:
    """One hot SKU, new and with plenty in stock, and the audit afterwards, as for the service."""
    sku = f"direct-{secrets.token_hex(6)}"
    service.put_stock(sku)
    if isinstance(database, PostgreSql):
        rate, least = _pgbench(database, sku, clients, seconds, state)
    else:
        rate, least = _slap(database, sku, clients, seconds, state)
    audit = service.settled_audit(sku)
    if least <= 0 or not audit.consistent or audit.drift != 0 or audit.sold < least:
        raise BenchError(
            f"direct with {clients} clients is void: {least} transactions counted, then {audit}"
        )
    return Direct(clients, rate)


def assert_same_rows(database: MariaDb | PostgreSql) -> None:
    """Whether both ways have written the same movements, but for ids, keys and levels."""
    rows = database.query(
        f"SELECT DISTINCT {SAME_COLUMNS}, length(request_hash), idempotency_key IS NULL"
        " FROM movement WHERE kind = 'deducted' AND strategy = 'single-sql'"
        " OR sku LIKE 'direct-%' AND delta < 0"
    )
    if len(rows) != 1:
        raise BenchError(
            f"{database.title}: the service and the load tool write different movements: {rows}"
        )


def _pgbench(
    database: PostgreSql, sku: str, clients: int, seconds: float, state: Path
) -> tuple[float, int]:
    script = state / "pgbench.sql"
    script.write_text(pgbench_script(sku))
    options = " ".join(f"-c {name}={value}" for name, value in POSTGRES_SESSION.items())
    output = run(
        [program("pgbench", "postgresql"), *database.client_options(), "--no-vacuum",
         "--protocol=prepared", f"--file={script}", "--define=n=0", f"--client={clients}",
         f"--jobs={min(clients, 2)}", f"--time={seconds:.0f}", database.DATABASE],
        seconds=seconds + 60,
        environment=database.environment() | {"PGOPTIONS": options},
    )  # fmt: skip
    return parse_pgbench(output)


def parse_pgbench(output: str) -> tuple[float, int]:
    """Transactions a second, without the time for connecting, and how many there were."""
    rate = re.search(r"^tps = ([\d.]+) \(without initial connection time\)", output, re.MULTILINE)
    count = re.search(r"^number of transactions actually processed: (\d+)", output, re.MULTILINE)
    failed = re.search(r"^number of failed transactions: (\d+)", output, re.MULTILINE)
    if not rate or not count or (failed and int(failed[1]) > 0):
        raise BenchError(f"pgbench did not do what it was told:\n{output}")
    return float(rate[1]), int(count[1])


def _slap(
    database: MariaDb, sku: str, clients: int, seconds: float, state: Path
) -> tuple[float, int]:
    """slap's own figure counts statements, and has the time for connecting in it. So the counter is
    read twice while it works, with the server's clock, by one client on one connection."""
    slap = Process(
        "mariadb-slap",
        [program("mariadb-slap", "mariadb-client"), *database.client_options(), "--silent",
         f"--create-schema={NAME}", "--no-drop", f"--concurrency={clients}",
         f"--number-of-queries={ENDLESS}", f"--init-command={MARIADB_SESSION}",
         # As one message, as the service sends it; split, it would be five.
         "--delimiter=|", f"--query={slap_message(sku)}"],
        state / "slap.log",
        environment=database.environment(),
        end=signal.SIGTERM,
    )  # fmt: skip
    sample = f"SELECT version, unix_timestamp(sysdate(6)) FROM stock WHERE sku = '{sku}'"
    try:
        answer = database.query(
            f"SELECT 0, sleep({WARM_UP_SECONDS}); {sample}; SELECT 0, sleep({seconds}); {sample}",
            seconds=seconds + 60,
        )
        still_runs = slap.runs()
    finally:
        slap.stop()
    if not still_runs:
        raise BenchError(f"mariadb-slap ended early:\n{slap.log.read_text(errors='replace')}")
    (first, begin), (last, end) = answer[1], answer[3]
    count = int(last) - int(first)
    return count / (float(end) - float(begin)), count
