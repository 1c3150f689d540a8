"""Measures group-commit, single-sql, redis-lua and /healthz; the statement of single-sql, sent by
pgbench and mariadb-slap; replicas behind nginx; and each strategy on each database.

Only answers with status 200 count. After each run the bench compares the ledger with the answers,
and fails if they disagree. All servers are private, listen on loopback, and are stopped at the end.
"""

import argparse
import json
import shlex
import signal
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from . import charts, claims, locks, machine, report
from .bench import DATABASES, SERVERS, check, measure
from .experiments import CONNECTIONS, CROWDS
from .parts import PARTS
from .process import ROOT, BenchError, run, say
from .servers import state_directory

BUILT = ROOT / "target/dist"
BUILT_HERE = BUILT / "stocklock"

# `--part`; with `--against`, only the first two by default.
ALL_PARTS = ("direct", *PARTS, "strategies")
COMPARED = ("direct", "hot")

EXAMPLES = """\
examples:
  make bench                                   everything, about 45 minutes, into docs/
  make bench BENCH='--quick'                   a first look, about 6 minutes, into target/bench
  make bench BENCH='--only postgres --part hot --part batch'      two parts on one database
  make bench BENCH_BINARY=/path/stocklock      measures another build, compiles only testkit
  make bench BENCH='--against /path/stocklock --rounds 9'    compares the speed of two builds
  python3 -m bench --render                    writes the page and charts from performance.json

exit codes: 0 all claims hold; 1 a claim does not hold, or a run failed; 2 wrong command line
"""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python3 -m bench", description=__doc__, epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    file: dict[str, Any] = {"type": lambda text: Path(text).resolve(), "metavar": "PATH"}
    number: dict[str, Any] = {"type": int, "metavar": "N"}

    def add(option: str, text: str, default: Any = None, **kind: Any) -> None:
        parser.add_argument(option, default=default, help=text, **kind)

    add("--binary", "the service [target/dist/stocklock]", BUILT_HERE, **file)
    add("--against", "compare the speed with that of another build; write no files", **file)
    add("--testkit", "starts the servers [target/dist/testkit]", BUILT / "testkit", **file)
    add("--only", "measure only this database; may be repeated", action="append", choices=DATABASES)
    add("--part", "measure only this; may be repeated", action="append", choices=ALL_PARTS)
    add("--quick", "one round, and runs of 1 s: not precise", False, action="store_true")
    add("--rounds", "number of interleaved rounds, at most 20 [5]", **number, choices=range(1, 21))
    add("--output", "for performance.* [docs; target/bench if the bench is limited]", **file)
    add("--locks", "measure only the lock crate, and write its section", False, action="store_true")
    add("--render", "measure nothing; write page and charts again", False, action="store_true")
    add("--data", "for the servers; must be on a disk [/var/tmp]", Path("/var/tmp"), **file)
    add("--port", "the first of 8, with --against of 16 [19180]", 19180, **number)
    plan = parser.parse_args(arguments)

    # The options that change what is measured.
    plan.limits = [f"--only {name}" for name in plan.only or ()]
    plan.limits += [f"--part {name}" for name in plan.part or ()] + ["--quick"] * plan.quick
    plan.limits += [f"--rounds {plan.rounds}"] if plan.rounds else []
    plan.parts = plan.part or (COMPARED if plan.against else ALL_PARTS)
    plan.databases = [name for name in DATABASES if name in (plan.only or DATABASES)]
    rounds, seconds, of_table = (1, 1, 1) if plan.quick else (5, 3, 2)
    # Of the tables of all strategies.
    counts = (1, 256) if plan.quick else (*CONNECTIONS, *CROWDS)
    plan.pace = {"rounds": plan.rounds or rounds, "seconds": seconds, "table_seconds": of_table,
                 "connections": counts}  # fmt: skip
    # One SKU gets half of MAX_IN_FLIGHT.
    crowd = str(2 * CROWDS[-1])
    plan.settings = {"DATABASE_POOL_SIZE": "16", "MAX_CONNECTIONS": crowd, "MAX_IN_FLIGHT": crowd}
    return plan


def main(arguments: Sequence[str] | None = None) -> int:
    plan = parse(arguments)
    # SIGTERM must stop the servers like Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if plan.render or plan.locks:
            output = plan.output or ROOT / "docs"
            found = locks.measure(output) if plan.locks else []
            _write(output, json.loads((output / "performance.json").read_text()))
            return _print(found)
        return _bench(plan)
    except BenchError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("interrupted; all processes are stopped")
        return 130


def _bench(plan: argparse.Namespace) -> int:
    check(plan)
    start = time.monotonic()
    with state_directory(plan.data) as state:
        binaries = [plan.binary, plan.against] if plan.against else [plan.binary]
        builds = [(binary, _empty_results(plan, binary, state)) for binary in binaries]
        measure(plan, state, builds)
    if plan.against:
        lines = list(claims.compare(*(results for _, results in builds)))
        print("\n".join(line for line, _ in lines))
        return 0 if all(reached for _, reached in lines) else 1
    ((_, results),) = builds
    results["minutes"] = (time.monotonic() - start) / 60
    results["claims"] = claims.of(results)
    output = plan.output or ROOT / ("target/bench" if plan.limits else "docs")
    output.mkdir(parents=True, exist_ok=True)
    (output / "performance.json").write_text(json.dumps(results, indent=1) + "\n")
    _write(output, results)
    print(f"pool size: {plan.settings['DATABASE_POOL_SIZE']}; {results['minutes']:.0f} minutes")
    return _print(results["claims"])


def _print(found: list[claims.Claim]) -> int:
    """Prints the claims. Returns the exit code."""
    for claim in found:
        print(claims.line(claim))
    return 0 if all(claim["holds"] for claim in found) else 1


def _empty_results(plan: argparse.Namespace, binary: Path, state: Path) -> dict[str, Any]:
    """performance.json without measurements. Its command has no paths of this machine."""
    limits = f" BENCH={shlex.quote(' '.join(plan.limits))}" if plan.limits else ""
    facts = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": f"make bench{limits}",
        "commit": machine.commit() if binary == BUILT_HERE else "unknown",
        "service": run([str(binary), "--version"]).strip(),
        "machine": machine.describe(state),
        "tools": machine.tools(),
        "pace": plan.pace,
        "settings": plan.settings,
    }
    return facts | {"servers": {}, "against_direct": {}, "tables": {}, "parts": {}}


def _write(output: Path, results: dict[str, Any]) -> None:
    for name, chart in charts.all_charts(results).items():
        (output / name).write_text(chart)
    measured = locks.load(output)
    (output / "performance.md").write_text(report.markdown(results, measured))
    say(f"wrote {output / 'performance.md'}")
