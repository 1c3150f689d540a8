"""The parts about group-commit: their claims, checks, configuration and sections."""

import threading
import unittest
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from unittest import mock

from bench import charts, claims, cli, crowd, load, replicas, sections
from bench.parts import PARTS, alternate, counter
from bench.process import ROOT, BenchError
from bench.servers import count_scripts
from bench.service import Client


class Claims(unittest.TestCase):
    def test_target_can_differ_by_database(self) -> None:
        rounds = [{"group-commit": {"rate": rate}, "/healthz": {"rate": 100}} for rate in (1, 25, 90)]
        _, claim, *_ = claims.PART_CLAIMS
        found = [claims.of_part(claim, title, rounds) for title in ("MariaDB", "PostgreSQL")]
        self.assertEqual([one["ratio"] for one in found], [0.25, 0.25])
        self.assertEqual([one["holds"] for one in found], [True, False])

    def test_bound_can_be_a_maximum_and_a_number(self) -> None:
        (claim,) = (one for one in claims.PART_CLAIMS if one.base == 150)
        for latency, holds in ((150, True), (151, False)):
            found = claims.of_part(claim, "SQLite", [{"1,024": {"p99_ms": latency}}])
            self.assertEqual(found["holds"], holds)
            self.assertIn("at most 1.00 claimed", claims.line(found))

    def test_only_databases_with_a_target_have_a_claim(self) -> None:
        rounds = [{side: {"rate": 9} for side in ("single requests", "batches", "pgbench")}]
        parts = {"batch": {"SQLite": rounds, "PostgreSQL": rounds}}
        found = claims.of({"against_direct": {}, "parts": parts})
        self.assertEqual(sum("pgbench" in one["text"] for one in found), 1)
        self.assertEqual(len(found), 3)

    def test_each_claim_is_about_a_part_of_the_page(self) -> None:
        self.assertEqual(list(sections.TEXTS), list(PARTS))
        self.assertLessEqual({claim.part for claim in claims.PART_CLAIMS}, set(PARTS))

    def test_comparison_has_each_run_of_the_service(self) -> None:
        def results(rate: float) -> dict[str, Any]:
            rounds = [{"/healthz": {"rate": 7}, "group-commit": {"rate": rate}}]
            return {"against_direct": {}, "parts": {"hot": {"MariaDB": rounds}}}

        ((line, reached),) = claims.compare(results(80), results(100))
        self.assertIn("MariaDB, hot: group-commit: new/old 0.800, BELOW", line)
        self.assertFalse(reached)


    def test_counter_is_compared_at_equal_connections(self) -> None:
        rates = {"group-commit": 10, "redis-lua": 6, "/healthz": 20, "redis-lua, sold out": 5}
        this = {name: {"rate": rate} for name, rate in rates.items()}
        this |= {"single-sql, 1 connection": {"p50_ms": 1.0}, "redis-lua, 1 connection": {"p50_ms": 1.7}}
        found = claims.of({"against_direct": {}, "parts": {"counter": {"MariaDB": [this]}}})
        self.assertEqual([one["ratio"] for one in found], [0.6, 1.7, 0.25])
        self.assertEqual([one["holds"] for one in found], [True, False, False])


class Rounds(unittest.TestCase):
    def test_every_second_round_reverses_the_order(self) -> None:
        called: list[str] = []
        sides = {name: lambda _, name=name: called.append(name) or {} for name in "abc"}
        with mock.patch("bench.parts.say"):
            rounds = [alternate("test", sides, number, 1) for number in (0, 1)]
        self.assertEqual("".join(called), "abccba")
        self.assertEqual([list(one) for one in rounds], [["a", "b", "c"]] * 2)

    def test_chosen_parts_are_measured_alone(self) -> None:
        plan = cli.parse(["--part", "hot", "--part", "cold"])
        self.assertEqual((plan.parts, plan.limits), (["hot", "cold"], ["--part hot", "--part cold"]))
        self.assertEqual(cli.parse([]).parts, cli.ALL_PARTS)
        self.assertEqual(cli.parse(["--against", "/tmp/other"]).parts, cli.COMPARED)


class FakeRedis:
    """Its number of scripts, one value per question."""

    def __init__(self, answers: Iterator[int]) -> None:
        self.scripts = partial(next, answers)


class Counter(unittest.TestCase):
    def test_refusal_that_did_not_ask_redis_is_an_error(self) -> None:
        for asked, is_void in ((30, False), (29, True)):
            site = mock.Mock(redis=FakeRedis(iter((5, 5 + asked))))
            with counter(site) as sides, mock.patch("bench.load.refuse", return_value={"others": 30}):
                if is_void:
                    self.assertRaises(BenchError, sides["redis-lua, sold out"], 1)
                else:
                    self.assertEqual(sides["redis-lua, sold out"](1), {"others": 30})

    def test_scripts_are_counted_by_all_commands_that_run_one(self) -> None:
        stats = "# Commandstats\r\ncmdstat_set:calls=9,usec=1\r\ncmdstat_evalsha:calls=4,usec=8\r\n"
        self.assertEqual(count_scripts(stats + "cmdstat_eval:calls=1,usec=2\r\n"), 5)
        self.assertEqual(count_scripts(""), 0)


