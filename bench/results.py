"""All that one bench measured, as it is written to performance.json."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from .claims import Claim
from .direct import Direct
from .experiments import Pace, RedisRound, Round, Table
from .load import Run


@dataclass
class Results:
    """What was measured, and on what."""

    date: str
    command: str
    commit: str
    service: str
    machine: dict[str, str]
    tools: dict[str, str]
    pace: Pace
    # Of the service, as environment variables.
    settings: dict[str, str]
    minutes: float = 0.0
    # Of the servers, by title.
    servers: dict[str, dict[str, str]] = field(default_factory=dict)
    # By the database's title.
    against_direct: dict[str, list[Round]] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)
    # The database behind it, and the rounds.
    redis_ledger: str = ""
    redis: list[RedisRound] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        whole = asdict(self)
        whole["claims"] = [
            asdict(claim) | {"ratio": claim.ratio, "holds": claim.holds} for claim in self.claims
        ]
        return whole


def medians(rounds: Sequence[Sequence[Run] | Sequence[Direct]]) -> dict[int, float]:
    """The median rate of the rounds, for each number of connections or clients."""
    return _medians(
        (run.connections if isinstance(run, Run) else run.clients, run.rate)
        for runs in rounds
        for run in runs
    )


def refused(rounds: Sequence[Sequence[Run]]) -> dict[int, float]:
    """The median of what was refused a second, for each number of connections."""
    return _medians((run.connections, run.refused) for runs in rounds for run in runs)


def _medians(counted: Iterable[tuple[int, float]]) -> dict[int, float]:
    rates: dict[int, list[float]] = {}
    for count, rate in counted:
        rates.setdefault(count, []).append(rate)
    return {count: median(each) for count, each in sorted(rates.items())}
