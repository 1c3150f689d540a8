//! The write of a plan: levels and movements, each level on its condition, in one commit.
//!
//! Guarantees: a level is written together with its movements, or not at all. Its condition, that it has the
//! version that the plan has read and that enough units are available, is checked when its row is locked; so
//! is the expiry. A write that waits writes all levels or none. One that does not wait leaves out the levels
//! that are locked or fail their condition, unless one of its operations concerns two levels.

use serde::{Serialize, Serializer};

use super::pool::{PooledConnection, Server, Transaction};
use stocklock_core::plan::{Plan, PlannedLevel, PlannedMovement};
use stocklock_core::stock::{MovementKind, Operation};

/// The connection of a write.
#[derive(Debug)]
pub(crate) enum Session<S: Server> {
    /// Without a transaction: the write is one.
    Fresh(PooledConnection<S>),
    /// With the transaction that has locked the rows. The write ends it.
    Open(Transaction<S>),
}

/// How a write ended.
#[derive(Debug)]
pub(crate) enum Written {
    /// The [`WrittenLevel`]s. None: nothing was written, because a condition does not hold, or the attempt has
    /// expired.
    Levels(Vec<WrittenLevel>),
    /// The ledger already has one of the operations or keys. Nothing was written.
    Duplicate,
}

/// The place of a level in the plan, from 0, and the units that are available in it.
pub(crate) type WrittenLevel = (i64, i64);

/// What is written.
#[derive(Debug)]
pub(crate) struct Write<'a> {
    plan: &'a Plan<'a>,
    /// In milliseconds since 1970, on the server's clock.
    pub(crate) expires_at: i64,
    /// Whether it waits for a row that is locked.
    pub(crate) waits: bool,
}

/// A movement, as the statements of the dialects take it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MovementRow<'a> {
    pub(crate) movement: &'a PlannedMovement<'a>,
    /// The place of its level in the plan, from 0.
    pub(crate) level: i64,
    /// How many movements of the level follow.
    pub(crate) movements_after: i64,
    /// The units that those take.
    pub(crate) units_after: i64,
}

impl<'a> Write<'a> {
    pub(super) fn new(plan: &'a Plan<'a>, expires_at: i64, waits: bool) -> Self {
        Self {
            plan,
            expires_at,
            waits,
        }
    }

    /// The strategy of the sales, which all have in common.
    pub(crate) fn strategy(&self) -> Option<&'a str> {
        let movements = self.plan.movements.iter();
        let mut strategies = movements.filter_map(|movement| movement.operation.strategy);
        let first = strategies.next();
        debug_assert!(
            strategies.all(|one| Some(one) == first),
            "one strategy in a write"
        );
        first
    }

    /// Whether other operations wait for this write if one of them waits for its key.
    pub(crate) fn is_shared(&self) -> bool {
        !self.waits || self.plan.operations() > 1
    }

    /// Whether a movement has an idempotency key.
    pub(crate) fn has_key(&self) -> bool {
        self.movements().any(|movement| movement.key().is_some())
    }

    /// Whether all levels are written, or none.
    pub(crate) fn is_whole(&self) -> bool {
        self.plan.levels.len() > 1 && (self.waits || !self.plan.is_divisible())
    }

    /// The levels with their places in the plan, from 0.
    pub(crate) fn levels(&self) -> impl ExactSizeIterator<Item = (i64, &'a PlannedLevel<'a>)> {
        let levels = self.plan.levels.iter().enumerate();
        levels.map(|(place, level)| (integer(place), level))
    }

    pub(crate) fn movements(&self) -> impl ExactSizeIterator<Item = MovementRow<'a>> {
        let plan = self.plan;
        plan.movements.iter().map(|movement| {
            let (movements_after, available_after) = plan.after(movement);
            MovementRow {
                movement,
                level: integer(movement.level),
                movements_after,
                units_after: -available_after,
            }
        })
    }

    /// The level, if it is the only one.
    pub(crate) fn only_level(&self) -> Option<&'a PlannedLevel<'a>> {
        let [level] = &self.plan.levels[..] else {
            return None;
        };
        Some(level)
    }

    /// SKU and warehouse of the level at this place.
    pub(crate) fn place(&self, level: i64) -> (&'a str, &'a str) {
        let place = usize::try_from(level).expect("a place in the plan");
        let level = &self.plan.levels[place];
        (level.sku.as_str(), level.warehouse.as_str())
    }

    /// A JSON array with an array for each level: number, SKU, warehouse, delta, movements, version that it
    /// must have, new backorder limit, units added to `held`.
    pub(crate) fn levels_json(&self) -> String {
        json(self.levels().map(|(number, level)| {
            (
                number,
                level.sku.as_str(),
                level.warehouse.as_str(),
                level.delta,
                level.movements,
                level.read_version(),
                level.backorder_limit,
                level.held_delta,
            )
        }))
    }
}

