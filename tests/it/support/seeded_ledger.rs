//! Fills a ledger with movements, many at once, as the writers of the service would have left them.

use stocklock_testkit::run::rng;

use super::rival::Raw;

/// How many movements one statement inserts.
const BLOCK: u64 = 100_000;

/// Which movements to insert for a SKU that exists.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seeded<'a> {
    pub(crate) sku: &'a str,
    pub(crate) warehouse: &'a str,
    /// The first eight digits of the operation ids. Each level needs its own.
    pub(crate) operations: u32,
    pub(crate) movements: u64,
    /// The version of the level before them.
    pub(crate) after: u64,
    /// Decides the units and kinds of the movements.
    pub(crate) seed: u64,
}

impl<'a> Seeded<'a> {
    /// Random movements of the level of a SKU that was just created in the main warehouse.
    pub(crate) fn of(sku: &'a str, movements: u64) -> Self {
        Self {
            sku,
            warehouse: "main",
            operations: 1,
            movements,
            after: 1,
            seed: rng().u64(..1_000_000),
        }
    }

    /// Inserts the movements after the level's creation, and updates the level.
    pub(crate) async fn insert(self, raw: &mut Raw) {
        let mut inserted = 0;
        while inserted < self.movements {
            let to = self.movements.min(inserted + BLOCK);
            run(raw, self.block(raw, inserted + 1, to)).await;
            inserted = to;
        }
        let Self { sku, warehouse, .. } = self;
        let place = format!("sku = '{sku}' AND warehouse = '{warehouse}'");
        run(
            raw,
            format!(
                "UPDATE stock SET version = version + {},
                    on_hand = (SELECT sum(delta) FROM movement WHERE {place})
                WHERE {place}",
                self.movements
            ),
        )
        .await;
    }

    /// Inserts the movements `from` to `to`: nine of ten take 1 to 5 units, one brings 50.
    fn block(&self, raw: &Raw, from: u64, to: u64) -> String {
        let Self {
            sku,
            warehouse,
            operations,
            seed,
            after,
            ..
        } = self;
        let (numbers, operation) = numbered(raw, *operations, (from, to));
        let random = format!("((n + {seed}) * 7919 % 1009)");
        format!(
            "INSERT INTO movement (operation_id, line, sku, warehouse, kind, delta,
                available_after, caller, level_version)
            SELECT {operation}, 0, '{sku}', '{warehouse}',
                CASE {random} % 10 WHEN 0 THEN 'received' ELSE 'deducted' END,
                CASE {random} % 10 WHEN 0 THEN 50 ELSE -1 - {random} % 5 END,
                0, 'anonymous', n + {after}
            FROM {numbers} AS numbers"
        )
    }
}

/// A subquery with the numbers `n` of a range, and the id of the operation of each.
fn numbered(raw: &Raw, operations: u32, (from, to): (u64, u64)) -> (String, String) {
    match raw {
        Raw::Sqlite(_) => (
            format!(
                "(WITH RECURSIVE s(n) AS (SELECT {from} UNION ALL SELECT n + 1 FROM s
                    WHERE n < {to}) SELECT n FROM s)"
            ),
            format!("unhex(printf('{operations:08x}00007000%016x', n))"),
        ),
        Raw::Mysql(_) => (
            format!("(SELECT cast(seq AS signed) AS n FROM seq_{from}_to_{to})"),
            format!("unhex(concat('{operations:08x}00007000', lpad(hex(n), 16, '0')))"),
        ),
        Raw::Postgres(_) => (
            format!("(SELECT n FROM generate_series({from}::bigint, {to}::bigint) AS s(n))"),
            format!("('{operations:08x}00007000' || lpad(to_hex(n), 16, '0'))::uuid"),
        ),
    }
}

/// Inserts holds of one unit of a SKU that was just created in the main warehouse, and updates the level.
pub(crate) async fn hold(raw: &mut Raw, sku: &str, holds: u64) {
    let place = format!("sku = '{sku}' AND warehouse = 'main'");
    for block in 0..holds.div_ceil(BLOCK) {
        let (from, to) = (block * BLOCK + 1, holds.min((block + 1) * BLOCK));
        let (numbers, operation) = numbered(raw, 1, (from, to));
        run(
            raw,
            format!(
                "INSERT INTO movement (operation_id, line, sku, warehouse, kind, delta, held_delta,
                    available_after, caller, level_version)
                SELECT {operation}, 0, '{sku}', 'main', 'held', 0, 1, 0, 'anonymous', n + 1
                FROM {numbers} AS numbers"
            ),
        )
        .await;
        // In the year 2100.
        run(
            raw,
            format!(
                "INSERT INTO hold (operation_id, line, sku, warehouse, units, expires_at)
                SELECT {operation}, 0, '{sku}', 'main', 1, 4102444800000 + n FROM {numbers} AS numbers"
            ),
        )
        .await;
    }
    let update =
        format!("UPDATE stock SET version = version + {holds}, held = {holds} WHERE {place}");
    run(raw, update).await;
}

async fn run(raw: &mut Raw, statement: String) {
    let done = raw.run(statement.leak()).await;
    done.expect("the ledger can be filled");
}
