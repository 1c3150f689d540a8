"""Load on the service with wrk, and the check that decides whether a run counts."""

import json
import secrets
from pathlib import Path
from typing import Any

from .process import BenchError, program, run
from .service import PLENTY, Audit, Client, Strategy

SCRIPTS = Path(__file__).resolve().parent
# The header of the key, and the one that takes its place in requests without a key.
KEY, NO_KEY = "Idempotency-Key", "X-Benchmark-Key"
NO_AUTHORIZATION = f"X-Benchmark-1: Bearer {'x' * 85}"

# The result of one run, as in performance.json: `connections`; `rate`, the answers with status 200
# per second; `refused`, the other answers per second, which are not throughput; `p50_ms`, `p99_ms`;
# `answered`, all answers with status 200; `others`, all other answers; `lost`, the units that an unsafe strategy sold without
# lowering the level. The runs of the databases' load tools have only `clients` and `rate`.
# In runs of batches, each line counts like a request.
Run = dict[str, Any]


def healthz(service: Client, connections: int, seconds: float) -> Run:
    """Load on the empty handler, with the same script. Each request must be answered 200: a slow
    `/healthz` would make the ratios look better."""
    measured = _orders(service, "GET", "/healthz", connections, seconds, header=NO_KEY)
    if measured["answered"] == 0 or measured["refused"] > 0:
        raise BenchError(f"/healthz at {connections} connections is void: {measured}")
    return measured


def deduct(service: Client, strategy: Strategy, connections: int, seconds: float) -> Run:
    """Deductions of one new SKU with plenty in stock. Raises if the run is void."""
    sku = new_sku(service)
    path, header = f"/stock/deduct?sku={sku}", KEY
    if service.mode == "lab":
        path += f"&strategy={strategy.name}"
    else:
        # As long without a key as with one, so that wrk needs as much time.
        authorization = f"Authorization: Bearer {service.key}" if service.key else NO_AUTHORIZATION
        header = f"{authorization}\r\n{KEY}"
    measured = _orders(service, "POST", path, connections, seconds, header=header)
    audit = check(service, strategy, measured, connections, service.final_audit(sku))
    return measured | {"lost": audit.drift}


def refuse(
    service: Client, strategy: Strategy, header: str, connections: int, seconds: float
) -> Run:
    """Deductions of one SKU without stock. The rate counts the refusals. Each must be a 409
    `insufficient-stock`: the metrics of the service say so."""
    sku = new_sku(service, 0)
    path = f"/stock/deduct?sku={sku}&strategy={strategy.name}"
    statuses, outcomes = ("http_responses_total", "stock_deductions_total")
    label = f'strategy="{strategy.name}",outcome="insufficient-stock"'
    before = (service.counts(statuses), service.counts(outcomes))
    measured = _orders(service, "POST", path, connections, seconds, header=header)
    audit = service.final_audit(sku)
    after = (service.counts(statuses), service.counts(outcomes))
    others = set(_increases(*(count[0] for count in (before, after)))) - OF_A_REFUSAL
    short = _increases(before[1], after[1]).get(label, 0)
    if others or measured["answered"] or audit.sold or short < measured["others"]:
        raise BenchError(
            f"refusals at {connections} connections are void: {measured}, {short} times"
            f" insufficient-stock, other answers: {others}, then {audit}"
        )
    return measured | {"rate": measured["refused"], "refused": 0.0}


# The answers to refused deductions, and to this bench.
OF_A_REFUSAL = {'status="409"', 'status="200"', 'status="201"'}


