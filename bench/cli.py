"""The command line: what is measured, for how long, and where the results go."""

import argparse
import json
import os
import shlex
import signal
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from . import charts, machine, report
from .bench import DATABASES, Plan, check, measure, state_directory
from .experiments import Pace
from .process import BenchError
from .progress import say
from .results import Results
from .service import version

ROOT = Path(__file__).resolve().parent.parent
BUILT_HERE = ROOT / "target/release/stocklock"

ABOUT = """\
Measures one replica, without nginx, against what stands beside it on the same machine:

  1. single-sql against the same statements (read from the store's snapshots) from pgbench and from
     mariadb-slap, in interleaved rounds;
  2. redis-lua against /healthz, with Redis under appendfsync everysec, always, and without a file;
  3. every strategy on every database, with 1, 16, 64 and 256 connections.

Only answers with 200 count. After each run the ledger must have the sales that were answered, or
the bench fails. All servers are private ones, on loopback, and are stopped in the end.
"""

EXAMPLES = """\
examples:
  make bench                                   all of it, about 15 minutes, into docs/
  make bench BENCH='--quick'                   a look at it, in some 4 minutes, into target/bench
  make bench BENCH='--only postgres --seconds 10'
  make bench BENCH_BINARY=/some/stocklock      another build; nothing is compiled

exit codes: 0 all claims hold; 1 one does not, or a run was void; 2 the command line is wrong
"""


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m bench",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--binary",
        type=Path,
        default=BUILT_HERE,
        metavar="FILE",
        help="the service's program [target/release/stocklock]",
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=DATABASES,
        help="measure this database alone; may be repeated",
    )
    parser.add_argument(
        "--quick", action="store_true", help="two rounds and runs of 1 s: a look, not a figure"
    )
    parser.add_argument(
        "--seconds",
        type=_seconds,
        metavar="N",
        help="length of the runs that a claim depends on [3; those of the tables take 2]",
    )
    parser.add_argument(
        "--rounds", type=_rounds, metavar="N", help="interleaved rounds, of which the median [5]"
    )
    parser.add_argument(
        "--pool-size",
        type=int,
        default=16,
        metavar="N",
        help="DATABASE_POOL_SIZE of the replica [16, its default]",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="where performance.md, .json and .svg go [docs; target/bench unless all is measured]",
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("/var/tmp"),
        metavar="DIR",
        help="where the servers keep their data meanwhile; must be on a disk [/var/tmp]",
    )
    parser.add_argument(
        "--port",
        type=_port,
        default=19180,
        metavar="N",
        help="the first of five ports in a row, below 32764 [19180]",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    # A TERM must end what runs as a Ctrl-C does.
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        return _bench(options)
    except BenchError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("interrupted; everything is stopped")
        return 130


def _bench(options: argparse.Namespace) -> int:
    plan = _plan(options)
    if not (plan.binary.is_file() and os.access(plan.binary, os.X_OK)):
        raise BenchError(f"{options.binary} is no program: cargo build --release --locked")
    check(plan)
    with state_directory(plan.data) as state:
        results = Results(
            date=datetime.now(UTC).strftime("%Y-%m-%d"),
            command=_command(options),
            commit=machine.commit() if plan.binary == BUILT_HERE.resolve() else "unknown",
            service=version(plan.binary),
            machine=machine.describe(state),
            tools=machine.tools(),
            pace=plan.pace,
            settings=plan.settings,
        )
        measure(plan, state, results)
    output = options.output or ROOT / ("docs" if _is_whole(options) else "target/bench")
    _write(output, results)
    for claim in results.claims:
        print(claim.line())
    print(f"pool size: {plan.settings['DATABASE_POOL_SIZE']}; {results.minutes:.0f} minutes")
    return 0 if all(claim.holds for claim in results.claims) else 1


def _plan(options: argparse.Namespace) -> Plan:
    pace = Pace(rounds=2, seconds=1, table_seconds=1) if options.quick else Pace(5, 3, 2)
    pace = Pace(
        rounds=options.rounds or pace.rounds,
        seconds=options.seconds or pace.seconds,
        table_seconds=pace.table_seconds,
    )
    chosen = tuple(name for name in DATABASES if not options.only or name in options.only)
    return Plan(
        binary=options.binary.resolve(),
        databases=chosen,
        pace=pace,
        data=options.data,
        port=options.port,
        settings={"DATABASE_POOL_SIZE": str(options.pool_size)},
    )


def _is_whole(options: argparse.Namespace) -> bool:
    return not _words(options)


def _command(options: argparse.Namespace) -> str:
    """As it can be repeated elsewhere: without what names a place on this machine."""
    words = _words(options)
    return "make bench" + (f" BENCH={shlex.quote(' '.join(words))}" if words else "")


def _words(options: argparse.Namespace) -> list[str]:
    """Those that change what is measured."""
    words = [f"--only {name}" for name in options.only or ()]
    words += ["--quick"] if options.quick else []
    for name in ("seconds", "rounds"):
        value = getattr(options, name)
        words += [f"--{name} {value:g}"] if value else []
    words += [f"--pool-size {options.pool_size}"] if options.pool_size != 16 else []
    return words


def _write(output: Path, results: Results) -> None:
    output.mkdir(parents=True, exist_ok=True)
    (output / "performance.json").write_text(json.dumps(results.json(), indent=1) + "\n")
    for name, picture in charts.all_of(results).items():
        (output / name).write_text(picture)
    (output / "performance.md").write_text(report.markdown(results))
    say(f"{output / 'performance.md'} is written")


def _interrupted(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _seconds(text: str) -> int:
    return _number(text, 1, 60)


def _rounds(text: str) -> int:
    return _number(text, 1, 20)


def _port(text: str) -> int:
    return _number(text, 1024, 32763)


def _number(text: str, least: int, most: int) -> int:
    if not text.isdigit() or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"a number from {least} to {most} is wanted")
    return int(text)
