//! Tests of rows of imports beside other operations.

use super::*;

impl Queues {
    fn add_rows<'a>(&mut self, skus: impl IntoIterator<Item = &'a str>) {
        let row = |sku| Operation {
            is_row: true,
            ..operation(sku)
        };
        skus.into_iter().for_each(|sku| self.add(row(sku)));
    }
}

#[test]
fn rows_have_batches_of_their_own() {
    let mut queues = queues();
    queues.add_rows(["r", "s", "t", "u", "v"]);
    let rows = queues.expect(["r", "s", "t", "u", "v"]);
    queues.add_rows(["w"]);
    queues.add_all(["a", "u"]);
    // The levels of rows do not count as claimed.
    let sale = queues.expect(["a"]);
    assert!(rows.counts && !sale.counts);
    // One transaction at a time is of rows.
    assert!(queues.take().is_none());
    queues.add_all(["b", "c", "d"]);
    let sales = queues.expect(["b", "c", "d"]);
    queues.end(sales);
    queues.end(sale);
    queues.end(rows);
    for last in ["u", "w"] {
        let last = queues.expect([last]);
        queues.end(last);
    }
    queues.assert_empty();
}

#[test]
fn others_go_first_after_a_batch_of_rows() {
    let mut queues = Queues::new(MAX_LINES, 1);
    let names: Vec<_> = (0..3 * FEW_LINES).map(|row| format!("r{row}")).collect();
    queues.add_rows(names.iter().map(String::as_str));
    let alone = queues.take().expect("rows");
    assert_eq!(alone.operations.len(), names.len());
    queues.end(alone);
    queues.add_all(["a"]);
    queues.add_rows(names.iter().map(String::as_str));
    let sale = queues.expect(["a"]);
    // No sale waits for the end of many rows.
    for _ in 0..2 {
        let rows = queues.take().expect("rows");
        assert_eq!(rows.operations.len(), FEW_LINES);
        queues.add_all(["b"]);
        queues.end(rows);
        let sale = queues.expect(["b"]);
        queues.end(sale);
    }
    queues.end(sale);
    let last = queues.take().expect("rows");
    queues.end(last);
    queues.assert_empty();
}

#[test]
fn operation_does_not_wait_for_the_turn_of_rows() {
    let mut queues = Queues::new(MAX_LINES, 1);
    queues.add_all(["a b"]);
    let order = queues.expect(["a b"]);
    queues.add_rows(["r", "s", "s"]);
    queues.add_all(["x", "s"]);
    // There is no transaction for rows, but few levels are claimed: `x` has one of its own. The rows before the
    // sale of `s` are made with it.
    let sale = queues.expect(["s", "s", "s"]);
    let other = queues.expect(["x"]);
    assert!(queues.take().is_none());
    for batch in [sale, other, order] {
        queues.end(batch);
    }
    let rows = queues.expect(["r"]);
    queues.end(rows);
    queues.assert_empty();
}
