"""What is read from the load tools, which runs count, and what follows from them."""

import unittest
from dataclasses import replace

from bench import charts, claims, report
from bench.direct import Direct, parse_pgbench
from bench.experiments import POLICIES, Pace, RedisRound, Round, Table, TableRow
from bench.load import Run, parse, why_void
from bench.process import BenchError
from bench.results import Results, medians
from bench.service import Audit, Strategy

WRK = (
    "Running 2s test\n"
    'RESULT {"seconds": 2.0, "requests": 120, "refused": 20, "broken": 0,'
    ' "p50_ms": 1.5, "p99_ms": 9.0}\n'
)
PGBENCH = (
    "number of transactions actually processed: 300\n"
    "number of failed transactions: 0 (0.000%)\n"
    "tps = 99.5 (without initial connection time)\n"
)


def run(connections: int, rate: float) -> Run:
    return Run(connections, rate, refused=0, p50_ms=1, p99_ms=2, answered=100)


def audit(sold: int, drift: int = 0) -> Audit:
    return Audit(sold, drift, pending=0, consistent=drift == 0)


class LoadTools(unittest.TestCase):
    def test_only_answers_with_200_are_throughput(self) -> None:
        measured = parse(WRK, 4)
        self.assertEqual((measured.rate, measured.refused, measured.answered), (50, 10, 100))

    def test_a_request_without_an_answer_is_an_error(self) -> None:
        with self.assertRaises(BenchError):
            parse(WRK.replace('"broken": 0', '"broken": 1'), 4)

    def test_pgbench_must_have_done_all(self) -> None:
        self.assertEqual(parse_pgbench(PGBENCH), (99.5, 300))
        with self.assertRaises(BenchError):
            parse_pgbench(PGBENCH.replace("transactions: 0", "transactions: 3"))


class Voidness(unittest.TestCase):
    def test_a_request_cut_at_the_end_may_have_been_executed(self) -> None:
        self.assertIsNone(why_void(run(4, 1), audit(100), promises=True))
        self.assertIsNone(why_void(run(4, 1), audit(104), promises=True))

    def test_fewer_sales_than_answers_and_more_than_requests_are_void(self) -> None:
        self.assertIsNotNone(why_void(run(4, 1), audit(99), promises=True))
        self.assertIsNotNone(why_void(run(4, 1), audit(105), promises=False))

    def test_a_run_in_which_nothing_was_sold_is_void(self) -> None:
        nothing = replace(run(4, 0), answered=0, refused=50)
        self.assertEqual(why_void(nothing, audit(0), promises=True), "nothing was sold")

    def test_only_who_promises_nothing_may_lose_stock(self) -> None:
        self.assertIsNotNone(why_void(run(4, 1), audit(100, drift=1), promises=True))
        self.assertIsNone(why_void(run(4, 1), audit(100, drift=1), promises=False))


class Claims(unittest.TestCase):
    def test_best_is_compared_with_best_in_each_round(self) -> None:
        direct = [Direct(1, 50), Direct(16, 100)]
        rounds = [
            Round(direct, [run(1, 20), run(16, rate), run(64, 99)]) for rate in (60.0, 69.0, 90.0)
        ]  # fmt: skip
        claim = claims.single_sql("MariaDB", "mariadb-slap", rounds)
        self.assertEqual(claim.rounds, [0.6, 0.69, 0.9])
        self.assertFalse(claim.holds)
        self.assertIn("DOES NOT HOLD", claim.line())

    def test_redis_lua_is_compared_with_as_many_connections(self) -> None:
        healthz = [run(1, 1), run(64, 90), run(64, 110)]
        this = RedisRound(healthz, {"everysec": [run(1, 50), run(64, 25)]})
        claim = claims.redis_lua([this])
        self.assertEqual((claim.ratio, claim.holds), (0.25, True))


class Page(unittest.TestCase):
    def test_the_page_has_every_claim_table_and_picture(self) -> None:
        counts = (1, 16, 64, 256)
        runs = [run(count, 10.0 * count) for count in counts]
        single_sql = Strategy("single-sql", "safe", "sql")
        results = Results(
            "2026-01-01", "make bench", "abc", "stocklock 1", {"processor": "<one>"}, {},
            Pace(5, 3, 2), {"DATABASE_POOL_SIZE": "16"}, redis_ledger="MariaDB",
        )  # fmt: skip
        results.servers["MariaDB"] = {"version": "10"}
        results.against_direct["MariaDB"] = [Round([Direct(1, 50)], [run(1, 20)])]
        sold = [*runs[:2], replace(runs[2], refused=7), runs[3]]
        results.redis = [RedisRound(runs, {policy.name: sold for policy in POLICIES}, [400.0, 410.0])]
        results.tables["MariaDB"] = Table(runs, [TableRow(single_sql, each) for each in runs])
        results.claims = [claims.single_sql("MariaDB", "slap", results.against_direct["MariaDB"])]
        page = report.markdown(results)
        self.assertIn(
            "| single-sql on MariaDB to the best of slap | **0.40** | 0.70 | **no**", page
        )
        self.assertIn("Redis keeps 405 bytes of it", page)
        self.assertIn("| 640 (1.00), refused 7 |", page)
        for name, picture in charts.all_of(results).items():
            self.assertIn(f"({name})", page)
            self.assertTrue(picture.startswith("<svg "))
        self.assertEqual(results.json()["claims"][0]["holds"], False)

    def test_medians_are_taken_by_number_of_connections(self) -> None:
        self.assertEqual(medians([[run(1, 5)], [run(1, 7), run(2, 1)], [run(1, 6)]]), {1: 6, 2: 1})


if __name__ == "__main__":
    unittest.main()
