//! How much Redis can still take: the limits of the journals, and the memory of the server.
//!
//! Guarantee: changes are refused while Redis still has memory, if it is asked often enough. So the answer
//! names the cause, what was done before is still found, and locks and the consumer can write.

use std::sync::atomic::{AtomicBool, Ordering};

use redis::Pipeline;

use super::RedisStore;
use super::binding::field;
use super::errors::bad_answer;
use crate::StoreError;

/// From this share of `maxmemory` on, a warning is logged.
const HIGH: f64 = 0.75;

/// From this share of `maxmemory` on, changes are refused.
const FULL: f64 = 0.9;

/// The limits of changes.
#[derive(Debug)]
pub(super) struct Capacity {
    journal_limit: u32,
    journal_limit_bytes: u64,
    journals_are_full: AtomicBool,
    memory_is_high: AtomicBool,
    memory_is_full: AtomicBool,
}

impl Capacity {
    pub(super) fn new(journal_limit: u32, journal_limit_bytes: u64) -> Self {
        Self {
            journal_limit,
            journal_limit_bytes,
            journals_are_full: AtomicBool::new(false),
            memory_is_high: AtomicBool::new(false),
            memory_is_full: AtomicBool::new(false),
        }
    }

    /// The maximum number of movements in a journal; 0 if no change is possible, because the journals
    /// together or the server have no memory left.
    pub(super) fn movements(&self) -> u32 {
        if is_set(&self.memory_is_full) || is_set(&self.journals_are_full) {
            0
        } else {
            self.journal_limit
        }
    }

    /// The error of a change that the limit refuses.
    pub(super) fn exceeded(&self) -> StoreError {
        if is_set(&self.memory_is_full) {
            StoreError::MemoryFull
        } else if is_set(&self.journals_are_full) {
            StoreError::JournalBytesFull
        } else {
            StoreError::JournalFull
        }
    }

    /// Applies how many bytes the journals take. If that is unknown, the last answer stays valid.
    fn update_journals(&self, bytes: &Result<u64, StoreError>) {
        let Ok(bytes) = *bytes else { return };
        let are_full = bytes >= self.journal_limit_bytes;
        let were_full = self.journals_are_full.swap(are_full, Ordering::Relaxed);
        if are_full && !were_full {
            tracing::error!(
                bytes,
                "the journals in Redis have reached JOURNAL_LIMIT_BYTES, so changes of stock in Redis \
                 are refused; the SQL database is too slow, or does not answer"
            );
        } else if were_full && !are_full {
            tracing::info!("changes of stock in Redis are no longer refused for full journals");
        }
    }

    /// Applies what the server says. `used`: the used share of `maxmemory`, or `None` if there is no
    /// maximum. If the server does not say it, its last answer stays valid.
    fn update(&self, used: &Result<Option<f64>, StoreError>) {
        let Ok(used) = *used else { return };
        let reaches = |share| used.is_some_and(|used| used >= share);
        let share = used.unwrap_or_default();
        let (is_high, is_full) = (reaches(HIGH), reaches(FULL));
        let was_high = self.memory_is_high.swap(is_high, Ordering::Relaxed);
        let was_full = self.memory_is_full.swap(is_full, Ordering::Relaxed);
        if is_full && !was_full {
            tracing::error!(
                share,
                "Redis has used so much of its maxmemory that changes of stock in it are refused; \
                 increase maxmemory"
            );
        } else if is_high && !was_high {
            tracing::warn!(
                share,
                "Redis has used much of its maxmemory; from 90 percent on, changes of stock in it are \
                 refused; increase maxmemory"
            );
        } else if was_full && !is_full {
            tracing::info!("changes of stock in Redis are no longer refused for lack of memory");
        }
    }
}

fn is_set(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Relaxed)
}

impl RedisStore {
    /// Asks the server how many bytes its journals take, and applies the limit from then on.
    pub(crate) async fn check_journals(&self) -> Result<u64, StoreError> {
        let bytes = self.journal_bytes().await;
        self.capacity.update_journals(&bytes);
        bytes
    }

