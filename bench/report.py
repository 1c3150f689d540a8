"""Writes the page docs/performance.md."""

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from . import charts, claims, locks, sections
from .experiments import CONNECTIONS
from .grid import grid, refused
from .load import Run

HEAD = """\
`make bench` writes this page, and `make bench-locks` its section [Locks](#locks). Do not edit it.
The file [performance.json](performance.json) has all measurements, also latencies."""

READ = """\
Throughput depends on the machine.
So each claim, except two, is a ratio of two figures that were measured side by side.

- **Load.** Unless a section says otherwise, all requests deduct one unit of the same SKU, over HTTP/1.1 with keep-alive. Each request has its own `Idempotency-Key` and writes one movement to the ledger. The service answers after a durable commit.
- **Throughput.** Only answers with status 200 count. All other answers are *refused*.
- **Check.** After each run, the bench compares the ledger with the answers. The ledger must contain each answered sale, and at most one more per connection: the load generator cuts these requests when it stops. Except for *unsafe* strategies, the stock level must agree with the ledger.
- **Limits.** The load generator, the service and the servers share one machine, so each is slower than alone. On a disk with slow commits, the service adds a smaller part of the time."""

DIRECT = """\
The database's own load tool sends the statement of `single-sql`, which it takes from the snapshots of the store's unit tests.
It updates one hot row of the same tables, with the same settings of the server and of the session.
`pgbench` uses prepared statements, like the service. `mariadb-slap` sends text, which the server parses each time.
The tools do not serve HTTP, do not check idempotency and do not build responses.

The tables show medians over the rounds. The claim divides the best rates of each round, and is the median of these ratios.
The replica uses at most `DATABASE_POOL_SIZE` connections to the database for deductions."""

TABLES = """\
Each cell has the answers with status 200 per second. In brackets: the ratio to `/healthz`, then the ratio to `single-sql`, both with the same number of connections.
*Unsafe* strategies oversell on purpose, so their throughput has no value in production. `performance.json` says how much they oversold (`lost`)."""

CURVES = """\
The answers with status 200 per second, of one run each."""

PROFILE = """\
A flame graph shows where the service spends its time. The build `dist` has the line tables that `perf` needs.

```sh
target/dist/stocklock lab &      # on SQLite; DATABASE_URL names another database
curl -X PUT localhost:8080/stock/hot -H 'Content-Type: application/json' -d '{"on_hand": 100000000}'
wrk --threads=1 --connections=256 --duration=20s --script=bench/orders.lua http://127.0.0.1:8080 \\
    -- POST '/stock/deduct?sku=hot&strategy=group-commit' Idempotency-Key "$RANDOM" 1 0 &
perf record --freq=199 --call-graph=dwarf,16384 --pid="$(pgrep --newest stocklock)" -- sleep 10
perf script --no-inline | inferno-collapse-perf | inferno-flamegraph > flame.svg
perf report --no-inline --no-children
```

`cargo install inferno` installs the two programs that draw it. `perf report` shows the same as text."""


def markdown(results: dict[str, Any], measured_locks: dict[str, Any] | None = None) -> str:
    """The whole page, with the section on locks if they were measured."""
    page = [
        "# Performance\n\n" + HEAD,
        "## How to read it\n\n" + READ,
        "## Claims\n\n" + claims.table(results["claims"]),
        "## Machine, programs and settings\n\n" + _environment(results),
    ]
    curves = {title: charts.curves(table) for title, table in results["tables"].items()}
    if any(curves.values()):
        page.append("## Rate over connections\n\n" + CURVES)
        page += [_curves(*each) for each in curves.items() if each[1]]
    if results["parts"]:
        page += ["## group-commit\n\n" + sections.INTRO, *sections.of(results["parts"])]
    if results["against_direct"]:
        page.append("## single-sql and the database's own load tool\n\n" + DIRECT)
        page += [_against_direct(*each) for each in results["against_direct"].items()]
    if results["tables"]:
        page.append("## All strategies\n\n" + TABLES)
        page += [_table(*each) for each in results["tables"].items()]
    if measured_locks:
        page.append("## Locks\n\n" + locks.section(measured_locks))
    page.append("## Where the time goes\n\n" + PROFILE)
    return "\n\n".join(page) + "\n"


