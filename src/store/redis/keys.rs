//! What the keys are called.
//!
//! A SKU's keys all carry the name of its shard in braces: they belong together, and one script
//! touches them. (Redis Cluster would keep them on one node; but the followers ask for all shards at
//! once, so a cluster is not supported.) The name begins with the identity of the SQL
//! ledger, for it is that ledger which the stock here belongs to: another one on the same Redis
//! (a test's, a race's) has other keys.

use sha2::{Digest, Sha256};

use crate::stock::{Idempotency, OperationId, Sku, Warehouse};

/// How many journals there are; fixed, for a SKU must always find its own.
pub(super) const SHARDS: u8 = 64;

/// The keys of one ledger's stock.
#[derive(Debug)]
pub(super) struct Keys {
    ledger: String,
}

/// One of the [`SHARDS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shard(u8);

impl Shard {
    pub(super) fn all() -> impl Iterator<Item = Self> {
        (0..SHARDS).map(Self)
    }

    /// The one that a SKU belongs to, in every version of this service on every machine.
    pub(super) fn of(sku: &Sku) -> Self {
        Self(Sha256::digest(sku.as_str())[0] % SHARDS)
    }
}

impl Keys {
    pub(super) fn new(ledger: String) -> Self {
        Self { ledger }
    }

    fn tag(&self, shard: Shard) -> String {
        format!("{{{}.{}}}", self.ledger, shard.0)
    }

    /// A pattern that all keys match, and none of another ledger: its identity is hexadecimal.
    pub(super) fn all(&self) -> String {
        format!("*{{{}.*}}*", self.ledger)
    }

    /// A hash: the level.
    pub(super) fn level(&self, sku: &Sku, warehouse: &Warehouse) -> String {
        format!("stock:{}:{sku}:{warehouse}", self.tag(Shard::of(sku)))
    }

    /// A stream: the movements that SQL does not have yet.
    pub(super) fn journal(&self, shard: Shard) -> String {
        format!("journal:{}", self.tag(shard))
    }

    /// A hash: how many entries of each level have left the journal, and since when that is counted.
    pub(super) fn departures(&self, shard: Shard) -> String {
        format!("departed:{}:journal", self.tag(shard))
    }

    /// A text: what an operation did. With a key it is remembered under that, else under its own id.
    pub(super) fn memory(
        &self,
        sku: &Sku,
        operation: OperationId,
        idempotency: Option<&Idempotency>,
    ) -> String {
        idempotency.map_or_else(
            || self.operation(sku, operation),
            |idempotency| self.idempotency(sku, idempotency),
        )
    }

    fn operation(&self, sku: &Sku, operation: OperationId) -> String {
        format!("op:{}:{operation}", self.tag(Shard::of(sku)))
    }

    /// A text: what was done with this SKU under a caller's key. It names the SKU, so that a key counts
    /// for each by itself, whether two of them lie in one shard or not.
    fn idempotency(&self, sku: &Sku, idempotency: &Idempotency) -> String {
        let Idempotency { caller, key, .. } = idempotency;
        let tag = self.tag(Shard::of(sku));
        format!("op:{tag}:{sku}:{}:{}", caller.as_str(), key.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sku_never_changes_its_shard() {
        for (sku, shard) in [
            ("1001", 62),
            ("1001-redis", 6),
            ("a", 10),
            ("b", 62),
            ("上海仓", 32),
        ] {
            assert_eq!(Shard::of(&Sku::parse(sku).unwrap()), Shard(shard), "{sku}");
        }
    }

    #[test]
    fn keys_of_one_sku_share_the_part_in_braces() {
        let keys = Keys::new("1f".to_owned());
        let sku = Sku::parse("a").unwrap();
        let tag = keys.tag(Shard::of(&sku));
        let level = keys.level(&sku, &Warehouse::default());
        assert_eq!(level, format!("stock:{tag}:a:main"));
        let journal = keys.journal(Shard::of(&sku));
        assert_eq!(journal, format!("journal:{tag}"));
    }
}
