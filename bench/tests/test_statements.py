"""The load tools send the statement that the store sends."""

import unittest

from bench import statements
from bench.process import BenchError
from bench.statements import snapshot


class Statements(unittest.TestCase):
    def test_parameters_and_samples_are_replaced(self) -> None:
        script = statements.pgbench_script("sku-1")
        self.assertNotRegex(script, r"\$\d")
        self.assertIn("WHERE sku = 'sku-1' AND warehouse = 'main'", script)
        message = statements.slap_message("sku-1")
        self.assertNotIn("sample", message)
        self.assertIn(", 'sku-1', 'main', 'deducted', -1, ", message)

    def test_values_go_into_their_columns(self) -> None:
        names = statements._parameters(snapshot("postgres"))
        self.assertEqual((names["$1"], names["$2"]), ("operation_id", "sku"))
        self.assertIn("expiry", names.values())
        self.assertNotIn("line", {names[name] for name in names if name.startswith("$")})

    def test_both_update_a_level_and_insert_a_movement(self) -> None:
        script = statements.pgbench_script("s")
        self.assertEqual(script.count("UPDATE stock"), 1)
        self.assertEqual(script.count("INSERT INTO movement"), 1)
        self.assertEqual(statements.slap_message("s").count("CALL stocklock_deduct_"), 1)

    def test_batch_takes_its_units_at_once_and_inserts_each(self) -> None:
        script = statements.pgbench_batches("s", 100)
        self.assertIn("version = version + 100, on_hand = on_hand - 100 ", script)
        self.assertIn("on_hand - 100 - held >= -backorder_limit", script)
        self.assertIn("available + 100 - number, version - 100 + number", script)
        self.assertIn("'group-commit'", script)
        self.assertNotRegex(script, r"\$\d")
        with self.assertRaisesRegex(BenchError, "does not have once"):
            statements.pgbench_batches("s", 100, snapshot("postgres").replace("version + 1", "1"))

    def test_message_has_no_delimiter_of_slap(self) -> None:
        self.assertNotIn("|", statements.slap_message("s"))

    def test_statement_that_does_not_fit_is_an_error(self) -> None:
        for dialect, old, new, problem in (
            ("postgres", "$13", "$13 || $99", "no value is known"),
            ("postgres", "reference,", "", "columns, but"),
            ("mysql", "'sample-key'", "'another'", "the message has no"),
        ):
            script = statements.pgbench_script if dialect == "postgres" else statements.slap_message
            with self.assertRaisesRegex(BenchError, problem):
                script("s", snapshot(dialect).replace(old, new))