    async fn journal_bytes(&self) -> Result<u64, StoreError> {
        let keys = self.keys_to_read().await?;
        // From a sample of the stream, so the time does not depend on its length.
        let usage = |shard, commands: &mut Pipeline| {
            commands.cmd("MEMORY").arg("USAGE").arg(keys.journal(shard));
        };
        let bytes: Vec<[Option<u64>; 1]> = self.nodes.read_shards(keys, None, usage).await?;
        Ok(bytes.into_iter().flatten().flatten().sum())
    }

    /// Asks the server for its memory, and applies the limit from then on. Returns the used share of
    /// `maxmemory`, or `None` if there is no maximum. In a cluster, of the node that has most of it used.
    pub(crate) async fn check_memory(&self) -> Result<Option<f64>, StoreError> {
        let used = self.used_memory().await;
        self.capacity.update(&used);
        used
    }

    async fn used_memory(&self) -> Result<Option<f64>, StoreError> {
        let keys = self.keys_to_read().await?;
        let mut info = redis::pipe();
        info.cmd("INFO").arg("memory");
        let answers: Vec<[String; 1]> = self
            .nodes
            .connections(keys.slots())
            .await?
            .query_all(&info)
            .await?;
        let used = answers.iter().map(|[info]| parse_memory(info));
        let used = used.collect::<Result<Vec<_>, _>>()?;
        Ok(used.into_iter().flatten().reduce(f64::max))
    }
}

/// The used share of `maxmemory`, from the answer to `INFO memory`. `None`: there is no maximum.
fn parse_memory(info: &str) -> Result<Option<f64>, StoreError> {
    let number = |name| -> Result<f64, StoreError> {
        let number = field(info, name).and_then(|text| text.trim().parse().ok());
        number.ok_or_else(|| bad_answer(info))
    };
    let limit = number("maxmemory")?;
    // What `maxmemory` does not limit: buffers of replicas and of the append-only file.
    let used = number("used_memory")? - number("mem_not_counted_for_evict")?;
    Ok((limit > 0.0).then(|| used / limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_of_the_memory_is_parsed() {
        let info = |limit, not_counted| {
            format!(
                "# Memory\r\nused_memory:600\r\nused_memory_human:600B\r\nmaxmemory:{limit}\r\n\
                 mem_not_counted_for_evict:{not_counted}\r\n"
            )
        };
        for (limit, not_counted, share) in
            [(1000, 0, Some(0.6)), (1000, 100, Some(0.5)), (0, 0, None)]
        {
            assert_eq!(parse_memory(&info(limit, not_counted)).unwrap(), share);
        }
        assert!(parse_memory("# Memory\r\n").is_err());
    }

    #[test]
    fn full_memory_takes_the_place_of_the_journal_limit() {
        let capacity = Capacity::new(7, 100);
        for (used, movements, is_memory) in [
            (None, 7, false),
            (Some(0.89), 7, false),
            (Some(0.9), 0, true),
            (Some(0.5), 7, false),
            (Some(1.2), 0, true),
            (None, 7, false),
        ] {
            // An error changes nothing.
            for answer in [Ok(used), Err(bad_answer(""))] {
                capacity.update(&answer);
                assert_eq!(capacity.movements(), movements, "{used:?}");
                let is_full = matches!(capacity.exceeded(), StoreError::MemoryFull);
                assert_eq!(is_full, is_memory, "{used:?}");
            }
        }
    }

    #[test]
    fn full_journals_take_the_place_of_the_journal_limit() {
        let capacity = Capacity::new(7, 100);
        for (bytes, movements, are_full) in [
            (99, 7, false),
            (100, 0, true),
            (0, 7, false),
            (101, 0, true),
        ] {
            // An error changes nothing.
            for answer in [Ok(bytes), Err(bad_answer(""))] {
                capacity.update_journals(&answer);
                assert_eq!(capacity.movements(), movements, "{bytes:?}");
                let named = matches!(capacity.exceeded(), StoreError::JournalBytesFull);
                assert_eq!(named, are_full, "{bytes:?}");
            }
        }
    }
}
