//! The names of the Redis keys.
//!
//! All keys of a SKU contain the tag of its shard in braces, because one script accesses them
//! together. The tag begins with the id of the SQL ledger. Several ledgers, for example those of
//! tests and races, can therefore share one Redis. See `cluster.rs` for why Redis Cluster is not
//! supported.

use sha2::{Digest, Sha256};

use stocklock_core::stock::{Idempotency, OperationId, Sku, Warehouse};

/// The number of journals. Never change it: it maps SKUs to journals.
pub(super) const SHARDS: u8 = 64;

/// The keys of one ledger.
#[derive(Debug)]
pub(super) struct Keys {
    ledger: String,
    /// The part in braces of each shard's keys.
    tags: Vec<String>,
}

/// One of the [`SHARDS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shard(u8);

impl Shard {
    pub(super) fn all() -> impl Iterator<Item = Self> {
        (0..SHARDS).map(Self)
    }

    /// The shard of a SKU. Every release must compute the same shard.
    pub(super) fn for_sku(sku: &Sku) -> Self {
        Self(Sha256::digest(sku.as_str())[0] % SHARDS)
    }
}

impl Keys {
    pub(super) fn new(ledger: String) -> Self {
        let tag = |shard: Shard| format!("{{{ledger}.{}}}", shard.0);
        let tags = Shard::all().map(tag).collect();
        Self { ledger, tags }
    }

    /// The keys of one SKU.
    pub(super) fn for_sku<'a>(&'a self, sku: &'a Sku) -> SkuKeys<'a> {
        let shard = Shard::for_sku(sku);
        SkuKeys {
            sku,
            shard,
            tag: self.tag(shard),
        }
    }

    fn tag(&self, shard: Shard) -> &str {
        &self.tags[usize::from(shard.0)]
    }

    /// A glob pattern that matches all keys of this ledger, and no others: the id is hexadecimal.
    pub(super) fn pattern(&self) -> String {
        format!("*{{{}.*}}*", self.ledger)
    }

    /// A stream: the movements that are not yet applied to SQL.
    pub(super) fn journal(&self, shard: Shard) -> String {
        format!("journal:{}", self.tag(shard))
    }

    /// A hash: `waiting` is the number of movements in the journal. For each level, the number of its
    /// acknowledged entries. `since` is when that count began.
    pub(super) fn counters(&self, shard: Shard) -> String {
        format!("tally:{}:journal", self.tag(shard))
    }
}

/// The keys of one SKU.
#[derive(Debug)]
pub(super) struct SkuKeys<'a> {
    sku: &'a Sku,
    pub(super) shard: Shard,
    tag: &'a str,
}

impl SkuKeys<'_> {
    /// A hash: the level.
    pub(super) fn level(&self, warehouse: &Warehouse) -> String {
        format!("stock:{}:{}:{warehouse}", self.tag, self.sku)
    }

    /// A string: the dedup entry of an idempotency key, or of an operation without one.
    pub(super) fn dedup(
        &self,
        operation: OperationId,
        idempotency: Option<&Idempotency>,
    ) -> String {
        let Self { sku, tag, .. } = self;
        match idempotency {
            None => format!("op:{tag}:{operation}"),
            // With the SKU, because a key is unique per SKU even if two SKUs share a shard.
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
    fn shard_of_a_sku_never_changes() {
        for (sku, shard) in [
            ("1001", 62),
            ("1001-redis", 6),
            ("a", 10),
            ("b", 62),
            ("上海仓", 32),
        ] {
            assert_eq!(
                Shard::for_sku(&Sku::parse(sku).unwrap()),
                Shard(shard),
                "{sku}"
            );
        }
    }

    #[test]
    fn keys_of_one_sku_share_their_tag() {
        let keys = Keys::new("1f".to_owned());
        let sku = Sku::parse("a").unwrap();
        let sku_keys = keys.for_sku(&sku);
        let level = sku_keys.level(&Warehouse::default());
        assert_eq!(level, "stock:{1f.10}:a:main");
        assert_eq!(keys.journal(sku_keys.shard), "journal:{1f.10}");
    }
}