class FakeClient(Client):
    """Answers each path with a text."""

    def __init__(self, **answers: str) -> None:
        super().__init__("127.0.0.1:1")
        self._answers = answers

    def _exchange(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        return 200, self._answers[path.strip("/")]


class Checks(unittest.TestCase):
    def test_audit_sums_the_skus_of_a_market(self) -> None:
        def line(sku: str, sold: int, drift: int) -> str:
            return (f'{{"sku": "{sku}", "warehouses": [{{"sold": {sold}, "held": 1, "drift": {drift},'
                    f' "consistent": {"false" if drift else "true"}}}]}}')  # fmt: skip

        lines = [line("m-1", 3, 0), line("m-2", 4, 0), line("other", 9, 9)]
        audit = FakeClient(audit="\n".join(lines)).audit_of_all("m-")
        self.assertEqual(audit, (7, 2, 0, True))
        # Two errors must not cancel each other out.
        lines = [line("m-1", 3, 1), line("m-2", 4, -1)]
        audit = FakeClient(audit="\n".join(lines)).audit_of_all("m-")
        self.assertEqual((audit.drift, audit.consistent), (2, False))

    def test_metrics_are_read_by_their_labels(self) -> None:
        text = '# TYPE\nhttp_responses_total{status="200"} 5\nhttp_responses_total{status="409"} 6\n'
        client = FakeClient(metrics=text)
        counts = client.counts("http_responses_total")
        self.assertEqual(counts, {'status="200"': 5, 'status="409"': 6})
        self.assertEqual(client.internal_errors(), 0)
        after = counts | {'status="409"': 8, 'status="503"': 1}
        self.assertEqual(load._increases(counts, after), {'status="409"': 2, 'status="503"': 1})


class Answers(BaseHTTPRequestHandler):
    """Sells to each connection once."""

    protocol_version = "HTTP/1.1"
    sold = False

    def do_POST(self) -> None:
        status, self.sold = (409 if self.sold else 200), True
        body = b"{}"
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        # In two packets.
        self.wfile.flush()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class Crowd(unittest.TestCase):
    def test_answers_are_counted_per_connection(self) -> None:
        with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                client = Client(f"127.0.0.1:{server.server_port}")
                found = crowd._run(client, "/x", 8, 0.1)
            finally:
                server.shutdown()
                thread.join()
        self.assertEqual([one.deducted for one in found], [1] * 8)
        self.assertGreater(sum(one.others for one in found), 0)

    def test_closed_connection_is_an_error(self) -> None:
        with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
            client = Client(f"127.0.0.1:{server.server_port}")
        with self.assertRaises(BenchError):
            crowd._run(client, "/x", 1, 0)


class Nginx(unittest.TestCase):
    text = (ROOT / "deploy/nginx.conf").read_text()

    def test_only_addresses_are_replaced(self) -> None:
        found = replicas.configure(self.text, "127.0.0.1:1", ["127.0.0.1:2", "127.0.0.1:3"])
        new = [line.strip() for line in found.splitlines() if line not in self.text.splitlines()]
        servers = [f"server 127.0.0.1:{port} max_fails=1 fail_timeout=2s;" for port in (2, 3)]
        self.assertEqual(new, [*servers, "listen 127.0.0.1:1 backlog=1024;"])
        self.assertNotIn("server replica-", found)

    def test_configuration_that_does_not_fit_is_an_error(self) -> None:
        with self.assertRaises(BenchError):
            replicas.configure(self.text.replace("listen 8080 ", "listen 80 "), "a:1", ["a:2"])


class Page(unittest.TestCase):
    def test_section_has_medians_and_what_was_refused(self) -> None:
        rounds = [
            {"group-commit": {"rate": rate, "refused": 2.0, "p50_ms": 0.5, "p99_ms": 20.4},
             "each of 4,096": {"rate": 3, "least": 2}}
            for rate in (10, 30, 20)
        ]  # fmt: skip
        (section,) = sections.of({"connections": {"SQLite": rounds}})
        row = "| SQLite | 20 (0.50 / 20), refused 2 | 3, at least 2 each |"
        self.assertEqual(section.splitlines()[-1], row)

    def test_run_that_a_database_does_not_have_is_empty(self) -> None:
        rounds = {"SQLite": [{"batches": {"rate": 1}}],
                  "PostgreSQL": [{"batches": {"rate": 2}, "pgbench": {"rate": 3}}]}  # fmt: skip
        (section,) = sections.of({"batch": rounds})
        self.assertIn("| SQLite | 1 |  |", section)

    def test_chart_of_connections_needs_both_strategies(self) -> None:
        runs = [{"connections": count, "rate": 9.0, "refused": 0} for count in (1, 4096)]
        rows = [{"strategy": {"name": name, "tier": "safe"}, "run": run}
                for name in ("single-sql", "group-commit") for run in runs]  # fmt: skip
        table = {"healthz": runs, "rows": rows}
        found = charts.all_charts({"tables": {"SQLite": table}})
        self.assertIn("4,096", found["performance-connections-sqlite.svg"])
        self.assertNotIn("4,096", found["performance-strategies-sqlite.svg"])
        few = {"healthz": runs, "rows": rows[:2]}
        self.assertEqual(len(charts.all_charts({"tables": {"SQLite": few}})), 1)
