//! Fills the ledger of a SKU without the service.

use super::rival::Raw;
use super::services::Backend;

/// How many movements one statement inserts.
const BLOCK: u64 = 100_000;

/// Inserts `count` movements of a SKU, an even number, whose sum is zero: a receipt of one unit, then a
/// sale of it, and so on. The columns are those of the first release.
pub(crate) async fn fill(backend: Backend, url: &str, sku: &str, count: u64) {
    assert!(count.is_multiple_of(2), "the sum must be zero");
    let mut raw = Raw::connect(backend, url).await;
    let mut to = 0;
    while to < count {
        let from = to + 1;
        to = count.min(to + BLOCK);
        let (numbers, operation) = match backend {
            Backend::Sqlite => unreachable!("no test fills SQLite"),
            Backend::Mysql => (
                format!("(SELECT seq AS n FROM seq_{from}_to_{to}) AS numbers"),
                "unhex(lpad(hex(n), 32, '0'))",
            ),
            Backend::Postgres => (
                format!("generate_series({from}::bigint, {to}::bigint) AS numbers(n)"),
                "lpad(to_hex(n), 32, '0')::uuid",
            ),
        };
        let statement = format!(
            "INSERT INTO movement (operation_id, line, sku, warehouse, kind, delta,
                available_after, durability, caller)
            SELECT {operation}, 0, '{sku}', 'main',
                CASE n % 2 WHEN 1 THEN 'received' ELSE 'deducted' END,
                CASE n % 2 WHEN 1 THEN 1 ELSE -1 END, 0, 'committed', 'anonymous'
            FROM {numbers}"
        );
        let filled = raw.run(statement.leak()).await;
        filled.expect("the ledger can be filled");
    }
}
