"""Compares the lock crate with other libraries, and writes a section of docs/performance.md.

The program `bench-locks` measures. This module adds the facts, the claims and the tables.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from . import claims, machine
from .claims import LEAST, MOST, Claim
from .grid import grid
from .process import ROOT, program, run

BUILT = ROOT / "target/dist"
FILE = "performance-locks.json"
# All rounds take about four minutes.
LIMIT_SECONDS = 1200
SECTION = """\
`make bench-locks` compares `stocklock-locks` with rslock, zookeeper-client and a `Mutex` of Tokio, on private servers.
The file [{file}]({file}) has the figures of each round.

- **Uncontended.** One task acquires and releases a lock.
- **Contended.** 64 tasks acquire and release one lock, without work inside, in one process or in four.
- **Hand-off.** 64 tasks hold one lock for 5 ms, and then do something else for 50 ms. At most 200 locks/s are possible.

Each run takes {seconds} s. The libraries take turns in each of the {rounds} rounds. Each ratio is made in one round, and the median over the rounds counts.
The wait is that for the lock. A wait that had not ended counts. *Fair* is `LockManager::write`."""


class LockClaim(NamedTuple):
    """`key` of `side`, divided by that of `base` or by a number. `base` may be measured in another
    number of processes."""

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
    command = [str(BUILT / "bench-locks"), str(BUILT / "testkit")]
    measured = json.loads(run(command, seconds=LIMIT_SECONDS))
    (output / FILE).write_text(json.dumps(facts | measured, indent=1) + "\n")
    return of(measured["runs"])
