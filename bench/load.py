"""Load on the service with wrk, and the check that decides whether a run counts."""

import json
import secrets
from pathlib import Path
from typing import Any

from .process import BenchError, program, run
from .service import Audit, Service, Strategy

SCRIPT = Path(__file__).resolve().parent / "orders.lua"

# The result of one run, as in performance.json: `connections`; `rate`, the answers with status 200
# per second; `refused`, the other answers per second, which are not throughput; `p50_ms`, `p99_ms`;
# `answered`, all answers with status 200; `lost`, the units that an unsafe strategy sold without
# lowering the level. The runs of the databases' load tools have only `clients` and `rate`.
Run = dict[str, Any]


def healthz(service: Service, connections: int, seconds: float) -> Run:
    """Load on the empty handler, with the same script. Each request must be answered 200: a slow
    `/healthz` would make the ratios look better."""
    measured = _wrk(service, "GET", "/healthz", secrets.token_hex(4), connections, seconds)
    if measured["answered"] == 0 or measured["refused"] > 0:
        raise BenchError(f"/healthz at {connections} connections is void: {measured}")
    return measured


def deduct(service: Service, strategy: Strategy, connections: int, seconds: float) -> Run:
    """Deductions of one new SKU with plenty in stock. Raises if the run is void."""
    sku = f"bench-{secrets.token_hex(6)}"
    service.put_stock(sku, strategy)
    path = f"/stock/deduct?sku={sku}&strategy={strategy.name}"
    measured = _wrk(service, "POST", path, sku, connections, seconds)
    audit = service.final_audit(sku)
    problem = why_void(measured, audit, unsafe=strategy.tier == "unsafe")
    if service.internal_errors() > 0:
        problem = "the service answered 500; the reason is in its log"
    if problem:
        raise BenchError(f"{strategy.name} at {connections} connections is void: {problem}")
    return measured | {"lost": audit.drift}


def why_void(measured: Run, audit: Audit, *, unsafe: bool) -> str | None:
    """The reason why a run does not count, or None. When wrk stops, it cuts at most one request
    per connection; the service may have executed these."""
    answered = measured["answered"]
    if answered == 0:
        return "no deduction was answered 200"
    if not answered <= audit.sold <= answered + measured["connections"]:
        return f"{answered} deductions were answered 200, the ledger has {audit.sold}"
    if not unsafe and not (audit.consistent and audit.drift == 0):
        return f"the stock level and the ledger disagree: {audit}"
    return None


def parse(output: str, connections: int) -> Run:
    """Reads the line that orders.lua prints."""
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
            "p99_ms": result["p99_ms"], "answered": answered, "lost": 0}  # fmt: skip


def _wrk(
    service: Service, method: str, path: str, nonce: str, connections: int, seconds: float
) -> Run:
    # One thread of wrk sends more than the service can answer on the same machine.
    command = [program("wrk"), "--threads=1", f"--connections={connections}",
               f"--duration={seconds:.0f}s", "--timeout=30s", f"--script={SCRIPT}",
               f"http://{service.address}", "--", method, path, nonce]  # fmt: skip
    return parse(run(command, seconds=seconds + 40), connections)
