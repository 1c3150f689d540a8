"""The service under test: replicas in lab mode."""

import json
import os
import re
import time
from collections import namedtuple
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from .process import BenchError, Process, program

# On-hand units of a new SKU. No run can sell it out.
PLENTY = 1_000_000_000
Strategy = namedtuple("Strategy", "name tier")
Audit = namedtuple("Audit", "sold held drift consistent")


class Client:
    """Asks a replica, or nginx in front of replicas."""

    # `lab`, in which a request can name its strategy, or `serve`.
    mode = "lab"
    # The API key, if the replica wants one.
    key: str | None = None

    def __init__(self, address: str) -> None:
        self.address = address

    def await_ready(self, process: Process) -> None:
        """Waits until `process` answers. If it does not, closes it and raises."""
        deadline = time.monotonic() + 60
        while not self._is_ready():
            if not process.runs() or time.monotonic() > deadline:
                process.close()
                raise process.error("is not ready after 60 s, or has ended")
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        try:
            return self._exchange("GET", "/readyz")[0] == 200
        except OSError:
            return False

    def strategies(self) -> list[Strategy]:
        """The strategies that are available."""
        listed = self._ask("GET", "/strategies")["strategies"]
        available = (one for one in listed if one["available"])
        return [Strategy(*(one[name] for name in Strategy._fields)) for one in available]

    def strategy(self, name: str) -> Strategy:
        for strategy in self.strategies():
            if strategy.name == name:
                return strategy
        raise BenchError(f"the service does not offer {name}")

    def put_stock(self, sku: str, on_hand: int = PLENTY) -> None:
        """Creates a SKU."""
        self._ask("PUT", f"/stock/{sku}", {"on_hand": on_hand})

    def audit(self, sku: str) -> Audit:
        """The audit of a SKU that has one warehouse."""
        (one,) = self._ask("GET", f"/stock/{sku}/audit")["warehouses"]
        return Audit(*(one[name] for name in Audit._fields))

    def audit_of_all(self, prefix: str) -> Audit:
        """The sums over all SKUs whose names begin with `prefix`."""
        status, text = self._exchange("GET", "/audit")
        if status != 200:
            raise BenchError(f"GET /audit answered {status}: {text}")
        skus = [one for one in map(json.loads, text.splitlines()) if one["sku"].startswith(prefix)]
        found = [one for sku in skus for one in sku["warehouses"]]
        consistent = not any("error" in sku for sku in skus)
        return Audit(
            sold=sum(one["sold"] for one in found), held=sum(one["held"] for one in found),
            drift=sum(abs(one["drift"]) for one in found),
            consistent=consistent and all(one["consistent"] for one in found),
        )  # fmt: skip

    def final_audit(self, sku: str) -> Audit:
        return self.final(lambda: self.audit(sku))

    def final(self, audit: Callable[[], Audit], seconds: float = 30) -> Audit:
        """The audit after all deductions are finished: when wrk disconnects, some are still
        running."""
        deadline = time.monotonic() + seconds
        before = audit()
        while time.monotonic() < deadline:
            time.sleep(0.1)
            now = audit()
            if now == before:
                return now
            before = now
        raise BenchError(f"the audit still changes after {seconds:.0f} s: {before}")

    def internal_errors(self) -> int:
        """The number of responses with status 500 since the start."""
        return self.counts("http_responses_total").get('status="500"', 0)

    def counts(self, metric: str) -> dict[str, int]:
        """The values of a metric by its labels, as in `/metrics`."""
        status, text = self._exchange("GET", "/metrics")
        if status != 200 or "\nhttp_responses_total" not in text:
            raise BenchError(f"/metrics answered {status}, without http_responses_total")
        found = re.findall(rf"^{metric}\{{(.*)\}} (\d+)", text, re.MULTILINE)
        return {labels: int(count) for labels, count in found}

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        status, text = self._exchange(method, path, body)
        if status not in (200, 201):
            raise BenchError(f"{method} {path} answered {status}: {text}")
        return json.loads(text)

    def _exchange(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        with closing(HTTPConnection(self.address, timeout=30)) as connection:
            headers = {"Content-Type": "application/json"} if body else {}
            if self.key:
                headers["Authorization"] = f"Bearer {self.key}"
            connection.request(method, path, json.dumps(body) if body else None, headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()


class Service(Client, Process):
    """A replica without nginx."""

    def __init__(
        self, binary: Path, log: Path, port: int, environment: dict[str, str],
        mode: str = "lab", key: str | None = None,
    ) -> None:  # fmt: skip
        Client.__init__(self, f"127.0.0.1:{port}")
        self.mode, self.key = mode, key
        own = {"PATH": os.environ.get("PATH", ""), "LISTEN": self.address, "REPLICA_ID": "bench",
               "LOG": "warn"}  # fmt: skip
        # setpriv: the replica ends even if the bench is killed.
        command = [program("setpriv"), "--pdeathsig=TERM", "--", str(binary), mode]
        Process.__init__(self, command, log, environment | own)
        self.await_ready(self)
