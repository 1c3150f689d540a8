//! The names of the Redis keys.
//!
//! All keys of a SKU contain the tag of its shard in braces, because one script accesses them
//! together. On a Redis Cluster, the keys of a shard are therefore in one slot. The tag begins with the id
//! of the SQL ledger. Several ledgers, for example those of tests and races, can therefore share one Redis.

use std::fmt::{self, Display};

use sha2::{Digest, Sha256};

use super::cluster::Slot;
use stocklock_core::stock::{Idempotency, Sku, Warehouse};

/// The number of journals. Never change it: it maps SKUs to journals.
const SHARDS: u8 = 64;

/// One of the [`SHARDS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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

/// The keys of the ledger with this id.
#[derive(Debug)]
pub(super) struct Keys(pub(super) String);

impl Keys {
    /// The part in braces of the shard's keys.
    fn tag(&self, shard: Shard) -> impl Display {
        fmt::from_fn(move |f| write!(f, "{{{}.{}}}", self.0, shard.0))
    }

    /// A glob pattern that matches all keys of this ledger, and no others: the id is hexadecimal.
    pub(super) fn pattern(&self) -> String {
        format!("*{{{}.*}}*", self.0)
    }

    /// A glob pattern that matches the levels of this ledger.
    pub(super) fn levels_pattern(&self) -> String {
        format!("stock:{{{}.*}}:*", self.0)
    }

    /// The slot of the shard's keys in a cluster.
    pub(super) fn slot(&self, shard: Shard) -> Slot {
        Slot::for_tag(&format!("{}.{}", self.0, shard.0))
    }

    /// The slots of all shards.
    pub(super) fn slots(&self) -> impl Iterator<Item = Slot> {
        Shard::all().map(|shard| self.slot(shard))
    }

    /// The shard with the key of the binding.
    pub(super) const BINDING: Shard = Shard(0);

    /// A string: the id of the binding of this ledger, and its beat.
    pub(super) fn binding(&self) -> String {
        format!("binding:{}", self.tag(Self::BINDING))
    }

    /// A string: the id of the binding, and 1 once levels may be loaded, or 0. If it is missing, Redis has
    /// lost the keys of this shard.
    pub(super) fn bound(&self, shard: Shard) -> String {
        format!("bound:{}", self.tag(shard))
    }

    /// A string without meaning, written so that `WAIT` has something to wait for.
    pub(super) fn marker(&self, shard: Shard) -> String {
        format!("marker:{}", self.tag(shard))
    }

    /// A stream: the movements that are not yet applied to SQL.
    pub(super) fn journal(&self, shard: Shard) -> String {
        format!("journal:{}", self.tag(shard))
    }

    /// A stream: the entries of the journal that SQL refuses. Each has its id in the journal as the
    /// field `entry`, and why it was refused as the field `reason`.
    pub(super) fn rejected(&self, shard: Shard) -> String {
        format!("rejected:{}", self.tag(shard))
    }

    /// A string: the token of the consumer that applies the journal's entries.
    pub(super) fn lease(&self, shard: Shard) -> String {
        format!("consumer:{}", self.tag(shard))
    }

    /// A hash: `waiting` is the number of movements in the journal. `last KEY` is the state of the level KEY
    /// after its last write, unless that was before the entry `tracked`. `since` is a time, and another
    /// one if Redis has lost the hash or other writes.
    pub(super) fn counters(&self, shard: Shard) -> String {
        format!("tally:{}:journal", self.tag(shard))
    }

    /// A hash: the level of a SKU of this shard. Its units on hand are `units`; in release 0.1.0 they were
    /// `on_hand`, so replicas of both releases cannot sell the same level. `loaded` is when it was loaded from
    /// SQL, in microseconds since 1970.
    pub(super) fn level(&self, shard: Shard, sku: &Sku, warehouse: &Warehouse) -> String {
        format!("stock:{}:{sku}:{warehouse}", self.tag(shard))
    }

    /// A string: the cached levels of a SKU of this shard, or the mark of their last change.
    pub(super) fn cached(&self, shard: Shard, sku: &Sku) -> String {
        format!("cached:{}:{sku}", self.tag(shard))
    }

    /// A string that exists until an attempt with `WATCH` expires. `field` names the dedup entry. The script
    /// `prelude.lua` makes the same name.
    pub(super) fn attempt(&self, shard: Shard, field: &str) -> String {
        format!("attempt:{}:{field}", self.tag(shard))
    }

    /// A hash: dedup entries of some time, in buckets of this length in milliseconds.
    pub(super) fn bucket(&self, shard: Shard, length: i64, number: usize) -> String {
        format!("dedup:{}:{length}:{number}", self.tag(shard))
    }

    /// A string: the dedup entry of an idempotency key in release 0.1.0, which this release only reads.
    pub(super) fn old_dedup(&self, shard: Shard, sku: &Sku, key: &Idempotency) -> String {
        let (tag, caller) = (self.tag(shard), key.caller.as_str());
        format!("op:{tag}:{sku}:{caller}:{}", key.key.as_str())
    }
}

/// The SKU in the key of a level.
pub(super) fn sku_of_level(key: &str) -> Result<Sku, String> {
    let mut parts = key.rsplit(':').skip(1);
    let sku = parts
        .next()
        .ok_or_else(|| format!("`{key}` is not the key of a level"))?;
    Sku::parse(sku).map_err(|error| error.to_string())
}

/// The field of [`Keys::counters`] with the last state of a level.
pub(super) fn last_state(level: &str) -> String {
    format!("last {level}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shard_of_a_sku_never_changes() {
        let shards = [("1001", 62), ("1001-redis", 6), ("a", 10), ("上海仓", 32)];
        for (sku, shard) in shards {
            let parsed = Sku::parse(sku).unwrap();
            assert_eq!(Shard::for_sku(&parsed), Shard(shard), "{sku}");
        }
    }
}
