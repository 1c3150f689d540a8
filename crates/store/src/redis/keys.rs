//! What the keys are called.
//!
//! A SKU's keys all carry the name of its shard in braces: they belong together, and one script
//! touches them. (Redis Cluster would keep them on one node; but the followers ask for all shards at
//! once, so a cluster is not supported.) The name begins with the identity of the SQL
//! ledger, for it is that ledger which the stock here belongs to: another one on the same Redis
//! (a test's, a race's) has other keys.

use sha2::{Digest, Sha256};

use stocklock_core::stock::{Idempotency, OperationId, Sku, Warehouse};

/// How many journals there are; fixed, for a SKU must always find its own.
pub(super) const SHARDS: u8 = 64;

/// The keys of one ledger's stock.
#[derive(Debug)]
pub(super) struct Keys {
    ledger: String,
    /// The part in braces, for each shard.
    tags: Vec<String>,
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
        let tag = |shard: Shard| format!("{{{ledger}.{}}}", shard.0);
        let tags = Shard::all().map(tag).collect();
        Self { ledger, tags }
    }

    /// Those of one SKU.
    pub(super) fn of<'a>(&'a self, sku: &'a Sku) -> KeysOf<'a> {
        let shard = Shard::of(sku);
        KeysOf {
            sku,
            shard,
            tag: self.tag(shard),
        }
    }

    fn tag(&self, shard: Shard) -> &str {
        &self.tags[usize::from(shard.0)]
    }

    /// A pattern that all keys match, and none of another ledger: its identity is hexadecimal.
    pub(super) fn all(&self) -> String {
        format!("*{{{}.*}}*", self.ledger)
    }

    /// A stream: the movements that SQL does not have yet.
    pub(super) fn journal(&self, shard: Shard) -> String {
        format!("journal:{}", self.tag(shard))
    }

    /// A hash: how many movements wait in the journal, how many entries of each level have left it, and
    /// since when that is counted.
    pub(super) fn tally(&self, shard: Shard) -> String {
        format!("tally:{}:journal", self.tag(shard))
    }
}

/// The keys of one SKU, whose shard is found once for all of them.
#[derive(Debug)]
pub(super) struct KeysOf<'a> {
    sku: &'a Sku,
    pub(super) shard: Shard,
    tag: &'a str,
}

impl KeysOf<'_> {
    /// A hash: the level.
    pub(super) fn level(&self, warehouse: &Warehouse) -> String {
        format!("stock:{}:{}:{warehouse}", self.tag, self.sku)
    }

    /// A text: what an operation did. With a key it is remembered under that, else under its own id.
    pub(super) fn memory(
        &self,
        operation: OperationId,
        idempotency: Option<&Idempotency>,
    ) -> String {
        let Self { sku, tag, .. } = self;
        match idempotency {
            None => format!("op:{tag}:{operation}"),
            // It names the SKU, so that a key counts for each by itself, whether two of them lie in
            // one shard or not.
            Some(Idempotency { caller, key, .. }) => {
                format!("op:{tag}:{sku}:{}:{}", caller.as_str(), key.as_str())
            }
        }
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
        let of_sku = keys.of(&sku);
        let level = of_sku.level(&Warehouse::default());
        assert_eq!(level, "stock:{1f.10}:a:main");
        assert_eq!(keys.journal(of_sku.shard), "journal:{1f.10}");
    }
}
