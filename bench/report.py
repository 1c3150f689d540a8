"""docs/performance.md, written whole."""

import statistics
from collections.abc import Iterable, Sequence

from . import charts
from .experiments import CONNECTIONS, POLICIES, Table, TableRow
from .results import Results, medians, refused

READ = """\
A bare number of a machine says little about another one, so what is claimed are ratios, measured side by side.
One hot SKU, HTTP/1.1 with keep-alive, every request with an `Idempotency-Key` of its own and one movement in the ledger, answered after a durable commit.
Only answers with 200 count; all others are called refused, and are no throughput.
After each run the ledger had the sales that were answered (and at most one more for each connection, whose answer came after the end), and except for the strategies called unsafe the counter agreed with it.
The load generator, the service and the servers share the machine, so each has less of it than it would have alone.
With another disk the ratios change: where a commit waits long for it, the service has less to add."""

DIRECT = """\
What `single-sql` sends (held in the snapshots of `src/store`) is repeated by the database's own load tool, on a hot row in the same tables, with the same settings of server and session.
`pgbench` prepares them, as the service does; `mariadb-slap` can only send text, which the server parses each time.
Both have no HTTP to speak, no idempotency to decide and no outcome to answer."""

REDIS = """\
The counter lives in Redis, and every replica writes the ledger in {ledger} a moment later; that work competes for the same machine.
`everysec` may lose the last second of sales in a crash, `always` none, `off` keeps no file at all.
Once SQL has a sale, Redis keeps {kept:.0f} bytes of it (median of the runs; the key is remembered)."""

TABLES = """\
Each cell: answers with 200 a second (as a part of `/healthz`; of `single-sql`), both with as many connections and in the same pass.
Redis has `appendfsync always`, as a lock needs it.
*Unsafe* strategies lose stock, on purpose: their speed is of no use.
How much they lost meanwhile, and the latencies, are in `performance.json`."""


def markdown(results: Results) -> str:
    """The whole page."""
    sections = [
        "# Performance\n\nWritten by `make bench`; not to be edited by hand."
        " The same figures, and more, are in [performance.json](performance.json).",
        "## How to read it\n\n" + READ,
        "## Claims\n\n" + _claims(results),
        "## Measured on\n\n" + _measured_on(results),
    ]
    if results.against_direct:
        sections.append("## The same statements without the service\n\n" + DIRECT)
        sections += [_against_direct(results, title) for title in results.against_direct]
    if results.redis:
        sections.append("## Stock in Redis\n\n" + _redis(results))
    sections.append("## Every strategy\n\n" + TABLES)
    sections += [_table(title, table) for title, table in results.tables.items()]
    return "\n\n".join(sections) + "\n"


def _claims(results: Results) -> str:
    rows = [
        (
            claim.text,
            f"**{claim.ratio:.2f}**",
            f"{claim.target:.2f}",
            "yes" if claim.holds else "**no**",
            ", ".join(f"{ratio:.2f}" for ratio in claim.rounds),
        )
        for claim in results.claims
    ]
    heads = ("ratio of", "median", "at least", "holds", "rounds")
    return _grid(heads, rows)


def _measured_on(results: Results) -> str:
    rows = [("command", f"`{results.command}`, {results.minutes:.0f} minutes")]
    rows += [("date", results.date), ("commit", results.commit), ("service", results.service)]
    rows += list(results.machine.items())
    rows += [(name, _settings(settings)) for name, settings in results.servers.items()]
    rows.append(("load", ", ".join(f"{name} {version}" for name, version in results.tools.items())))
    settings = (f"`{name}={value}`" for name, value in results.settings.items())
    rows.append(("replica", "one, without nginx, in lab mode, " + ", ".join(settings)))
    pace = results.pace
    rows.append(
        ("runs", f"{pace.seconds:.0f} s in each of {pace.rounds} rounds,"
                 f" {pace.table_seconds:.0f} s for the tables of strategies")
    )  # fmt: skip
    return _grid(("", ""), rows)


