"""Pictures of the results: grouped horizontal bars, as SVG written by hand, which needs no library
and gives readable diffs."""

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

from .experiments import CONNECTIONS, POLICIES, Table
from .results import Results, medians

# Told apart by people who see colours differently (Okabe and Ito).
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9")

WIDTH = 760
LEFT = 150  # for the groups' names
RIGHT = 90  # for the values
BAR = 13
GAP = 12
HEAD = 64

Groups = Sequence[tuple[str, Sequence[float | None]]]


def bars(title: str, series: Sequence[str], groups: Groups, form: str = "{:.0f}") -> str:
    """One bar for each series in each group, in order; None leaves its place empty."""
    most = max((value for _, values in groups for value in values if value), default=1.0)
    scale = (WIDTH - LEFT - RIGHT) / most
    each = len(series) * BAR + GAP
    height = HEAD + len(groups) * each
    parts = [_text(12, 22, title, size=15, weight="bold"), *_legend(series)]
    for index, (name, values) in enumerate(groups):
        top = HEAD + index * each
        parts.append(_text(LEFT - 8, top + each / 2 - GAP / 2 + 4, name, anchor="end"))
        for place, value in enumerate(values):
            if value is not None:
                y = top + place * BAR
                width = max(value * scale, 0.5)
                parts.append(
                    f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR - 2}"'
                    f' fill="{COLOURS[place]}"/>'
                )
                parts.append(_text(LEFT + width + 5, y + BAR - 4, form.format(value), size=10))
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
        f' viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" role="img">\n'
        f"<title>{escape(title)}</title>\n"
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>\n{body}\n</svg>\n'
    )


def _legend(series: Sequence[str]) -> list[str]:
    parts = []
    x = float(LEFT)
    for name, colour in zip(series, COLOURS, strict=False):
        parts.append(f'<rect x="{x:.0f}" y="36" width="11" height="11" fill="{colour}"/>')
        parts.append(_text(x + 16, 46, name))
        x += 30 + 7.2 * len(name)
    return parts


def _text(
    x: float, y: float, text: str, *, size: int = 12, anchor: str = "start", weight: str = "normal"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"'
        f' font-weight="{weight}">{escape(text)}</text>'
    )


def all_of(results: Results) -> Mapping[str, str]:
    """Every picture by its file's name."""
    pictures = {}
    for title in results.against_direct:
        pictures[direct_name(title)] = _direct(results, title)
    if results.redis:
        pictures[REDIS_NAME] = _redis(results)
    for title, table in results.tables.items():
        pictures[table_name(title)] = _table(title, table)
    return pictures


REDIS_NAME = "performance-redis.svg"


def direct_name(title: str) -> str:
    return f"performance-direct-{title.lower()}.svg"


def table_name(title: str) -> str:
    return f"performance-strategies-{title.lower()}.svg"


def _direct(results: Results, title: str) -> str:
    rounds = results.against_direct[title]
    ours = medians([one.service for one in rounds])
    theirs = medians([one.direct for one in rounds])
    groups = [(_connections(count), (theirs.get(count), ours[count])) for count in ours]
    heading = f"{title}: deductions a second, median of {len(rounds)} rounds"
    return bars(heading, ("directly", "single-sql over HTTP"), groups)


def _redis(results: Results) -> str:
    healthz = medians([one.healthz for one in results.redis])
    policies = [
        medians([one.policies[policy.name] for one in results.redis]) for policy in POLICIES
    ]
    groups = [
        (_connections(count), (healthz[count], *(each[count] for each in policies)))
        for count in healthz
    ]
    series = ("/healthz", *(f"redis-lua, {policy.name}" for policy in POLICIES))
    return bars("redis-lua beside /healthz: answers a second", series, groups)


def _table(title: str, table: Table) -> str:
    # In the order of the table; those that are not to be used say so.
    names = {
        row.strategy.name: row.strategy.name
        + (" (unsafe)" if row.strategy.tier == "unsafe" else "")
        for row in table.rows
    }
    share = {
        (row.strategy.name, row.run.connections): row.run.rate / healthz.rate
        for row in table.rows
        for healthz in table.healthz
        if healthz.connections == row.run.connections
    }
    groups = [
        (text, [share.get((name, count)) for count in CONNECTIONS]) for name, text in names.items()
    ]
    series = [_connections(count) for count in CONNECTIONS]
    return bars(f"Strategies on {title}: answers with 200, /healthz = 1", series, groups, "{:.3f}")


def _connections(count: int) -> str:
    return "1 connection" if count == 1 else f"{count} connections"
