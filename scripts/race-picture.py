#!/usr/bin/env python3
"""Draws a race as an animated SVG: one bar per strategy, filled at the average speed of its run.

usage: scripts/race-picture.py RACE.json > docs/images/race.svg

`stocklock race --json RACE.json` writes RACE.json. The part of a bar beyond the stock is what the
strategy oversold. Without animation (print, prefers-reduced-motion) the picture shows the result.
"""

import json
import sys
from xml.sax.saxutils import escape

WIDTH = 760
LEFT = 150  # end of the strategies' names
TRACK = 380  # width of all orders
TOP = 84
ROW = 34
BAR = 16
LOOP = 14.0  # seconds of one repetition
RUN = 9.0  # seconds in which the slowest strategy finishes
LEGEND = "Green: units that existed. Red: units that never existed. Grey: orders refused."

# One set of colours for light and one for dark pages; the picture has its own background.
STYLE = """
.card { fill: #ffffff; stroke: #d0d7de }
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.title { font-size: 16px; font-weight: 600 }
.name { font-family: ui-monospace, monospace; text-anchor: end }
.small { font-size: 12px; fill: #59636e }
.track { fill: #eaeef2 }
.sold { fill: #1a7f37 }
.over { fill: #d1242f }
.limit { stroke: #59636e; stroke-dasharray: 3 3 }
.bad { fill: #d1242f; font-weight: 600 }
.good { fill: #1a7f37; font-weight: 600 }
@media (prefers-color-scheme: dark) {
  .card { fill: #151b23; stroke: #3d444d }
  text { fill: #f0f6fc }
  .small { fill: #9198a1 }
  .track { fill: #2a313c }
  .sold { fill: #3fb950 }
  .over { fill: #f85149 }
  .limit { stroke: #9198a1 }
  .bad { fill: #f85149 }
  .good { fill: #3fb950 }
}
"""


def text(x, y, content, kind=""):
    return f'<text x="{x}" y="{y}" class="{kind}">{escape(content)}</text>'


def percent(seconds):
    return f"{100 * seconds / LOOP:.1f}%"


class Picture:
    """Collects the shapes, and the animation of each one."""

    def __init__(self, race):
        self.stock = race["plan"]["stock"]
        self.orders = race["plan"]["buyers"] * race["plan"]["orders"]
        self.rows = race["rows"]
        self.slowest = max(row["wall_seconds"] for row in self.rows)
        self.shapes, self.frames = [], []

    def bar(self, name, kind, units, from_unit, y, begin, end):
        """A bar that grows from `begin` to `end`, in seconds of the loop."""
        x, width = LEFT + 10 + from_unit * TRACK / self.orders, units * TRACK / self.orders
        self.shapes.append(
            f'<rect id="{name}" class="{kind}" x="{x:.1f}" y="{y}"'
            f' width="{width:.1f}" height="{BAR}"/>'
        )
        self.frames.append(
            f"@keyframes {name} {{ 0%, {percent(begin)} {{ transform: scaleX(0) }}"
            f" {percent(end)}, 100% {{ transform: scaleX(1) }} }}\n"
            f"#{name} {{ transform-origin: {x:.1f}px 0;"
            f" animation: {name} {LOOP}s linear infinite }}"
        )

    def lane(self, index, row):
        y = TOP + index * ROW
        end = RUN * row["wall_seconds"] / self.slowest
        sold_out = end * min(self.stock, row["sold"]) / self.orders
        self.shapes.append(text(LEFT, y + 13, row["strategy"], "name"))
        self.shapes.append(
            f'<rect class="track" x="{LEFT + 10}" y="{y}" width="{TRACK}" height="{BAR}"/>'
        )
        self.bar(f"sold{index}", "sold", min(row["sold"], self.stock), 0, y, 0, sold_out)
        if row["oversold"] > 0:
            self.bar(f"over{index}", "over", row["oversold"], self.stock, y, sold_out, end)
            result, kind = f"{row['oversold']:,} oversold", "bad"
        elif row["drift"] != 0:
            result, kind = f"counter wrong by {abs(row['drift']):,}", "bad"
        else:
            result = row["verdict"].replace("-", " ")
            kind = "good" if result == "exact" else "bad"
        seconds = f"{row['wall_seconds']:.1f} s"
        self.shapes.append(
            f'<g id="result{index}">{text(LEFT + TRACK + 22, y + 13, result, kind)}'
            f'{text(WIDTH - 54, y + 13, seconds, "small")}</g>'
        )
        self.frames.append(
            f"@keyframes result{index} {{ 0%, {percent(end)} {{ opacity: 0 }}"
            f" {percent(end + 0.2)}, 100% {{ opacity: 1 }} }}\n"
            f"#result{index} {{ animation: result{index} {LOOP}s linear infinite }}"
        )

    def svg(self):
        for index, row in enumerate(self.rows):
            self.lane(index, row)
        bottom = TOP + len(self.rows) * ROW
        limit = LEFT + 10 + self.stock * TRACK / self.orders
        title = f"{self.orders:,} orders for {self.stock:,} units, with each strategy"
        head = [
            f'<rect class="card" x=".5" y=".5" rx="8" width="{WIDTH - 1}" height="{bottom + 31}"/>',
            text(24, 36, title, "title"),
            f'<text x="{limit:.1f}" y="70" class="small" text-anchor="middle">stock</text>',
            f'<path class="limit" d="M{limit:.1f} 76V{bottom - 8}"/>',
            text(24, bottom + 14, LEGEND, "small"),
        ]
        frames = "\n".join(self.frames)
        motion = f"@media (prefers-reduced-motion: no-preference) {{\n{frames}\n}}"
        body = "\n".join(head[:1] + self.shapes + head[1:])
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 32}"'
            f' role="img">\n<title>{escape(title)}</title>\n<style>{STYLE}{motion}\n</style>\n'
            f"{body}\n</svg>"
        )


if len(sys.argv) != 2:
    sys.exit(__doc__)
with open(sys.argv[1], encoding="utf-8") as file:
    print(Picture(json.load(file)).svg())