def _environment(results: dict[str, Any]) -> str:
    pace = results["pace"]
    settings = ", ".join(f"`{name}={value}`" for name, value in results["settings"].items())
    rows = [
        ("command", f"`{results['command']}`, {results['minutes']:.0f} minutes"),
        *((name, results[name]) for name in ("date", "commit", "service")),
        *results["machine"].items(),
        *((name, _settings(settings)) for name, settings in results["servers"].items()),
        ("load tools", ", ".join(f"{name} {each}" for name, each in results["tools"].items())),
        ("replica", f"one, without nginx, in lab mode, {settings}"),
        ("runs", f"{pace['seconds']} s in each of {pace['rounds']} rounds;"
                 f" {pace['table_seconds']} s for the tables of all strategies"),
    ]  # fmt: skip
    return grid(("", ""), rows)


def _settings(settings: dict[str, str]) -> str:
    others = (f"`{name}={value}`" for name, value in settings.items() if name != "version")
    return ", ".join([settings["version"], *others])


def _against_direct(title: str, rounds: Sequence[dict[str, list[Run]]]) -> str:
    service = medians(one["service"] for one in rounds)
    tool = medians(one["direct"] for one in rounds)
    rows = []
    for count, rate in service.items():
        beside = (f"{tool[count]:.0f}", f"{rate / tool[count]:.2f}") if count in tool else ("", "")
        rows.append((str(count), beside[0], f"{rate:.0f}", beside[1]))
    best = (max(tool.values()), max(service[count] for count in tool))
    rows.append(("best", f"{best[0]:.0f}", f"{best[1]:.0f}", f"{best[1] / best[0]:.2f}"))
    heads = ("connections", "load tool, transactions/s", "`single-sql`, answers/s", "ratio")
    return f"### {title}\n\n{grid(heads, rows)}"


def _curves(title: str, curves: dict[str, list[Run]]) -> str:
    counts = sorted({run["connections"] for runs in curves.values() for run in runs})
    rows = []
    for name, runs in curves.items():
        cells = {run["connections"]: f"{run['rate']:.0f}{refused(run['refused'])}" for run in runs}
        rows.append((f"`{name}`", *(cells.get(count, "") for count in counts)))
    chart = f"![Rate over connections on {title}]({charts.file_name('connections', title)})"
    heads = ("", "1 connection", *(f"{count:,}" for count in counts[1:]))
    return f"### {title}\n\n{grid(heads, rows)}\n\n{chart}"


def _table(title: str, table: dict[str, list[Any]]) -> str:
    counts = [run["connections"] for run in table["healthz"] if run["connections"] in CONNECTIONS]
    healthz = {run["connections"]: run["rate"] for run in table["healthz"]}
    strategies = charts.runs_by_strategy(table)
    base = {run["connections"]: run["rate"] for run in strategies[("single-sql", "safe")]}
    rows = [("`/healthz`", "", *(f"{healthz[count]:.0f}" for count in counts))]
    for (name, tier), runs in strategies.items():
        cells = (_cell(run, healthz, base) for run in runs if run["connections"] in counts)
        rows.append((f"`{name}`", f"*{tier}*" if tier == "unsafe" else tier, *cells))
    heads = ("strategy", "tier", "1 connection", *map(str, counts[1:]))
    chart = f"![Strategies on {title}]({charts.file_name('strategies', title)})"
    return f"### {title}\n\n{grid(heads, rows)}\n\n{chart}"


def _cell(run: Run, healthz: dict[int, float], base: dict[int, float]) -> str:
    rate, count = run["rate"], run["connections"]
    cell = f"{rate:.0f} ({rate / healthz[count]:.3f}; {rate / base[count]:.2f})"
    return cell + refused(run["refused"])


def medians(rounds: Iterable[Sequence[Run]], key: str = "rate") -> dict[int, float]:
    """The median over the rounds, by the number of connections or clients."""
    values: dict[int, list[float]] = {}
    for runs in rounds:
        for run in runs:
            count = run["connections"] if "connections" in run else run["clients"]
            values.setdefault(count, []).append(run[key])
    return {count: median(each) for count, each in sorted(values.items())}
