"""The claims: ratios that must reach a target. Each is the median over the rounds."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

from .grid import grid
from .load import Run
from .servers import MariaDb, PostgreSql

Claim = dict[str, Any]
TOOLS = {server.title: server.tool for server in (MariaDb, PostgreSql)}
# The least ratio of this build to another one.
TOLERANCE = 0.95
# The runs of a part that do not depend on the build.
NOT_OURS = ("/healthz", "pgbench")
LEAST, MOST = "at least", "at most"


class PartClaim(NamedTuple):
    """A claim about the runs of a part: `key` of `side`, divided by that of `base` or by a number.
    Some databases have their own target; those without any are left out."""

    part: str
    text: str
    side: str
    base: str | float
    target: float | dict[str, float]
    key: str = "rate"
    bound: str = LEAST


HOT = {"MariaDB": 0.18, "PostgreSQL": 0.30, "SQLite": 0.45}
PART_CLAIMS = (
    PartClaim("hot", "group-commit to single-sql, 256 connections",
              "group-commit", "single-sql", 5),
    PartClaim("hot", "group-commit to /healthz, 256 connections", "group-commit", "/healthz", HOT),
    PartClaim("lone", "p50 of group-commit to that of single-sql, 1 connection",
              "group-commit", "single-sql", 1.15, "p50_ms", MOST),
    PartClaim("connections", "group-commit, 1,024 connections to 256", "1,024", "256", 0.85),
    PartClaim("connections", "group-commit, p99 at 1,024 connections to 150 ms",
              "1,024", 150, 1, "p99_ms", MOST),
    PartClaim("connections", "group-commit, 4,096 connections to 256", "4,096", "256", 0.7),
    PartClaim("connections", "answers to the one of 4,096 connections that got the fewest",
              "each of 4,096", 1, 1, "least"),
    PartClaim("replicas", "two replicas behind nginx to one", "2 replicas", "1 replica", 0.8),
    PartClaim("replicas", "four replicas behind nginx to one", "4 replicas", "1 replica", 0.8),
    PartClaim("batch", "batches of 100 to single requests", "batches", "single requests", 1.5),
    PartClaim("batch", "batches of 100 to pgbench with the same insert",
              "batches", "pgbench", {"PostgreSQL": 0.4}),
    PartClaim("sold-out", "409s without a key to /healthz", "without a key", "/healthz", 0.6),
    PartClaim("sold-out", "409s with a key to /healthz", "with a key", "/healthz", 0.25),
    PartClaim("zipf", "group-commit to single-sql, 1,000 SKUs under a Zipf law",
              "group-commit", "single-sql", 3),
    PartClaim("orders", "lines of orders of three lines to single deductions, 1,000 SKUs",
              "orders", "single deductions", 0.9),
    PartClaim("holds", "holds to deductions, one SKU", "holds", "deductions", 0.6),
    PartClaim("holds", "holds and their confirmations to deductions, one SKU",
              "holds and confirms", "deductions", 0.5),
    PartClaim("cold", "p99 of a cold SKU: while others buy one SKU, to while they buy 256",
              "one SKU", "256 SKUs", 2, "p99_ms", MOST),
    PartClaim("counter", "redis-lua to group-commit, 256 connections",
              "redis-lua", "group-commit", 0.6),
    PartClaim("counter", "p50 of redis-lua to that of single-sql, 1 connection",
              "redis-lua, 1 connection", "single-sql, 1 connection", 1.6, "p50_ms", MOST),
    PartClaim("counter", "409s of redis-lua without a key to /healthz",
              "redis-lua, sold out", "/healthz", 0.3),
)  # fmt: skip


def of(results: dict[str, Any]) -> list[Claim]:
    """The claims about the rounds in the results."""
    direct = results["against_direct"].items()
    found = [single_sql(title, TOOLS[title], rounds) for title, rounds in direct]
    for claim in PART_CLAIMS:
        databases = results["parts"].get(claim.part, {})
        found += [of_part(claim, *each) for each in databases.items() if _applies(claim, each[0])]
    return found


def _applies(claim: PartClaim, database: str) -> bool:
    return not isinstance(claim.target, dict) or database in claim.target


def of_part(claim: PartClaim, database: str, rounds: Sequence[dict[str, Run]]) -> Claim:
    ratios = []
    for one in rounds:
        base = one[claim.base][claim.key] if isinstance(claim.base, str) else claim.base
        ratios.append(one[claim.side][claim.key] / base)
    target = claim.target[database] if isinstance(claim.target, dict) else claim.target
    return judge(f"{database}: {claim.text}", target, ratios, claim.bound)


def single_sql(database: str, tool: str, rounds: Sequence[dict[str, list[Run]]]) -> Claim:
    """The best rate of the service divided by the best rate of the load tool. Both may choose the
    best of the same numbers of clients: the ratio says how much of the database's throughput the
    service passes on."""
    ratios = []
    for one in rounds:
        clients = {run["clients"] for run in one["direct"]}
        service = max(run["rate"] for run in one["service"] if run["connections"] in clients)
        ratios.append(service / max(run["rate"] for run in one["direct"]))
    return judge(f"single-sql on {database} to the best of {tool}", 0.7, ratios)


def table(claims: Sequence[Claim]) -> str:
    rows = []
    for claim in claims:
        rounds = ", ".join(f"{ratio:.2f}" for ratio in claim["rounds"])
        figures = [f"**{claim['ratio']:.2f}**", f"{claim['bound']} {claim['target']:.2f}"]
        rows.append((claim["text"], *figures, "yes" if claim["holds"] else "**no**", rounds))
    return grid(("ratio of", "median", "claimed", "holds", "rounds"), rows)


def line(claim: Claim) -> str:
    verdict = "holds" if claim["holds"] else "DOES NOT HOLD"
    rounds = ", ".join(f"{ratio:.2f}" for ratio in claim["rounds"])
    figures = f"{claim['ratio']:.2f}, {claim['bound']} {claim['target']:.2f} claimed"
    return f"{claim['text']}: {figures}: {verdict} (rounds: {rounds})"


def compare(new: dict[str, Any], old: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """Lines with the rates of this build divided by those of another one, and whether the median of
    the rounds reaches `TOLERANCE`. The rounds of the builds took turns."""
    for title, rounds in new["against_direct"].items():
        others = old["against_direct"][title]
        ratios = [_best(one) / _best(other) for one, other in zip(rounds, others, strict=True)]
        yield _ratio_line(f"single-sql on {title}", ratios)
    for part, databases in new["parts"].items():
        for title, rounds in databases.items():
            others = old["parts"][part][title]
            for side in (side for side in rounds[0] if side not in NOT_OURS):
                pairs = zip(rounds, others, strict=True)
                ratios = [one[side]["rate"] / other[side]["rate"] for one, other in pairs]
                yield _ratio_line(f"{title}, {part}: {side}", ratios)


def _ratio_line(text: str, ratios: list[float]) -> tuple[str, bool]:
    ratio = median(ratios)
    verdict = "" if ratio >= TOLERANCE else f", BELOW {TOLERANCE}"
    rounds = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    return f"{text}: new/old {ratio:.3f}{verdict} (rounds: {rounds})", ratio >= TOLERANCE


def _best(one: dict[str, list[Run]]) -> float:
    return max(run["rate"] for run in one["service"])


def judge(text: str, target: float, ratios: list[float], bound: str = LEAST) -> Claim:
    """The claim that the median of the rounds reaches the target."""
    ratio = median(ratios)
    holds = ratio >= target if bound == LEAST else ratio <= target
    return {"text": text, "bound": bound, "target": target, "rounds": ratios, "ratio": ratio,
            "holds": holds}  # fmt: skip
