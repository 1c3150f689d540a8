"""Draws a race as an animated SVG: one bar per strategy, filled at the average speed of its run.

usage: python3 -m bench.race RACE.json > docs/images/race.svg

`stocklock race --json RACE.json` writes RACE.json. The part of a bar beyond the stock is what the
strategy oversold. Without animation (print, prefers-reduced-motion) the picture shows the result.
"""

import json
import sys
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from .charts import STYLE, WIDTH, text

LEFT, TRACK = 160, 380  # the start of the bars, and the width of all orders
TOP, ROW, BAR = 84, 34, 16
LOOP, RUN = 14.0, 9.0  # seconds of one repetition, and until the slowest strategy finishes
LEGEND = "Green: units that existed. Red: units that never existed. Grey: orders refused."
# In addition to the style of the charts. The colours are readable on light and on dark pages.
COLOURS = """
.track { fill: #8b949e; opacity: 0.3 }
.sold, .good { fill: #2da44e }
.over, .bad { fill: #e5484d }
.limit { stroke: #8b949e; stroke-dasharray: 3 3 }"""


def bar(name: str, x: float, y: int, width: float, begin: float, end: float) -> str:
    """A bar that grows from `begin` to `end`, in seconds of the loop. Its class is `name` without
    the number of the row."""
    frames = (
        f"0%, {100 * begin / LOOP:.1f}% {{ transform: scaleX(0) }}"
        f" {100 * end / LOOP:.1f}%, 100% {{ transform: scaleX(1) }}"
    )
    motion = f"transform-origin: {x:.1f}px 0; animation: {name} {LOOP}s linear infinite"
    return (
        f'<rect id="{name}" class="{name.rstrip("0123456789")}" x="{x:.1f}" y="{y}"'
        f' width="{width:.1f}" height="{BAR}"/>\n<style>@keyframes {name} {{ {frames} }}\n'
        f"@media (prefers-reduced-motion: no-preference) {{ #{name} {{ {motion} }} }}</style>"
    )


def lane(index: int, row: dict[str, Any], stock: int, orders: int, speed: float) -> str:
    """The bar of one strategy and its result. `speed`: seconds of the loop per second of the
    race."""
    y, x = TOP + index * ROW, LEFT
    sold, unit, end = min(stock, row["sold"]), TRACK / orders, speed * row["wall_seconds"]
    sold_out = end * sold / orders
    parts = [
        text(24, y + 13, row["strategy"]),
        f'<rect class="track" x="{x}" y="{y}" width="{TRACK}" height="{BAR}"/>',
        bar(f"sold{index}", x, y, sold * unit, 0, sold_out),
    ]
    result = row["verdict"].replace("-", " ")
    if row["oversold"] > 0:
        width = row["oversold"] * unit
        parts.append(bar(f"over{index}", x + stock * unit, y, width, sold_out, end))
        result = f"{row['oversold']:,} oversold"
    elif row["drift"] != 0:
        result = f"level wrong by {abs(row['drift']):,}"
    kind = "good" if result == "exact" else "bad"
    parts.append(text(x + TRACK + 12, y + 13, result, kind))
    return "\n".join([*parts, text(WIDTH - 54, y + 13, f"{row['wall_seconds']:.1f} s", "small")])


def picture(race: dict[str, Any]) -> str:
    """The whole SVG."""
    plan, rows = race["plan"]["plan"], [run["row"] for run in race["runs"]]
    stock, orders = plan["stock"], plan["buyers"] * plan["orders"]
    speed = RUN / max(row["wall_seconds"] for row in rows)
    bottom, limit = TOP + len(rows) * ROW, LEFT + stock * TRACK / orders
    title = f"{orders:,} orders for {stock:,} units, with each strategy"
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 32}" role="img">',
        f"<title>{escape(title)}</title>\n<style>\n{STYLE}{COLOURS}\n</style>",
        f'<rect class="back" x=".5" y=".5" rx="8" width="{WIDTH - 1}" height="{bottom + 31}"/>',
        text(24, 36, title, "title"), text(limit, 70, "stock", "tick"),
        *(lane(index, row, stock, orders, speed) for index, row in enumerate(rows)),
        f'<path class="limit" d="M{limit:.1f} 76V{bottom - 8}"/>',
        text(24, bottom + 14, LEGEND, "small"), "</svg>",
    ])  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(picture(json.loads(Path(sys.argv[1]).read_text())))
