"""Compares the lock crate with other libraries, and writes a section of docs/performance.md.

Each run starts one or four processes of the program `bench-locks`, which begin together and use one lock for
a fixed time. The runs of one round follow each other, so a slow phase of the machine affects all.
"""

import json
import os
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from . import claims, machine
from .claims import LEAST, MOST, Claim
from .grid import grid
from .process import ROOT, Process, program, run, say
from .servers import Servers, state_directory

BUILT = ROOT / "target/dist"
FILE = "performance-locks.json"
ROUNDS = 5
# How long a run takes.
SECONDS = 1.5
SECTION = """\
`make bench-locks` compares `stocklock-locks` with rslock, zookeeper-client and a `Mutex` of Tokio, on private servers.
The file [{file}]({file}) has the figures of each round.

- **Uncontended.** One task acquires and releases a lock.
- **Contended.** 64 tasks acquire and release one lock, without work inside, in one process or in four.
- **Hand-off.** 64 tasks hold one lock for 5 ms, and then do something else for 50 ms. At most 200 locks/s are possible.

Each run takes {seconds} s. The libraries take turns in each of the {rounds} rounds. Each ratio is made in one round, and the median over the rounds counts.
The wait is that for the lock. A wait that had not ended counts. *Fair* is `LockManager::write`."""


class LockClaim(NamedTuple):
    """`key` of `side`, divided by that of `base`, which may be measured in another number of processes."""

    scenario: str
    processes: int
    side: str
    base: str
    target: float
    key: str = "rate"
    bound: str = LEAST
    base_processes: int | None = None


REDIS, RSLOCK, FAIR, MUTEX = "ours, Redis", "rslock", "ours, Redis, fair", "tokio Mutex"
ZOOKEEPER, CLIENT = "ours, ZooKeeper", "zookeeper-client"
CLAIMS = (
    LockClaim("Uncontended", 1, REDIS, RSLOCK, 0.95),
    LockClaim("Contended", 1, REDIS, RSLOCK, 1 / 7, "p99_ms", MOST),
    LockClaim("Contended", 4, REDIS, RSLOCK, 1 / 7, "p99_ms", MOST),
    LockClaim("HandOff", 1, REDIS, MUTEX, 0.95),
    LockClaim("HandOff", 4, REDIS, MUTEX, 0.88, base_processes=1),
    LockClaim("Contended", 1, ZOOKEEPER, CLIENT, 1.2),
    LockClaim("Contended", 4, ZOOKEEPER, CLIENT, 1.2),
    LockClaim("HandOff", 1, ZOOKEEPER, CLIENT, 1),
    LockClaim("HandOff", 4, ZOOKEEPER, CLIENT, 1),
)
# The busiest task to the quietest one.
SPREAD = ("Contended", 4, FAIR, 1.5)
NAMES = {"Uncontended": "uncontended", "Contended": "contended", "HandOff": "hand-off"}


class Scenario(NamedTuple):
    """`tasks` of all processes. A task holds the lock for `hold_ms`, and then does something else."""

    processes: tuple[int, ...]
    tasks: int
    hold_ms: int
    think_ms: int


SCENARIOS = {
    "Uncontended": Scenario((1,), 1, 0, 0),
    "Contended": Scenario((1, 4), 64, 0, 0),
    "HandOff": Scenario((1, 4), 64, 5, 50),
}
# A mutex is the ideal, and only within one process; `fair` is in order of arrival.
LIBRARIES = (MUTEX, REDIS, FAIR, RSLOCK, ZOOKEEPER, CLIENT)
WHAT = {"rate": "locks/s", "p99_ms": "p99 of the wait"}


def of(runs: Sequence[dict[str, Any]]) -> list[Claim]:
    """The claims about the runs."""
    rounds = {(one["scenario"], one["processes"], one["library"]): one["rounds"] for one in runs}
    found = []
    for claim in CLAIMS:
        ours = rounds[claim.scenario, claim.processes, claim.side]
        theirs = rounds[claim.scenario, claim.base_processes or claim.processes, claim.base]
        pairs = zip(ours, theirs, strict=True)
        ratios = [one[claim.key] / other[claim.key] for one, other in pairs]
        where = f"{_where(claim.scenario, claim.processes)}, {WHAT[claim.key]}"
        text = f"{where}: {claim.side} to {claim.base}"
        found.append(claims.judge(text, claim.target, ratios, claim.bound))
    scenario, processes, side, target = SPREAD
    ratios = [_spread(one) for one in rounds[scenario, processes, side]]
    text = f"{_where(scenario, processes)}: {side}: busiest task to the quietest"
    return [*found, claims.judge(text, target, ratios, MOST)]


