"""The same statement without the service: the database's own load tool sends it."""

import re
import secrets
from pathlib import Path

from .load import Run
from .process import BenchError, Process, program, run
from .servers import MariaDb, Server
from .service import Service, Strategy
from .statements import pgbench_batches, pgbench_script, slap_message

# The session settings of the service's connections (`connect.rs` of each SQL store). Only the time
# limits are longer, because the tools stop at the first error; the service would answer 503.
POSTGRES_SESSION = (
    r"-c default_transaction_isolation=read\ committed -c lock_timeout=30000"
    " -c statement_timeout=30500 -c idle_in_transaction_session_timeout=10000"
)
MARIADB_SESSION = (
    "SET SESSION tx_isolation = 'READ-COMMITTED',"
    " sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', idle_transaction_timeout = 10,"
    " innodb_lock_wait_timeout = 30, max_statement_time = 30.5"
)


def measure(
    database: Server, service: Service, strategy: Strategy, clients: int, seconds: float,
    *, directory: Path, lines: int = 1,
) -> Run:  # fmt: skip
    """Deductions of one new SKU with plenty in stock, per second. Raises if the audit finds an
    error. With more than one of the `lines`, a transaction has so many (only pgbench)."""
    sku = f"direct-{strategy.name}-{secrets.token_hex(6)}"
    service.put_stock(sku)
    if isinstance(database, MariaDb):
        rate, least = _slap(database, slap_message(sku), sku, clients, seconds, directory)
    else:
        script = pgbench_script(sku) if lines == 1 else pgbench_batches(sku, lines)
        found = _pgbench(database, script, clients, seconds, directory)
        rate, least = (lines * each for each in found)
    audit = service.final_audit(sku)
    if least <= 0 or not audit.consistent or audit.drift != 0 or audit.sold < least:
        raise BenchError(
            f"{database.tool} with {clients} clients is void: {least} deductions, then {audit}"
        )
    return {"clients": clients, "rate": rate}


def assert_same_rows(database: Server, strategy: str) -> None:
    """Checks that the tool and the service wrote equal movements, except ids, keys and levels."""
    rows = database.query(
        "SELECT DISTINCT line, kind, delta, held_delta, read_version, strategy, caller,"
        " reason, reference, length(request_hash), idempotency_key IS NULL FROM movement"
        f" WHERE kind = 'deducted' AND strategy = '{strategy}'"
        f" OR sku LIKE 'direct-{strategy}-%' AND delta < 0",
        seconds=120,
    )
    if len(rows) != 1:
        raise BenchError(f"the service and {database.tool} write different movements: {rows}")


def _pgbench(
    database: Server, text: str, clients: int, seconds: float, directory: Path
) -> tuple[float, int]:
    script = directory / "pgbench.sql"
    script.write_text(text)
    output = run(
        [program("pgbench"), *database.client_options, "--no-vacuum",
         "--protocol=prepared", f"--file={script}", "--define=n=0", f"--client={clients}",
         f"--jobs={min(clients, 2)}", f"--time={seconds:.0f}", database.database],
        seconds=seconds + 60,
        environment=database.environment | {"PGOPTIONS": POSTGRES_SESSION},
    )  # fmt: skip
    return parse_pgbench(output)


def parse_pgbench(output: str) -> tuple[float, int]:
    """Transactions per second without the time to connect, and the number of transactions."""
    rate = re.search(r"tps = ([\d.]+) \(without initial connection time\)", output)
    count = re.search(r"number of transactions actually processed: (\d+)", output)
    failed = re.search(r"number of failed transactions: (\d+)", output)
    if not rate or not count or (failed and int(failed[1]) > 0):
        raise BenchError(f"pgbench failed or has unknown output:\n{output}")
    return float(rate[1]), int(count[1])


def _slap(
    database: Server, message: str, sku: str, clients: int, seconds: float, directory: Path
) -> tuple[float, int]:
    """The rate that mariadb-slap prints counts statements and includes the time to connect.
    Instead, another client reads the version of the stock level twice while the tool runs, with
    the server's clock."""
    slap = Process(
        [program("mariadb-slap"), *database.client_options, "--silent",
         f"--create-schema={database.database}", "--no-drop", f"--concurrency={clients}",
         "--number-of-queries=1000000000", f"--init-command={MARIADB_SESSION}",
         # It is stopped long before that number of queries.
         # A delimiter that does not occur keeps the transaction one message, as in the service.
         "--delimiter=|", f"--query={message}"],
        directory / "slap.log",
        database.environment,
    )  # fmt: skip
    sample = f"SELECT version, unix_timestamp(sysdate(6)) FROM stock WHERE sku = '{sku}'"
    try:
        answer = database.query(
            f"SELECT 0, sleep(0.5); {sample}; SELECT 0, sleep({seconds}); {sample}",
            seconds=seconds + 60,
        )
        if not slap.runs():
            raise slap.error("ended early")
    finally:
        slap.close()
    (first, start), (last, end) = answer[1], answer[3]
    count = int(last) - int(first)
    return count / (float(end) - float(start)), count