def _increases(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """The counters that have increased, and by how much."""
    changes = {label: count - before.get(label, 0) for label, count in after.items()}
    return {label: change for label, change in changes.items() if change}


def batches(
    service: Client, strategy: Strategy, lines: int, connections: int, seconds: float
) -> Run:
    """Deductions of one new SKU in requests with this many lines."""
    sku = new_sku(service)
    arguments = [f"/stock/deduct/batch?strategy={strategy.name}", sku, str(lines)]
    measured = _wrk(service, "batches.lua", arguments, connections, seconds)
    check(service, strategy, measured, connections * lines, service.final_audit(sku))
    return measured


def sell_out(
    service: Client, strategy: Strategy, units: int, connections: int, seconds: float
) -> None:
    """Deductions of one new SKU with few units. Raises unless exactly these are sold."""
    sku = new_sku(service, units)
    path = f"/stock/deduct?sku={sku}&strategy={strategy.name}"
    measured = _orders(service, "POST", path, connections, seconds)
    audit = check(service, strategy, measured, connections, service.final_audit(sku))
    if audit.sold != units:
        raise BenchError(f"{audit.sold} of {units} units were sold in {seconds:.0f} s")


def holds(
    service: Client, kind: str, strategy: Strategy, connections: int, seconds: float
) -> Run:
    """Holds or deductions of one new SKU; see shop.lua for `kind`."""
    sku = new_sku(service)
    measured = _wrk(service, "shop.lua", [kind, sku, "1", "0", "1"], connections, seconds)
    audit = service.final_audit(sku)
    # A unit that was sold has been held and confirmed, unless there were no holds.
    operations = audit.sold if kind == "deductions" else audit.held + 2 * audit.sold
    check(service, strategy, measured, connections, audit._replace(sold=operations))
    return measured


class Market:
    """SKUs that several runs buy."""

    def __init__(self, service: Client, count: int) -> None:
        self._service, self._count, self._sold = service, count, 0
        self._prefix = f"market-{secrets.token_hex(6)}-"
        for number in range(1, count + 1):
            service.put_stock(f"{self._prefix}{number}")

    def buy(
        self, strategy: Strategy, exponent: float, connections: int, seconds: float
    ) -> Run:
        """Deductions of all SKUs, in turn or under a Zipf law with this exponent."""
        path = f"/stock/deduct?sku={self._prefix}{{}}&strategy={strategy.name}"
        measured = _orders(self._service, "POST", path, connections, seconds,
                           skus=self._count, exponent=exponent)  # fmt: skip
        return self._check(strategy, measured, connections)

    def order(
        self, strategy: Strategy, exponent: float, lines: int, connections: int, seconds: float
    ) -> Run:
        """Orders with this many lines. The rate counts lines."""
        arguments = ["orders", f"{self._prefix}{{}}", str(self._count), str(exponent), str(lines)]
        measured = _wrk(self._service, "shop.lua", arguments, connections, seconds)
        return self._check(strategy, measured, connections * lines)

    def _check(self, strategy: Strategy, measured: Run, open_units: int) -> Run:
        audit = self._service.final(lambda: self._service.audit_of_all(self._prefix))
        sold = audit.sold - self._sold
        check(self._service, strategy, measured, open_units, audit._replace(sold=sold))
        self._sold = audit.sold
        return measured


def new_sku(service: Client, on_hand: int = PLENTY) -> str:
    sku = f"bench-{secrets.token_hex(6)}"
    service.put_stock(sku, on_hand)
    return sku


def check(
    service: Client, strategy: Strategy, measured: Run, open_units: int, audit: Audit
) -> Audit:
    """Raises if a run is void. `open_units`: see `why_void`."""
    problem = why_void(measured, audit, open_units, unsafe=strategy.tier == "unsafe")
    if service.internal_errors() > 0:
        problem = "the service answered 500; the reason is in its log"
    if problem:
        connections = measured["connections"]
        raise BenchError(f"{strategy.name} at {connections} connections is void: {problem}")
    return audit


def why_void(measured: Run, audit: Audit, open_units: int, *, unsafe: bool) -> str | None:
    """The reason why a run does not count, or None. When wrk stops, it cuts at most one request
    per connection; the service may have executed these, `open_units` in all."""
    answered = measured["answered"]
    if answered == 0:
        return "no deduction was answered 200"
    if not answered <= audit.sold <= answered + open_units:
        return f"{answered} deductions were answered 200, the ledger has {audit.sold}"
    if not unsafe and not (audit.consistent and audit.drift == 0):
        return f"the stock level and the ledger disagree: {audit}"
    return None


def parse(output: str, connections: int) -> Run:
    """Reads the line that the scripts print."""
    lines = [line for line in output.splitlines() if line.startswith("RESULT ")]
    if len(lines) != 1:
        raise BenchError(f"wrk printed no result:\n{output}")
    result = json.loads(lines[0].removeprefix("RESULT "))
    if result["broken"]:
        raise BenchError(f"{result['broken']} requests got no answer:\n{output}")
    answered = result["requests"] - result["refused"]
    seconds = result["seconds"]
    return {"connections": connections, "rate": answered / seconds,
            "refused": result["refused"] / seconds, "p50_ms": result["p50_ms"],
            "p99_ms": result["p99_ms"], "answered": answered,
            "others": result["refused"], "lost": 0}  # fmt: skip


def _orders(
    service: Client, method: str, path: str, connections: int, seconds: float,
    *, header: str = KEY, skus: int = 1, exponent: float = 0,
) -> Run:  # fmt: skip
    """See orders.lua."""
    arguments = [method, path, header, secrets.token_hex(6), str(skus), str(exponent)]
    return _wrk(service, "orders.lua", arguments, connections, seconds)


def _wrk(
    service: Client, script: str, arguments: list[str], connections: int, seconds: float
) -> Run:
    # One thread of wrk sends more than the service can answer on the same machine.
    command = [program("wrk"), "--threads=1", f"--connections={connections}",
               f"--duration={seconds:.0f}s", "--timeout=30s", f"--script={SCRIPTS / script}",
               f"http://{service.address}", "--", *arguments]  # fmt: skip
    return parse(run(command, seconds=seconds + 40), connections)
