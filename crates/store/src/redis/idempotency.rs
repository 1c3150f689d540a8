//! Dedup entries: the executed operations that Redis remembers, each with its movement. And what must be
//! looked up in SQL because Redis may have lost its dedup entry.
//!
//! Dedup entries are fields of hashes, the buckets of their shard. A bucket has the entries of some time,
//! and expires as a whole. Guarantee: an entry exists for at least [`Buckets::lifetime`], and all entries
//! that exist are found, also if the server's clock goes back.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD_NO_PAD as BASE64;
use redis::{Cmd, Pipeline};
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use uuid::Uuid;

use super::RedisStore;
use super::connection::millis;
use super::keys::{Keys, Shard};
use super::update::WriteRequest;
use crate::StoreError;
use crate::journal::{EntryId, dedup_entry, parse_dedup_entry, parse_old_line};
use crate::sql::ledger_row::LedgerRow;
use stocklock_core::ports::Server;
use stocklock_core::stock::{Idempotency, Movement, OperationId, Sku};

/// How many buckets are kept besides the one that is written.
const KEPT: u8 = 2;

/// How many hashes a shard has for dedup entries of one lifetime. They are used in turn: one is written, the
/// next one has expired, and the others are kept.
pub(super) const BUCKETS: usize = KEPT as usize + 2;

/// How long Redis keeps the dedup entry of an idempotency key at least.
const KEY_LIFETIME: Duration = Duration::from_hours(24);

/// How many request deadlines the bucket of an operation without a key lasts. Only the replica that created
/// the operation repeats it, and only until its deadline. The rest allows for steps of the server's clock.
const DEADLINES: u32 = 3;

/// The hashes that may have the dedup entry of an operation.
#[derive(Debug, Clone)]
pub(super) struct Buckets {
    pub(super) keys: [String; BUCKETS],
    /// How long each is written, in milliseconds.
    pub(super) length: i64,
}

impl Buckets {
    /// The buckets of operations with or without a key, whose requests have this deadline.
    pub(super) fn new(keys: &Keys, shard: Shard, has_key: bool, deadline: Duration) -> Self {
        let length = if has_key {
            KEY_LIFETIME / u32::from(KEPT)
        } else {
            deadline * DEADLINES
        };
        let length = i64::try_from(length.as_millis()).unwrap_or(i64::MAX).max(1);
        Self {
            keys: std::array::from_fn(|number| keys.bucket(shard, length, number)),
            length,
        }
    }

    /// How long an entry exists at least, in milliseconds.
    pub(super) fn lifetime(&self) -> i64 {
        i64::from(KEPT) * self.length
    }

    /// Adds the commands that write an entry at `now`, in milliseconds since 1970. The function `remember`
    /// of `scripts/prelude.lua` does the same.
    pub(super) fn remember(&self, commands: &mut Pipeline, now: i64, field: &str, entry: &str) {
        let number = now / self.length;
        let key = &self.keys[usize::try_from(number).unwrap_or_default() % BUCKETS];
        let expires = (number + i64::from(KEPT) + 1) * self.length;
        commands.hset(key, field, entry);
        commands.cmd("PEXPIREAT").arg(key).arg(expires);
    }
}

/// The name of a dedup entry in its bucket.
pub(super) fn field(sku: &Sku, operation: OperationId, key: Option<&Idempotency>) -> String {
    let Some(Idempotency { caller, key, .. }) = key else {
        return BASE64.encode(operation.0);
    };
    // With the SKU, because a key is unique per SKU even if two SKUs share a shard.
    let mut hash = Sha256::new();
    for text in [sku.as_str(), caller.as_str(), key.as_str()] {
        hash.update(text);
        hash.update([0]);
    }
    // A hash, because a key can be long. Two keys with the same 128 bits are not to be expected.
    BASE64.encode(&hash.finalize()[..16])
}

