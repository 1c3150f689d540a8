"""The service under test: one replica in lab mode, and what the bench asks it beside the load."""

import http.client
import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .process import BenchError, Process, program, run

# Nothing is ever refused for want of stock.
PLENTY = 1_000_000_000


@dataclass(frozen=True)
class Strategy:
    """What the service says of one of its strategies."""

    name: str
    tier: str
    home: str

    @property
    def stock_home(self) -> str:
        """Where its stock is put: in SQL, where it may be there."""
        return "redis" if self.home == "redis" else "sql"


@dataclass(frozen=True)
class Audit:
    """The counter against the ledger, of one SKU."""

    sold: int
    drift: int
    pending: int
    consistent: bool


def version(binary: Path) -> str:
    """What the program says that it is."""
    return run([str(binary), "--version"], seconds=10).strip()


class Service:
    """A replica without nginx: `stocklock lab`, in which a request may name its strategy."""

    def __init__(self, binary: Path, state: Path, port: int, environment: dict[str, str]) -> None:
        self.port = port
        self.base = f"http://127.0.0.1:{port}"
        path = {"PATH": os.environ.get("PATH", "")}
        own = {"LISTEN": f"127.0.0.1:{port}", "REPLICA_ID": "bench", "LOG": "warn"}
        # It ends with the bench, as the servers do.
        command = [program("setpriv", "util-linux"), "--pdeathsig=TERM", "--", str(binary), "lab"]
        self._process = Process(
            "stocklock", command, state / "stocklock.log", environment=path | environment | own
        )
        self._process.wait_until(self._is_ready)

    def _is_ready(self) -> bool:
        try:
            return self._exchange("GET", "/readyz")[0] == 200
        except OSError:
            return False

    def strategies(self) -> list[Strategy]:
        """Those that can be used here and now."""
        answer = self._ask("GET", "/strategies")
        return [
            Strategy(name=one["name"], tier=one["tier"], home=one["home"])
            for one in answer["strategies"]
            if one["available"]
        ]

    def put_stock(self, sku: str, home: str = "sql") -> None:
        """Makes a SKU with plenty in stock."""
        self._ask("PUT", f"/stock/{sku}", {"on_hand": PLENTY, "home": home})

    def audit(self, sku: str) -> Audit:
        """The audit of a SKU that has one warehouse."""
        (one,) = self._ask("GET", f"/stock/{sku}/audit")["warehouses"]
        return Audit(one["sold"], one["drift"], one["pending"], one["consistent"])

    def settled_audit(self, sku: str, seconds: float = 30) -> Audit:
        """The audit once nothing is under way any more: deductions go on though wrk has left, and
        what was sold in Redis arrives in SQL a moment later."""
        deadline = time.monotonic() + seconds
        before = self.audit(sku)
        while time.monotonic() < deadline:
            time.sleep(0.1)
            now = self.audit(sku)
            if now == before and now.pending == 0:
                return now
            before = now
        raise BenchError(f"{sku} is not settled after {seconds:.0f} s: {before}")

    def defects(self) -> int:
        """How many requests it has answered 500 so far."""
        status, text = self._exchange("GET", "/metrics")
        if status != 200 or "\nhttp_responses_total" not in text:
            raise BenchError(f"/metrics was answered {status}, without a count of the answers")
        counted = re.findall(r'^http_responses_total\{status="500"\} (\d+)', text, re.MULTILINE)
        return sum(map(int, counted))

    def stop(self) -> None:
        self._process.stop()

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        status, text = self._exchange(method, path, body)
        if status not in (200, 201):
            raise BenchError(f"{method} {path} was answered {status}: {text}")
        return json.loads(text)

    def _exchange(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            headers = {"Content-Type": "application/json"} if body else {}
            connection.request(method, path, json.dumps(body) if body else None, headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()
