"""The statements of the load tools are those of the store."""

import re
import unittest

from bench import statements
from bench.statements import MOVEMENT, ROOT, SOURCES, StatementError, constants

RUST = """
pub(super) const PLAIN: &str = "UPDATE stock
    SET on_hand = 0";
pub(super) const RAW: &str =
    r#"SELECT "T" FROM movement"#;
"""


class Statements(unittest.TestCase):
    def test_a_movement_is_bound_in_the_order_of_record_rs(self) -> None:
        record = (ROOT / "src/store/record.rs").read_text()
        bound = re.findall(r"\.bind\(\$record\.(\w+)", record)
        names = {"operation": "operation_id", "key": "idempotency_key", "hash": "request_hash"}
        self.assertEqual(tuple(names.get(name, name) for name in bound), MOVEMENT)

    def test_every_parameter_of_the_real_statements_is_replaced(self) -> None:
        script = statements.pgbench_script("sku-1")
        self.assertNotRegex(script, r"\$\d")
        self.assertIn("WHERE sku = 'sku-1' AND warehouse = 'main'", script)
        query = statements.slap_query("sku-1")
        self.assertNotIn("?", query)
        self.assertIn("WHERE sku = 'sku-1' AND warehouse = 'main'", query)

    def test_both_record_a_movement_for_the_level_that_they_write(self) -> None:
        for text in (statements.pgbench_script("s"), statements.slap_query("s")):
            self.assertEqual(text.count("UPDATE stock"), 1)
            self.assertEqual(text.count("INSERT INTO movement"), 1)

    def test_only_the_delimiters_of_slap_are_semicolons(self) -> None:
        query = statements.slap_query("s")
        self.assertEqual(query.count(";"), len(statements.SINGLE_SQL["mariadb"]) - 1)

    def test_the_sources_are_read_as_rust_reads_them(self) -> None:
        expected = {"PLAIN": "UPDATE stock SET on_hand = 0", "RAW": 'SELECT "T" FROM movement'}
        self.assertEqual(constants(RUST), expected)
        for path in SOURCES.values():
            source = path.read_text()
            self.assertEqual(len(constants(source)), source.count(": &str ="), path)

    def test_a_statement_that_is_gone_is_an_error(self) -> None:
        with self.assertRaisesRegex(StatementError, "sql.rs has no [A-Z_]+"):
            statements.pgbench_script("s", RUST)
        with self.assertRaisesRegex(StatementError, "sql.rs has no [A-Z_]+"):
            statements.slap_query("s", RUST)

    def test_another_number_of_parameters_is_an_error(self) -> None:
        postgres = SOURCES["postgres"].read_text().replace("sku = $1", "sku = $1 || $99")
        with self.assertRaisesRegex(StatementError, r"\d+ parameters in sql.rs, and \d+"):
            statements.pgbench_script("s", postgres)
        mariadb = SOURCES["mariadb"].read_text().replace("sku = ?", "sku = ? AND ?")
        with self.assertRaisesRegex(StatementError, r"\d+ parameters in sql.rs, and \d+"):
            statements.slap_query("s", mariadb)


if __name__ == "__main__":
    unittest.main()