/// Whether SQL must be asked for an operation or its key, if Redis may have lost the dedup entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyCheck {
    Needed,
    /// SQL cannot have the operation.
    NotNeeded,
    /// SQL did not have it, when it was asked after the level was loaded at this time, in microseconds since 1970.
    /// If the level is loaded again, Redis may have lost the entry of another attempt since.
    Done {
        loaded: i64,
    },
}

impl KeyCheck {
    /// Whether SQL must be asked if the level was loaded then. The function `key_may_be_lost` of
    /// `scripts/prelude.lua` decides the same.
    pub(super) fn is_due(self, loaded: i64) -> bool {
        self == Self::Needed || matches!(self, Self::Done { loaded: then } if then != loaded)
    }

    /// How the scripts get it.
    pub(super) fn argument(self) -> String {
        match self {
            Self::Needed => String::new(),
            Self::NotNeeded => "1".to_owned(),
            Self::Done { loaded } => loaded.to_string(),
        }
    }
}

/// The operations without a key that have an attempt whose outcome is unknown, each with the time at
/// which its caller is answered at the latest. Other operations without a key cannot be in SQL.
#[derive(Debug, Default)]
pub(super) struct UnknownOutcomes(Mutex<HashMap<Uuid, Instant>>);

impl UnknownOutcomes {
    pub(super) fn have(&self, operation: Uuid) -> bool {
        self.lock().contains_key(&operation)
    }

