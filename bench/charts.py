"""The charts of the results: horizontal bars on a logarithmic scale, as SVG.

They are written by hand: no library is needed, and their diffs are readable. Each chart has its own
background, and follows the light or dark preference of the reader.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any
from xml.sax.saxutils import escape

from .experiments import POLICIES
from .load import Run

# One colour per tier, and one for what is not a strategy. From the palette of Okabe and Ito, which
# people with colour blindness can tell apart; each stands out on both backgrounds.
TIERS = {
    "safe": "#009e73",
    "guarded": "#3a8fd0",
    "volatile": "#d99a00",
    "unsafe": "#d55e00",
    "not a strategy": "#8b949e",
}
OTHER = "not a strategy"

STYLE = """\
text { font-family: sans-serif; font-size: 12px; fill: #1f2328 }
.title { font-size: 15px; font-weight: bold }
.note, .count { font-size: 10px; fill: #59636e }
.back { fill: #ffffff; stroke: #d1d9e0 }
.grid { stroke: #d1d9e0 }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc }
  .note, .count { fill: #9198a1 }
  .back { fill: #0d1117; stroke: #3d444d }
  .grid { stroke: #3d444d }
}"""

WIDTH = 760
NAMES = 14  # x of the groups' names
LEFT = 210  # x of the axis
RIGHT = 60  # room for the value of the longest bar
HEAD = 78
BAR = 13
GAP = 12


@dataclass(frozen=True)
class Bar:
    """One measurement."""

    label: str
    tier: str
    value: float


@dataclass(frozen=True)
class Group:
    """Bars that belong together, with a name and a note below it."""

    name: str
    note: str
    bars: Sequence[Bar]


def draw(title: str, groups: Sequence[Group], labels: str = "") -> str:
    """A chart of rates per second. `labels` says what the bars' labels are."""
    bars = [bar for group in groups for bar in group.bars]
    # The axis starts at a power of ten below all values.
    least = math.floor(math.log10(max(min(bar.value for bar in bars) * 0.99, 1)))
    most = math.log10(max(bar.value for bar in bars))
    scale = (WIDTH - LEFT - RIGHT) / max(most - least, 1)

    def x_of(value: float) -> float:
        return LEFT + max(math.log10(max(value, 1e-9)) - least, 0.01) * scale

    height = HEAD + len(bars) * BAR + len(groups) * GAP
    parts = [_text(NAMES, 24, title, "title"), *_legend(bars)]
    parts.append(_text(LEFT - 20, HEAD - 12, labels, "count", "end"))
    for power in range(least, math.floor(most) + 1):
        x = x_of(10.0**power) if power > least else LEFT
        parts.append(f'<path class="grid" d="M{x:.1f} {HEAD - 8}V{height - 8}"/>')
        parts.append(_text(x, HEAD - 12, f"{10**power:,}", "count", "middle"))
    y = HEAD
    for group in groups:
        parts.append(_text(NAMES, y + 10, group.name))
        if group.note:
            parts.append(_text(NAMES, y + 23, group.note, "note"))
        for bar in group.bars:
            end = x_of(bar.value)
            parts.append(_text(LEFT - 6, y + 9, bar.label, "count", "end"))
            parts.append(
                f'<rect x="{LEFT}" y="{y}" width="{end - LEFT:.1f}" height="{BAR - 2}"'
                f' fill="{TIERS[bar.tier]}"/>'
            )
            value = f"{bar.value:,.0f}" if bar.value >= 10 else f"{bar.value:.1f}"
            parts.append(_text(end + 5, y + 9, value, "count"))
            y += BAR
        y += GAP
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
        f' viewBox="0 0 {WIDTH} {height}" role="img">\n'
        f"<title>{escape(title)}</title>\n<style>\n{STYLE}\n</style>\n"
        f'<rect class="back" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>\n'
        f"{body}\n</svg>\n"
    )


def _legend(bars: Sequence[Bar]) -> list[str]:
    parts = []
    x = float(NAMES)
    for tier in TIERS:
        if any(bar.tier == tier for bar in bars):
            parts.append(f'<rect x="{x:.0f}" y="37" width="11" height="11" fill="{TIERS[tier]}"/>')
            parts.append(_text(x + 16, 47, tier))
            x += 34 + 7 * len(tier)
    parts.append(_text(WIDTH - NAMES, 47, "per second, logarithmic scale", "note", "end"))
    return parts


def _text(x: float, y: float, text: str, style: str = "", anchor: str = "start") -> str:
    style = f' class="{style}"' if style else ""
    anchor = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{style}{anchor}>{escape(text)}</text>'


def all_charts(results: dict[str, Any]) -> Mapping[str, str]:
    """Each chart by its file name."""
    charts = {}
    for title, rounds in results["against_direct"].items():
        charts[direct_name(title)] = _direct(title, rounds)
    if results["redis"]:
        charts[REDIS_NAME] = _redis(results["redis"])
    for title, table in results["tables"].items():
        charts[table_name(title)] = _table(title, table)
    return charts


REDIS_NAME = "performance-redis.svg"


def direct_name(title: str) -> str:
    return f"performance-direct-{title.lower()}.svg"


def table_name(title: str) -> str:
    return f"performance-strategies-{title.lower()}.svg"


def _direct(title: str, rounds: Sequence[dict[str, list[Run]]]) -> str:
    service = medians(one["service"] for one in rounds)
    tool = medians(one["direct"] for one in rounds)
    groups = []
    for count, rate in service.items():
        bars = [Bar("load tool", OTHER, tool[count])] if count in tool else []
        groups.append(Group(_connections(count), "", [*bars, Bar("single-sql", "safe", rate)]))
    return draw(f"{title}: deductions, median of {len(rounds)} rounds", groups)


def _redis(rounds: Sequence[dict[str, Any]]) -> str:
    policies = {
        policy.name: medians(one["policies"][policy.name] for one in rounds) for policy in POLICIES
    }
    groups = []
    for count, rate in medians(one["healthz"] for one in rounds).items():
        bars = [Bar(name, "volatile", rates[count]) for name, rates in policies.items()]
        groups.append(Group(_connections(count), "", [Bar("/healthz", OTHER, rate), *bars]))
    return draw("redis-lua by appendfsync policy, and /healthz", groups)


def _table(title: str, table: dict[str, list[Any]]) -> str:
    healthz = [Bar(str(run["connections"]), OTHER, run["rate"]) for run in table["healthz"]]
    groups = [Group("/healthz", "", healthz)]
    for (name, tier), runs in runs_by_strategy(table).items():
        bars = [Bar(str(run["connections"]), tier, run["rate"]) for run in runs]
        groups.append(Group(name, tier, bars))
    return draw(f"Strategies on {title}: answers with status 200", groups, "connections")


def runs_by_strategy(table: dict[str, list[Any]]) -> dict[tuple[str, str], list[Run]]:
    """The runs by the name and the tier of the strategy."""
    runs: dict[tuple[str, str], list[Run]] = {}
    for row in table["rows"]:
        strategy = row["strategy"]
        runs.setdefault((strategy["name"], strategy["tier"]), []).append(row["run"])
    return runs


def medians(rounds: Iterable[Sequence[Run]], key: str = "rate") -> dict[int, float]:
    """The median over the rounds, by the number of connections or clients."""
    values: dict[int, list[float]] = {}
    for runs in rounds:
        for run in runs:
            count = run["connections"] if "connections" in run else run["clients"]
            values.setdefault(count, []).append(run[key])
    return {count: median(each) for count, each in sorted(values.items())}


def _connections(count: int) -> str:
    return "1 connection" if count == 1 else f"{count} connections"
