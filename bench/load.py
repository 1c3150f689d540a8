"""Load on the service: wrk, and whether a run may be counted."""

import json
import secrets
from dataclasses import dataclass, replace
from pathlib import Path

from .process import BenchError, program, run
from .service import Audit, Service, Strategy

SCRIPT = Path(__file__).resolve().parent / "orders.lua"


@dataclass(frozen=True)
class Run:
    """What wrk measured in one run."""

    connections: int
    rate: float  # answers with 200, a second
    refused: float  # other answers, a second: no throughput
    p50_ms: float
    p99_ms: float
    answered: int  # 200s in all
    lost: int = 0  # units that an unsafe strategy sold and the counter did not notice


def healthz(service: Service, connections: int, seconds: float) -> Run:
    """The service's empty handler, asked by the same script. What others are compared with must
    have answered every time: a slow one would flatter them."""
    measured = _wrk(service, "GET", "/healthz", secrets.token_hex(4), connections, seconds)
    if measured.answered == 0 or measured.refused > 0:
        raise BenchError(f"/healthz at {connections} connections is void: {measured}")
    return measured


def deduct(service: Service, strategy: Strategy, connections: int, seconds: float) -> Run:
    """One hot SKU, new and with plenty in stock. The run is void, an error, if the ledger has
    another number of sales than were answered, or if it and the counter disagree."""
    sku = f"bench-{secrets.token_hex(6)}"
    service.put_stock(sku, strategy.stock_home)
    path = f"/stock/deduct?sku={sku}&strategy={strategy.name}"
    measured = _wrk(service, "POST", path, sku, connections, seconds)
    audit = service.settled_audit(sku)
    problem = why_void(measured, audit, promises=strategy.tier != "unsafe")
    if service.defects() > 0:
        problem = "the service answered 500; its log says why"
    if problem:
        raise BenchError(f"{strategy.name} at {connections} connections is void: {problem}")
    return replace(measured, lost=audit.drift)


def why_void(measured: Run, audit: Audit, *, promises: bool) -> str | None:
    """Why a run cannot be counted. Requests that wrk cut at its end, one on each connection at
    most, may have been executed."""
    if measured.answered == 0:
        return "nothing was sold"
    most = measured.answered + measured.connections
    if not measured.answered <= audit.sold <= most:
        return f"{measured.answered} were answered 200, and the ledger has {audit.sold} sales"
    if promises and not (audit.consistent and audit.drift == 0):
        return f"counter and ledger disagree: {audit}"
    return None


def parse(output: str, connections: int) -> Run:
    """What orders.lua has printed."""
    lines = [line for line in output.splitlines() if line.startswith("RESULT ")]
    if len(lines) != 1:
        raise BenchError(f"wrk printed no result:\n{output}")
    result = json.loads(lines[0].removeprefix("RESULT "))
    if result["broken"]:
        raise BenchError(f"{result['broken']} requests got no answer:\n{output}")
    answered = result["requests"] - result["refused"]
    return Run(
        connections=connections,
        rate=answered / result["seconds"],
        refused=result["refused"] / result["seconds"],
        p50_ms=result["p50_ms"],
        p99_ms=result["p99_ms"],
        answered=answered,
    )


def _wrk(
    service: Service, method: str, path: str, nonce: str, connections: int, seconds: float
) -> Run:
    # One thread: it is far from busy with what the service can answer on the same machine.
    command = [program("wrk", "wrk"), "--threads=1", f"--connections={connections}",
               f"--duration={seconds:.0f}s", "--timeout=30s", f"--script={SCRIPT}", service.base,
               "--", method, path, nonce]  # fmt: skip
    return parse(run(command, seconds=seconds + 40), connections)