def _where(scenario: str, processes: int) -> str:
    return f"{NAMES[scenario]}, {processes} process{'es' if processes > 1 else ''}"


def _spread(one: dict[str, Any]) -> float:
    return one["busiest"] / one["quietest"] if one["quietest"] else float("inf")


def load(directory: Path) -> dict[str, Any] | None:
    """The measurements in this directory, if there are any."""
    path = directory / FILE
    return json.loads(path.read_text()) if path.exists() else None


def section(results: dict[str, Any]) -> str:
    """The section, without its heading."""
    facts = [("command", f"`{results['command']}`")]
    facts += [(name, results[name]) for name in ("date", "commit", "Redis")]
    facts += results["machine"].items()
    rows = []
    for one in results["runs"]:
        rounds = one["rounds"]
        figures = (
            f"{median(each['rate'] for each in rounds):.0f}",
            f"{median(each['p99_ms'] for each in rounds):.2f}",
            f"{median(map(_spread, rounds)):.2f}",
        )
        rows.append((_where(one["scenario"], one["processes"]), one["library"], *figures))
    heads = ("use", "library", "locks/s", "p99 of the wait, ms", "busiest task to quietest")
    text = SECTION.format(
        file=FILE, seconds=results["seconds"], rounds=len(results["runs"][0]["rounds"])
    )
    parts = (text, claims.table(of(results["runs"])), grid(heads, rows), grid(("", ""), facts))
    return "\n\n".join(parts)


def measure(output: Path) -> list[Claim]:
    """Measures, and writes the file of the section. Returns the claims."""
    facts = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": "make bench-locks",
        "commit": machine.commit(),
        "Redis": run([program("redis-server"), "--version"]).split("v=")[1].split()[0],
        "machine": machine.processor(),
    }
    runs: list[dict[str, Any]] = [
        {"scenario": scenario, "processes": processes, "library": library, "rounds": []}
        for scenario, used in SCENARIOS.items()
        for processes in used.processes
        for library in LIBRARIES[processes > 1 :]
    ]
    with (
        state_directory() as state,
        closing(Servers(BUILT / "testkit", ["redis", "zookeeper"], state)) as servers,
    ):
        addresses = servers.fact("redis", "url"), servers.fact("zookeeper", "connect")
        for number in range(1, ROUNDS + 1):
            say(f"round {number} of {ROUNDS}")
            for one in runs:
                lock = f"bench-{number}-{one['scenario']}-{one['processes']}"
                one["rounds"].append(_measure(one, (*addresses, lock), state))
    measured = {"seconds": SECONDS, "runs": runs}
    (output / FILE).write_text(json.dumps(facts | measured, indent=1) + "\n")
    return of(runs)


def _measure(one: dict[str, Any], names: Sequence[str], state: Path) -> dict[str, float]:
    """Measures with a lock that no other run has used: releases per second, the 99th percentile of the
    waits, and those of the busiest and of the quietest task. A wait that had not ended counts."""
    scenario = SCENARIOS[one["scenario"]]
    tasks = scenario.tasks // one["processes"]
    numbers = tasks, scenario.hold_ms, scenario.think_ms, round(SECONDS * 1000)
    command = [str(BUILT / "bench-locks"), one["library"], *names, *map(str, numbers)]
    with ExitStack() as stack:
        workers = [
            stack.enter_context(closing(Worker(command, state))) for _ in range(one["processes"])
        ]
        for worker in workers:
            if worker.line() != "ready":
                raise worker.error("is not ready")
        for worker in workers:
            worker.go()
        results = [json.loads(worker.line()) for worker in workers]
    counts = [count for result in results for count in result["counts"]]
    waits = sorted(wait for result in results for wait in result["waits"])
    return {
        "rate": sum(counts) / SECONDS,
        "p99_ms": waits[(len(waits) - 1) * 99 // 100] / 1000,
        "busiest": max(counts),
        "quietest": min(counts),
    }


class Worker(Process):
    """A process that uses the lock."""

    def __init__(self, command: Sequence[str], directory: Path) -> None:
        super().__init__(command, directory / "worker.log", os.environ, stdout=subprocess.PIPE)

    def line(self) -> str:
        line = self.child.stdout.readline() if self.child.stdout else ""
        if not line:
            raise self.error("ended early")
        return line.strip()

    def go(self) -> None:
        if self.child.stdin:
            self.child.stdin.write("go\n")
            self.child.stdin.flush()
