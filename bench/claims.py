"""The claims: ratios that must reach a target. Each is the median over the rounds."""

from collections.abc import Iterator, Sequence
from statistics import mean, median
from typing import Any

from .experiments import CLAIMED_POLICY, REDIS_CONNECTIONS
from .load import Run
from .servers import MariaDb, PostgreSql

Claim = dict[str, Any]
TOOLS = {server.title: server.tool for server in (MariaDb, PostgreSql)}
# The least ratio of this build to another one.
TOLERANCE = 0.9


def of(results: dict[str, Any]) -> list[Claim]:
    """The claims about the rounds in the results."""
    direct = results["against_direct"].items()
    found = [single_sql(title, TOOLS[title], rounds) for title, rounds in direct]
    return found + ([redis_lua(results["redis"])] if results["redis"] else [])


def single_sql(database: str, tool: str, rounds: Sequence[dict[str, list[Run]]]) -> Claim:
    """The best rate of the service divided by the best rate of the load tool. Both may choose the
    best of the same numbers of clients: the ratio says how much of the database's throughput the
    service passes on."""
    ratios = []
    for one in rounds:
        clients = {run["clients"] for run in one["direct"]}
        service = max(run["rate"] for run in one["service"] if run["connections"] in clients)
        ratios.append(service / max(run["rate"] for run in one["direct"]))
    return _claim(f"single-sql on {database} to the best of {tool}", 0.7, ratios)


def redis_lua(rounds: Sequence[dict[str, Any]]) -> Claim:
    """The rate of redis-lua divided by the mean of the two runs of `/healthz` around it, because
    the speed of a shared machine changes from run to run."""
    ratios = []
    for one in rounds:
        ratios.append(_sold(one) / mean(_rates(one["healthz"])))
    text = f"redis-lua to /healthz, {REDIS_CONNECTIONS} connections, appendfsync {CLAIMED_POLICY}"
    return _claim(text, 0.25, ratios)


def line(claim: Claim) -> str:
    verdict = "holds" if claim["holds"] else "DOES NOT HOLD"
    rounds = ", ".join(f"{ratio:.2f}" for ratio in claim["rounds"])
    figures = f"{claim['ratio']:.2f}, at least {claim['target']:.2f} claimed"
    return f"{claim['text']}: {figures}: {verdict} (rounds: {rounds})"


def compare(new: dict[str, Any], old: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """Lines with the rates of this build divided by those of another one, and whether the median of
    the rounds reaches `TOLERANCE`. The rounds of the builds took turns."""
    for title, rounds in new["against_direct"].items():
        others = old["against_direct"][title]
        ratios = [_best(one) / _best(other) for one, other in zip(rounds, others, strict=True)]
        yield _ratio_line(f"single-sql on {title}", ratios)
    if new["redis"]:
        pairs = zip(new["redis"], old["redis"], strict=True)
        ratios = [_sold(one) / _sold(other) for one, other in pairs]
        yield _ratio_line("redis-lua", ratios)


def _ratio_line(text: str, ratios: list[float]) -> tuple[str, bool]:
    ratio = median(ratios)
    verdict = "" if ratio >= TOLERANCE else f", BELOW {TOLERANCE}"
    rounds = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    return f"{text}: new/old {ratio:.3f}{verdict} (rounds: {rounds})", ratio >= TOLERANCE


def _best(one: dict[str, list[Run]]) -> float:
    return max(run["rate"] for run in one["service"])


def _sold(one: dict[str, Any]) -> float:
    (sold,) = _rates(one["policies"][CLAIMED_POLICY])
    return sold


def _rates(runs: Sequence[Run]) -> list[float]:
    return [run["rate"] for run in runs if run["connections"] == REDIS_CONNECTIONS]


def _claim(text: str, target: float, ratios: list[float]) -> Claim:
    ratio = median(ratios)
    return {"text": text, "target": target, "rounds": ratios, "ratio": ratio,
            "holds": ratio >= target}  # fmt: skip
