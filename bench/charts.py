"""The charts of the results: horizontal bars on a logarithmic scale, as SVG.

This module writes the SVG itself: it needs no library, and diffs of the charts are readable. Each
chart has its own background, and follows the light or dark preference of the reader.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from .experiments import CONNECTIONS, CROWDED
from .load import Run

# People with colour blindness can tell these colours apart (after Okabe and Ito).
OTHER = "not a strategy"
TIERS = {"safe": "#009e73", "guarded": "#3a8fd0", "unsafe": "#d55e00", OTHER: "#8b949e"}

STYLE = """\
text { font: 12px sans-serif; fill: #1f2328 }
.title { font-size: 15px; font-weight: bold }
.small, .tick, .right { font-size: 10px; fill: #59636e }
.tick { text-anchor: middle }
.right { text-anchor: end }
.back { fill: #ffffff; stroke: #d1d9e0 }
.grid { stroke: #d1d9e0 }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc }
  .small, .tick, .right { fill: #9198a1 }
  .back { fill: #0d1117; stroke: #3d444d }
  .grid { stroke: #3d444d }
}"""

WIDTH, HEAD, BAR, GAP = 760, 78, 13, 12
NAMES, LEFT = 14, 210  # x of the groups' names and of the axis
RIGHT = 60  # room for the value of the longest bar


class Bar(NamedTuple):
    label: str
    tier: str
    rate: float


class Group(NamedTuple):
    name: str
    note: str  # below the name
    bars: Sequence[Bar]


def draw(title: str, groups: Sequence[Group]) -> str:
    """A chart of rates per second by the number of connections."""
    bars = [bar for group in groups for bar in group.bars]
    # The axis starts at a power of ten below all values.
    least = math.floor(math.log10(max(min(bar.rate for bar in bars) * 0.99, 1)))
    most = math.log10(max(bar.rate for bar in bars))
    scale = (WIDTH - LEFT - RIGHT) / max(most - least, 1)
    height = HEAD + len(bars) * BAR + len(groups) * GAP
    parts = [
        f"<title>{escape(title)}</title>\n<style>\n{STYLE}\n</style>",
        f'<rect class="back" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>',
        text(NAMES, 24, title, "title"),
        text(WIDTH - NAMES, 47, "per second, logarithmic scale", "right"),
        text(LEFT - 20, HEAD - 12, "connections", "right"),
    ]
    x = NAMES
    for tier in [tier for tier in TIERS if any(bar.tier == tier for bar in bars)]:
        parts += [_box(x, 37, BAR - 2, tier), text(x + 16, 47, tier)]
        x += 34 + 7 * len(tier)
    for power in range(least, math.floor(most) + 1):
        tick = LEFT + (power - least) * scale
        parts.append(f'<path class="grid" d="M{tick:.1f} {HEAD - 8}V{height - 8}"/>')
        parts.append(text(tick, HEAD - 12, f"{10**power:,}", "tick"))
    y = HEAD
    for group in groups:
        parts += [text(NAMES, y + 10, group.name), text(NAMES, y + 23, group.note, "small")]
        for bar in group.bars:
            width = max(math.log10(max(bar.rate, 1)) - least, 0.01) * scale
            value = f"{bar.rate:,.0f}" if bar.rate >= 10 else f"{bar.rate:.1f}"
            parts.append(text(LEFT - 6, y + 9, bar.label, "right"))
            parts.append(_box(LEFT, y, width, bar.tier))
            parts.append(text(LEFT + width + 5, y + 9, value, "small"))
            y += BAR
        y += GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
    return "\n".join([f'{head} width="{WIDTH}" height="{height}" role="img">', *parts, "</svg>\n"])


def _box(x: float, y: float, width: float, tier: str) -> str:
    size = f'width="{width:.1f}" height="{BAR - 2}"'
    return f'<rect x="{x:.0f}" y="{y:.0f}" {size} fill="{TIERS[tier]}"/>'


def text(x: float, y: float, words: str, style: str = "name") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}">{escape(words)}</text>' if words else ""


def all_charts(results: dict[str, Any]) -> dict[str, str]:
    """All charts, with their file names as keys."""
    found = {}
    for title, table in results["tables"].items():
        found[file_name("strategies", title)] = _table(title, table)
        if drawn := curves(table):
            found[file_name("connections", title)] = _curves(title, drawn)
    return found


def file_name(what: str, title: str) -> str:
    return f"performance-{what}-{title.lower()}.svg"


def curves(table: dict[str, list[Any]]) -> dict[str, list[Run]]:
    """The runs of `/healthz` and of the strategies with the most connections, by name. Empty if
    one of them was not measured."""
    runs = {name: runs for (name, _), runs in runs_by_strategy(table).items()}
    if not all(name in runs for name in CROWDED):
        return {}
    return {"/healthz": table["healthz"]} | {name: runs[name] for name in CROWDED[::-1]}


def _curves(title: str, drawn: dict[str, list[Run]]) -> str:
    groups = []
    for name, runs in drawn.items():
        tier = OTHER if name == "/healthz" else "safe"
        bars = [Bar(f"{run['connections']:,}", tier, run["rate"]) for run in runs]
        groups.append(Group(name, "" if tier == OTHER else tier, bars))
    return draw(f"Rate over connections on {title}: answers with status 200", groups)


def _table(title: str, table: dict[str, list[Any]]) -> str:
    def bars(runs: Sequence[Run], tier: str) -> list[Bar]:
        few = (run for run in runs if run["connections"] in CONNECTIONS)
        return [Bar(str(run["connections"]), tier, run["rate"]) for run in few]

    groups = [Group("/healthz", "", bars(table["healthz"], OTHER))]
    for (name, tier), runs in runs_by_strategy(table).items():
        groups.append(Group(name, tier, bars(runs, tier)))
    return draw(f"Strategies on {title}: answers with status 200", groups)


def runs_by_strategy(table: dict[str, list[Any]]) -> dict[tuple[str, str], list[Run]]:
    """The runs by the name and the tier of the strategy."""
    runs: dict[tuple[str, str], list[Run]] = {}
    for row in table["rows"]:
        strategy = row["strategy"]
        runs.setdefault((strategy["name"], strategy["tier"]), []).append(row["run"])
    return runs
