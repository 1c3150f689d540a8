"""The page's sections about `group-commit` and `redis-lua`: what each part compares, and its medians."""

from collections.abc import Sequence
from statistics import median

from .grid import grid, refused
from .load import Run
from .parts import BATCH_CLIENTS, BATCHES, EXPONENT, LINES, MANY, ORDER_LINES, PARTS, SKUS

INTRO = """\
While one commit of a SKU is in flight, `group-commit` gathers the next deductions of that SKU, and commits them together.
Each cell has the median over the rounds of the answers per second, in brackets the medians of the 50th and the 99th percentile of the latency in ms.
The runs of a row took turns."""

# Title and text of each part.
TEXTS = {
    "hot": ("256 connections, one SKU", ""),
    "lone": ("One connection", "No request waits for another. `group-commit` then sends the"
             " statement of `single-sql`."),
    "connections": (
        "More connections, one SKU",
        "With `MAX_CONNECTIONS` and `MAX_IN_FLIGHT` of the table above. In the last column another"
        " load generator, which is slower, counts the answers of each connection.",
    ),
    "replicas": (
        "Replicas behind nginx, one SKU",
        f"nginx has the configuration of `deploy/`, without its access log. {MANY} connections. All"
        " programs share the cores of one machine, so each replica has one worker thread"
        " (`TOKIO_WORKER_THREADS=1`), even if it is the only one."
        " After each run, as many connections sell another SKU out, and exactly its units must be"
        " sold.",
    ),
    "batch": (
        "`POST /stock/deduct/batch`",
        f"{BATCHES} connections send {LINES} lines per request, each with its own key. The rates"
        f" count lines, the latencies are those of requests. `pgbench` has {BATCH_CLIENTS} clients."
        f" Each of its transactions lowers the level by {LINES} and inserts {LINES} movements.",
    ),
    "sold-out": (
        "A SKU that is sold out",
        f"{MANY} connections. The rates count answers with status 409 `insufficient-stock`, and"
        " every answer was one.",
    ),
    "zipf": (
        f"{SKUS:,} SKUs under a Zipf law",
        f"{MANY} connections. Each request buys a random SKU: number k in proportion to"
        f" 1/k^{EXPONENT:.0f}. The sequence is the same in each run.",
    ),
    "orders": (
        f"Orders of {ORDER_LINES} lines under a Zipf law",
        f"{MANY} connections. Each line has a random SKU, of {SKUS:,} under the same law. The rates"
        " count lines, the latencies are those of requests.",
    ),
    "holds": (
        "Holds of one SKU",
        f"{MANY} connections. In the last column each hold is confirmed as soon as it is answered,"
        " and both count.",
    ),
    "cold": (
        "A cold SKU beside hot ones",
        f"One connection buys a SKU while {MANY} others buy one other SKU, or as many SKUs in"
        " turn. The figures are of the one connection.",
    ),
    "shards": (
        "Two deployments, which divide the SKUs",
        f"{MANY} connections buy one SKU of one deployment, or half of them buy one SKU of each of two."
        " Each deployment has a database of its own, on servers the database server, too, and one worker"
        " thread. All programs share the cores of one machine. The rates of both are added.",
    ),
    "settings": (
        "API keys and events",
        f"{MANY} connections buy one SKU of `stocklock serve`: without keys, with an API key, and with events."
        " Each deployment has a database and one worker thread of its own.",
    ),
    "counter": (
        "A counter in Redis in front of `group-commit`",
        "`redis-lua` asks a counter in Redis, and then sells like `group-commit`. It has"
        f" {MANY} connections, or one. *Sold out*: requests without a key for a SKU without stock;"
        " the rate counts answers with status 409 `insufficient-stock`. Every answer was one, and"
        " Redis was asked for each.",
    ),
}  # fmt: skip


def of(parts: dict[str, dict[str, list[dict[str, Run]]]]) -> list[str]:
    """The sections of the parts that were measured."""
    return [_section(name, parts[name]) for name in PARTS if name in parts]


def _section(name: str, databases: dict[str, list[dict[str, Run]]]) -> str:
    title, text = TEXTS[name]
    sides = list(dict.fromkeys(side for rounds in databases.values() for side in rounds[0]))
    rows = [
        (database, *(_cell([one[side] for one in rounds if side in one]) for side in sides))
        for database, rounds in databases.items()
    ]
    return "\n\n".join(filter(None, (f"### {title}", text, grid(("database", *sides), rows))))


def _cell(runs: Sequence[Run]) -> str:
    """The medians of a side. Empty for a database that does not have it."""
    if not runs:
        return ""
    middle: dict[str, float] = {key: median(run[key] for run in runs) for key in _figures(runs[0])}
    cell = f"{middle['rate']:.0f}"
    if "p99_ms" in middle:
        cell += f" ({_time(middle['p50_ms'])} / {_time(middle['p99_ms'])})"
    if "least" in middle:
        cell += f", at least {middle['least']:.0f} each"
    return cell + refused(middle.get("refused", 0))


def _time(milliseconds: float) -> str:
    return f"{milliseconds:.2f}" if milliseconds < 10 else f"{milliseconds:.0f}"


def _figures(run: Run) -> list[str]:
    return [key for key in ("rate", "refused", "p50_ms", "p99_ms", "least") if key in run]