    /// Remembers the operation if the outcome of this attempt is unknown. A later attempt that ends with a
    /// conflict changes nothing: it may not have looked in SQL.
    pub(super) fn observe<T>(
        &self,
        operation: Uuid,
        deadline: Instant,
        attempt: &Result<T, StoreError>,
    ) {
        if matches!(attempt, Err(StoreError::OutcomeUnknown(..))) {
            let (mut operations, now) = (self.lock(), Instant::now());
            operations.retain(|_, answered| *answered > now);
            operations.insert(operation, deadline);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, Instant>> {
        // No code panics while it holds this mutex.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RedisStore {
    /// Reads the movement in the dedup entry of this key, or of this operation if it has no key. Replicas
    /// have it too, if so configured.
    pub(crate) async fn remembered(
        &self,
        sku: &Sku,
        operation: OperationId,
        key: Option<&Idempotency>,
    ) -> Result<Option<Movement>, StoreError> {
        let (keys, shard) = (self.keys().await?, Shard::for_sku(sku));
        let deadline = self.options.request_deadline;
        let buckets = Buckets::new(keys, shard, key.is_some(), deadline);
        let field = field(sku, operation, key);
        let mut commands = redis::pipe();
        for bucket in &buckets.keys {
            commands.hget(bucket, &field);
        }
        if let Some(key) = key {
            commands.get(keys.old_dedup(shard, sku, key));
        }
        let slot = keys.slot(shard);
        let mut entries: Vec<Option<String>> = self.nodes.read_all(slot, &commands).await?;
        let is_found = entries.iter().any(Option::is_some);
        if is_found && self.writer.replicas > 0 {
            // The movement may be one that too few replicas had when it was written.
            entries = self.writer.read_replicated(&commands, keys, shard).await?;
        }
        let old = entries.split_off(BUCKETS).into_iter().flatten().next();
        let (parsed, entry) = match (entries.into_iter().flatten().next(), old) {
            (Some(entry), _) => (parse_dedup_entry(&entry, sku, key), entry),
            // The entry has no journal entry id, so the movement has no time.
            (None, Some(entry)) => (parse_old_line(&entry, EntryId::default()), entry),
            (None, None) => return Ok(None),
        };
        let row = parsed.map_err(|problem| {
            let problem = format!("this release cannot read the dedup entry {entry}: {problem}");
            StoreError::Unavailable(Server::Redis, problem.into())
        })?;
        row.movement().map(Some)
    }

    /// The dedup entry of a key that release 0.1.0 wrote.
    async fn old_entry(
        &self,
        keys: &Keys,
        sku: &Sku,
        key: &Idempotency,
    ) -> Result<Option<String>, StoreError> {
        let shard = Shard::for_sku(sku);
        let entry = Cmd::get(keys.old_dedup(shard, sku, key));
        self.nodes.read(keys.slot(shard), &entry).await
    }

    /// Looks up the operation among the entries of release 0.1.0 and in SQL, because Redis may have lost
    /// its dedup entry. Creates the entry of a key that is in SQL again. Returns whether the operation was
    /// executed.
    ///
    /// A movement in the journal still has its dedup entry. One that a consumer has read, and Redis has lost, is
    /// in SQL, or will be refused: no level is loaded before the ledger is bound to Redis again.
    pub(super) async fn restore(
        &self,
        request: &WriteRequest,
        key: Option<&Idempotency>,
    ) -> Result<bool, StoreError> {
        let (sku, operation) = (&request.row.sku, OperationId(request.row.operation_id));
        if let Some(key) = key {
            let keys = self.keys().await?;
            if self.old_entry(keys, sku, key).await?.is_some() {
                return Ok(true);
            }
        }
        let recorded = self.sql.recorded(sku, operation, key).await?;
        // In SQL a key is unique per caller, in Redis per caller and SKU.
        let Some(movement) = recorded.filter(|found| found.sku == *sku) else {
            return Ok(false);
        };
        let Some(key) = key else { return Ok(true) };
        let row = LedgerRow::from_movement(movement, key);
        let entry = dedup_entry(
            row.available_after,
            &row.common_text(),
            &row.movement_text(),
        );
        let slot = request.keys.slot;
        let now = self
            .nodes
            .read(slot, &redis::cmd("TIME"))
            .await
            .map(millis)?;
        let mut commands = redis::pipe();
        let (buckets, field) = (&request.keys.buckets, &request.field);
        buckets.remember(commands.atomic(), now, field, &entry);
        // `read_all` is correct here because these commands are safe to repeat.
        self.nodes.read_all::<()>(slot, &commands).await?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A conflict may come from a server that has lost the dedup entry.
    #[tokio::test]
    async fn outcome_stays_unknown_after_a_conflict() {
        let (unknown, operation) = (UnknownOutcomes::default(), Uuid::now_v7());
        let deadline = Instant::now() + Duration::from_secs(5);
        assert!(!unknown.have(operation));
        let lost = Err::<(), _>(StoreError::outcome_unknown("cut"));
        unknown.observe(operation, deadline, &lost);
        unknown.observe(operation, deadline, &Ok(()));
        assert!(unknown.have(operation));
    }

    /// Goal: no entry expires early, and the hash that is written has no entries that expire later.
    #[test]
    fn bucket_outlives_its_entries_and_not_its_turn() {
        let keys = Keys("1f".to_owned());
        let shard = Shard::all().next().expect("there are shards");
        for has_key in [true, false] {
            let buckets = Buckets::new(&keys, shard, has_key, Duration::from_secs(5));
            let least = if has_key { 24 * 3600 } else { 30 } * 1000;
            assert_eq!(buckets.lifetime(), least);
            for now in [0, 1, least - 1, least, 7 * least + least / 3] {
                let mut commands = redis::pipe();
                buckets.remember(&mut commands, now, "f", "e");
                let packed = commands.get_packed_pipeline();
                let words = String::from_utf8(packed).expect("UTF-8");
                let expires: i64 = words
                    .trim_end()
                    .rsplit("\r\n")
                    .next()
                    .unwrap()
                    .parse()
                    .unwrap();
                assert!(expires >= now + least, "{now} {expires}");
                let turn = (i64::from(KEPT) + 2) * buckets.length;
                let next_turn = (now / buckets.length) * buckets.length + turn;
                assert!(expires <= next_turn - buckets.length, "{now} {expires}");
            }
        }
    }
}
