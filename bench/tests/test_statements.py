"""What the load tools send is what the store sends."""

import re
import unittest

from bench import statements
from bench.statements import MOVEMENT, ROOT, SNAPSHOTS, StatementError, snapshot


class Statements(unittest.TestCase):
    def test_a_movement_is_bound_in_the_order_of_record_rs(self) -> None:
        record = (ROOT / "src/store/record.rs").read_text()
        bound = re.findall(r"\.bind\(\$record\.(\w+)", record)
        names = {"operation": "operation_id", "key": "idempotency_key", "hash": "request_hash"}
        self.assertEqual(tuple(names.get(name, name) for name in bound), MOVEMENT)

    def test_every_parameter_is_replaced(self) -> None:
        script = statements.pgbench_script("sku-1")
        self.assertNotRegex(script, r"\$\d")
        self.assertIn("WHERE sku = 'sku-1' AND warehouse = 'main'", script)
        message = statements.slap_message("sku-1")
        self.assertNotIn(b"sample".hex(), message)
        self.assertIn("WHERE sku = 'sku-1' AND warehouse = ", message)

    def test_both_write_a_level_and_record_a_movement_for_it(self) -> None:
        for text in (statements.pgbench_script("s"), statements.slap_message("s")):
            self.assertEqual(text.count("UPDATE stock"), 1)
            self.assertEqual(text.count("INSERT INTO movement"), 1)

    def test_slap_has_nothing_to_split(self) -> None:
        self.assertNotIn("|", statements.slap_message("s"))

    def test_another_number_of_parameters_is_an_error(self) -> None:
        text = SNAPSHOTS["postgres"].read_text().replace("$13", "$13 || $99")
        with self.assertRaisesRegex(StatementError, r"\d+ parameters, and \d+ are known"):
            statements.pgbench_script("s", text)

    def test_another_sample_is_an_error(self) -> None:
        text = SNAPSHOTS["mariadb"].read_text().replace("'sample-key'", "'another'")
        with self.assertRaisesRegex(StatementError, "the message has no"):
            statements.slap_message("s", text)

    def test_a_snapshot_is_what_follows_its_head(self) -> None:
        self.assertEqual(snapshot("---\nsource: s\nexpression: e\n---\nA\n  B\n"), "A B")


if __name__ == "__main__":
    unittest.main()