impl<'a> MovementRow<'a> {
    pub(crate) fn operation(self) -> &'a Operation {
        self.movement.operation
    }

    /// Reason and reference.
    pub(crate) fn remarks(self) -> [Option<&'a str>; 2] {
        self.operation().remarks.texts()
    }

    pub(crate) fn delta(self) -> i64 {
        self.movement.delta
    }

    /// The key, which the lowest line of an operation has, and the hash of the request.
    pub(crate) fn key(self) -> Option<(&'a str, &'a [u8])> {
        let key = self.operation().idempotency.as_ref();
        let key = key.filter(|_| self.movement.has_key)?;
        Some((key.key.as_str(), &key.hash.0))
    }

    fn key_values(self) -> (Option<&'a str>, Option<Hex<'a>>) {
        self.key().map(|(key, hash)| (key, Hex(hash))).unzip()
    }

    /// Whether it is the first line of a sale, which has no values but the usual ones.
    pub(crate) fn is_plain(self) -> bool {
        let movement = self.movement;
        let is_sale = movement.kind == MovementKind::Deducted;
        is_sale && movement.ledger_line == 0 && movement.reverses.is_none()
    }

    /// The units that it holds, if it is the first line of a hold, which has no other value but the usual ones.
    pub(crate) fn held(self) -> Option<i64> {
        let movement = self.movement;
        let is_hold = movement.kind == MovementKind::Held && movement.ledger_line == 0;
        (is_hold && self.remarks() == [None; 2]).then_some(movement.held_delta)
    }

    /// What every movement has, as JSON values: these two numbers, operation, delta, caller, key, hash. Bytes
    /// are hexadecimal digits.
    pub(crate) fn usual(self, first: i64, second: i64) -> impl Serialize + use<'a> {
        let (operation, (key, hash)) = (self.operation(), self.key_values());
        (
            first,
            second,
            Hex(operation.id.0.as_bytes()),
            self.delta(),
            operation.caller.as_str(),
            key,
            hash,
        )
    }

    /// A sale of one line, as JSON values: operation, delta, the units that later sales take, caller, key, hash,
    /// remarks. Bytes are hexadecimal digits.
    pub(crate) fn sale(self) -> impl Serialize + use<'a> {
        let (operation, (key, hash)) = (self.operation(), self.key_values());
        let remarks = self.remarks();
        (
            Hex(operation.id.0.as_bytes()),
            self.delta(),
            self.units_after,
            operation.caller.as_str(),
            key,
            hash,
            remarks.iter().any(Option::is_some).then_some(remarks),
        )
    }

    /// What most movements do not have, as a JSON array: number, SKU and warehouse of its level, if there are
    /// several; line, kind, version that was read, sale whose units come back or hold that ends, how many come
    /// back; remarks; units added to `held`. `None` if that is all missing: the database reads few values of a row faster.
    pub(crate) fn rest(
        self,
        level: Option<(&'a str, &'a str)>,
    ) -> Option<impl Serialize + use<'a>> {
        let (movement, remarks) = (self.movement, self.remarks());
        let others = (!self.is_plain()).then_some(movement);
        let is_usual = level.is_none() && others.is_none() && remarks.iter().all(Option::is_none);
        (!is_usual).then(|| {
            (
                level.map(|_| self.level),
                level.map(|(sku, _)| sku),
                level.map(|(_, warehouse)| warehouse),
                others.map(|one| one.ledger_line),
                others.map(|one| one.kind.as_str()),
                others.and_then(|one| one.read_version),
                others.and_then(|one| Some(Hex(one.reverses.as_ref()?.0.as_bytes()))),
                others.and_then(|one| one.returned),
                remarks,
                others.map(|one| one.held_delta),
            )
        })
    }
}

fn integer(place: usize) -> i64 {
    i64::try_from(place).expect("a short list")
}

/// A list of values that JSON can represent.
pub(crate) fn json<T: Serialize>(rows: impl Iterator<Item = T>) -> String {
    let rows: Vec<T> = rows.collect();
    serde_json::to_string(&rows).expect("texts and numbers are JSON")
}

/// At most 32 bytes as hexadecimal digits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hex<'a>(pub(crate) &'a [u8]);

impl Serialize for Hex<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut digits = [0; 64];
        for (byte, pair) in self.0.iter().zip(digits.chunks_exact_mut(2)) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 0xf)];
        }
        let digits = &digits[..2 * self.0.len()];
        serializer.serialize_str(str::from_utf8(digits).expect("digits are ASCII"))
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::sql::conditional_write::tests::sale;

    /// The second operation repeats the key of the first, so it has no movement, and waits.
    #[test]
    fn write_is_shared_by_operations_without_movements() {
        let operations = [sale(), sale()];
        for (number, waits, is_shared) in [(1, true, false), (1, false, true), (2, true, true)] {
            let plan = Plan::unread(&operations[..number], Instant::now(), 0);
            assert_eq!(plan.movements.len(), 1);
            let write = Write::new(&plan, 0, waits);
            assert_eq!(write.is_shared(), is_shared, "{number}, {waits}");
        }
    }
}