def _settings(settings: dict[str, str]) -> str:
    others = (f"`{name}={value}`" for name, value in settings.items() if name != "version")
    return ", ".join([settings["version"], *others])


def _against_direct(results: Results, title: str) -> str:
    rounds = results.against_direct[title]
    ours = medians([one.service for one in rounds])
    theirs = medians([one.direct for one in rounds])
    rows = [
        (
            str(count),
            f"{theirs[count]:.0f}" if count in theirs else "",
            f"{rate:.0f}",
            f"{rate / theirs[count]:.2f}" if count in theirs else "",
        )
        for count, rate in ours.items()
    ]
    best = (max(theirs.values()), max(ours[count] for count in theirs))
    rows.append(("best", f"{best[0]:.0f}", f"{best[1]:.0f}", f"{best[1] / best[0]:.2f}"))
    heads = ("connections", "directly, transactions/s", "`single-sql`, 200s/s", "ratio")
    note = (
        f"Medians of {len(rounds)} rounds. The claim is the median of each round's own best against"
        f" best. The replica uses at most {results.settings['DATABASE_POOL_SIZE']} of its"
        " connections to the database, whatever its clients have."
    )
    picture = f"![{title} directly and over HTTP]({charts.direct_name(title)})"
    return f"### {title}\n\n{_grid(heads, rows)}\n\n{note}\n\n{picture}"


def _redis(results: Results) -> str:
    healthz = medians([one.healthz for one in results.redis])
    policies = []
    for policy in POLICIES:
        runs = [one.policies[policy.name] for one in results.redis]
        policies.append((medians(runs), refused(runs)))
    rows = [
        (
            str(count),
            f"{rate:.0f}",
            *(
                f"{sold[count]:.0f} ({sold[count] / rate:.2f}){_refused(others[count])}"
                for sold, others in policies
            ),
        )
        for count, rate in healthz.items()
    ]
    heads = ("connections", "`/healthz`", *(f"`redis-lua`, {policy.name}" for policy in POLICIES))
    kept = statistics.median(each for one in results.redis for each in one.kept_bytes)
    text = REDIS.format(ledger=results.redis_ledger, kept=kept)
    picture = f"![redis-lua beside /healthz]({charts.REDIS_NAME})"
    return f"{text}\n\n{_grid(heads, rows)}\n\n{picture}"


def _table(title: str, table: Table) -> str:
    healthz = {run.connections: run.rate for run in table.healthz}
    base = {
        row.run.connections: row.run.rate for row in table.rows if row.strategy.name == "single-sql"
    }
    by_name: dict[str, list[TableRow]] = {}
    for row in table.rows:
        by_name.setdefault(row.strategy.name, []).append(row)
    rows: list[tuple[str, ...]] = [
        ("`/healthz`", "", *(f"{healthz[count]:.0f}" for count in CONNECTIONS))
    ]
    for name, each in by_name.items():
        tier = each[0].strategy.tier
        cells = (_cell(row, healthz, base) for row in each)
        rows.append((f"`{name}`", f"*{tier}*" if tier == "unsafe" else tier, *cells))
    heads = ("strategy", "tier", *(_connections(count) for count in CONNECTIONS))
    picture = f"![Strategies on {title}]({charts.table_name(title)})"
    return f"### {title}\n\n{_grid(heads, rows)}\n\n{picture}"


def _cell(row: TableRow, healthz: dict[int, float], base: dict[int, float]) -> str:
    run = row.run
    count = run.connections
    cell = f"{run.rate:.0f} ({run.rate / healthz[count]:.3f}; {run.rate / base[count]:.2f})"
    return cell + _refused(run.refused)


def _refused(rate: float) -> str:
    return f", refused {rate:.0f}" if rate >= 0.5 else ""


def _connections(count: int) -> str:
    return "1 connection" if count == 1 else str(count)


def _grid(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)
