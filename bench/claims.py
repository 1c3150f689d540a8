"""What must hold of the figures: ratios, each the median of the rounds' own."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

from .experiments import CLAIMED_POLICY, REDIS_CONNECTIONS, RedisRound, Round
from .load import Run

SINGLE_SQL_OF_DIRECT = 0.7
REDIS_LUA_OF_HEALTHZ = 0.25


@dataclass(frozen=True)
class Claim:
    """A ratio that must not be below its target."""

    text: str
    target: float
    rounds: list[float]

    @property
    def ratio(self) -> float:
        return median(self.rounds)

    @property
    def holds(self) -> bool:
        return self.ratio >= self.target

    def line(self) -> str:
        verdict = "holds" if self.holds else "DOES NOT HOLD"
        each = ", ".join(f"{ratio:.2f}" for ratio in self.rounds)
        return (
            f"{self.text}: {self.ratio:.2f}, at least {self.target:.2f} claimed: {verdict}"
            f" (rounds: {each})"
        )


def single_sql(database: str, tool: str, rounds: Sequence[Round]) -> Claim:
    """Best against best: what is asked is how much of the database the service lets through, with
    whichever of the numbers of clients each does best with; the same numbers for both."""
    ratios = []
    for one in rounds:
        clients = {run.clients for run in one.direct}
        service = max(run.rate for run in one.service if run.connections in clients)
        ratios.append(service / max(run.rate for run in one.direct))
    return Claim(f"single-sql on {database} to the best of {tool}", SINGLE_SQL_OF_DIRECT, ratios)


def redis_lua(rounds: Sequence[RedisRound]) -> Claim:
    """With as many connections each, and `/healthz` before and after: a machine that others share
    is seldom the same for two runs in a row."""
    policy = CLAIMED_POLICY.name
    ratios = []
    for one in rounds:
        (sold,) = _rates(one.policies[policy])
        ratios.append(sold / mean(_rates(one.healthz)))
    return Claim(
        f"redis-lua to /healthz, {REDIS_CONNECTIONS} connections, appendfsync {policy}",
        REDIS_LUA_OF_HEALTHZ,
        ratios,
    )


def _rates(runs: Sequence[Run]) -> list[float]:
    return [run.rate for run in runs if run.connections == REDIS_CONNECTIONS]
