"""Parsing of the load tools' output, void runs, claims, the page and the charts."""

import json
import re
import unittest
from typing import Any

from bench import charts, claims, cli, locks, report
from bench.direct import parse_pgbench
from bench.load import Run, parse, why_void
from bench.process import ROOT, BenchError
from bench.service import Audit

WRK = """Running 2s test
RESULT {"seconds": 2, "requests": 120, "refused": 20, "broken": 0, "p50_ms": 1, "p99_ms": 9}
"""
PGBENCH = """number of transactions actually processed: 300
number of failed transactions: 0 (0.000%)
tps = 99.5 (without initial connection time)
"""


def run(connections: int, rate: float) -> Run:
    return {"connections": connections, "rate": rate, "refused": 0, "answered": 100}


def void(answered: int, sold: int, *, drift: int = 0, unsafe: bool = False) -> str | None:
    audit = Audit(sold, 0, drift, consistent=drift == 0)
    return why_void(run(4, 1) | {"answered": answered}, audit, 4, unsafe=unsafe)


class LoadTools(unittest.TestCase):
    def test_only_status_200_is_throughput(self) -> None:
        measured = parse(WRK, 4)
        self.assertEqual([measured[it] for it in ("rate", "refused", "answered")], [50, 10, 100])

    def test_request_without_answer_is_an_error(self) -> None:
        with self.assertRaises(BenchError):
            parse(WRK.replace('"broken": 0', '"broken": 1'), 4)

    def test_failed_transaction_of_pgbench_is_an_error(self) -> None:
        self.assertEqual(parse_pgbench(PGBENCH), (99.5, 300))
        with self.assertRaises(BenchError):
            parse_pgbench(PGBENCH.replace("transactions: 0", "transactions: 3"))


class VoidRuns(unittest.TestCase):
    def test_one_cut_request_per_connection_is_allowed(self) -> None:
        reasons = [void(100, sold, unsafe=True) for sold in (99, 100, 104, 105)]
        self.assertEqual([reason is None for reason in reasons], [False, True, True, False])
        self.assertIsNotNone(void(0, 0))

    def test_only_unsafe_strategies_may_drift(self) -> None:
        self.assertIsNotNone(void(100, 100, drift=1))
        self.assertIsNone(void(100, 100, drift=1, unsafe=True))


class Locks(unittest.TestCase):
    def test_task_without_a_lock_breaks_the_claim_of_the_spread(self) -> None:
        used = {(one.scenario, one.processes, one.side) for one in locks.CLAIMS}
        used |= {(one.scenario, one.base_processes or one.processes, one.base) for one in locks.CLAIMS}
        figures = {"rate": 10, "p99_ms": 1, "busiest": 3, "quietest": 0}
        runs = [
            {"scenario": scenario, "processes": processes, "library": library, "rounds": [figures]}
            for scenario, processes, library in used | {locks.SPREAD[:3]}
        ]
        *ratios, spread = locks.of(runs)
        self.assertEqual({claim["ratio"] for claim in ratios}, {1})
        self.assertFalse(spread["holds"])


class CommandLine(unittest.TestCase):
    def test_recorded_command_has_the_limits_and_no_paths(self) -> None:
        plan = cli.parse(["--quick", "--only", "mariadb", "--binary", "/tmp/other"])
        self.assertEqual(plan.limits, ["--only mariadb", "--quick"])
        self.assertEqual((plan.databases, plan.pace["rounds"]), (["mariadb"], 1))
        self.assertEqual(cli.parse([]).limits, [])


class Claims(unittest.TestCase):
    def test_single_sql_compares_the_best_of_each_round(self) -> None:
        direct = [{"clients": 1, "rate": 50}, {"clients": 16, "rate": 100}]
        rounds = [
            {"direct": direct, "service": [run(1, 20), run(16, rate), run(64, 99)]}
            for rate in (60.0, 69.0, 90.0)
        ]
        claim = claims.single_sql("MariaDB", "mariadb-slap", rounds)
        self.assertEqual(claim["rounds"], [0.6, 0.69, 0.9])
        self.assertFalse(claim["holds"])
        self.assertIn("DOES NOT HOLD", claims.line(claim))

    def test_comparison_fails_below_the_tolerance(self) -> None:
        def results(rate: float) -> dict[str, Any]:
            # The best of each round counts, and the median of the rounds.
            rounds = [{"service": [run(1, 20), run(16, rate * speed)]} for speed in (1, 2, 9)]
            return {"against_direct": {"MariaDB": rounds}, "parts": {}}

        for ratio, reached in ((0.95, True), (0.94, False)):
            ((line, verdict),) = claims.compare(results(100 * ratio), results(100))
            self.assertEqual(("BELOW" not in line, verdict), (reached, reached))
            self.assertIn(f"{ratio:.3f}", line)


class Page(unittest.TestCase):
    """The page and the charts of the recorded run."""

    results = json.loads((ROOT / "docs/performance.json").read_text())

    def test_recorded_claims_follow_from_the_rounds(self) -> None:
        def by_text(found: list[claims.Claim]) -> list[claims.Claim]:
            return sorted(found, key=lambda claim: str(claim["text"]))

        self.assertEqual(by_text(claims.of(self.results)), by_text(self.results["claims"]))

    def test_files_are_rendered_from_the_recorded_run(self) -> None:
        page = report.markdown(self.results, locks.load(ROOT / "docs"))
        for name, text in (charts.all_charts(self.results) | {"performance.md": page}).items():
            same = (ROOT / "docs" / name).read_text() == text
            self.assertTrue(same, f"docs/{name} is old: run `python3 -m bench --render`")
            self.assertTrue(name == "performance.md" or f"({name})" in page)

    def test_bars_are_logarithmic_and_coloured_by_tier(self) -> None:
        bars = [charts.Bar("a", "safe", 100), charts.Bar("b", "unsafe", 10_000)]
        chart = charts.draw("t", [charts.Group("g", "", bars)])
        # The axis starts at 10: 100 is one decade, 10,000 are three.
        found = re.findall(r'width="([\d.]+)" height="11" fill="(#\w+)"', chart)
        widths = {colour: float(width) for width, colour in found if width != "11.0"}
        safe, unsafe = (widths[charts.TIERS[tier]] for tier in ("safe", "unsafe"))
        self.assertAlmostEqual(unsafe, 3 * safe, delta=0.2)
        self.assertIn("prefers-color-scheme: dark", chart)

    def test_medians_are_taken_per_connection_count(self) -> None:
        rounds = [[run(1, 5)], [run(1, 7), run(2, 1)], [run(1, 6)]]
        self.assertEqual(report.medians(rounds), {1: 6, 2: 1})
