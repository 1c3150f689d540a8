//! Which entries a consumer reads for a batch.

use super::JournalConsumer;
use super::leases::Done;
use crate::redis::keys::Shard;
use crate::redis::streams::{Size, Source, StreamEntry};

/// Entries of one shard that a consumer wants to apply.
#[derive(Debug)]
pub(super) struct Portion {
    pub(super) shard: Shard,
    /// The id to start from, as `XRANGE` takes it.
    pub(super) start: String,
    /// The maximum number of entries.
    pub(super) count: usize,
}

impl JournalConsumer {
    /// The shards whose journals fill a batch, each with its number of entries. The shards take turns.
    pub(super) fn choose(&mut self, sizes: &[Option<Size>]) -> Vec<(Shard, usize)> {
        let mut left = self.size as u64;
        let mut chosen = Vec::new();
        let shards: Vec<_> = Shard::all().zip(sizes).collect();
        self.next %= shards.len();
        for &(shard, size) in shards.iter().cycle().skip(self.next).take(shards.len()) {
            if left == 0 {
                break;
            }
            if let Some(size) = size
                && size.entries > 0
            {
                // As many entries as have `left` movements, if all have equally many.
                let count = (left * size.entries).div_ceil(size.movements);
                chosen.push((shard, usize::try_from(count).unwrap_or(usize::MAX)));
                left = left.saturating_sub(size.movements);
            }
            self.next += 1;
        }
        chosen
    }

    pub(super) fn portions(
        &self,
        source: Source,
        chosen: impl IntoIterator<Item = (Shard, usize)>,
    ) -> Vec<Portion> {
        let portion = |(shard, count)| Portion {
            shard,
            start: match self.starts.get(&(source, shard)) {
                Some(last) => format!("({last}"),
                None => "-".to_owned(),
            },
            count,
        };
        chosen.into_iter().map(portion).collect()
    }

    /// If entries stay in their stream, the next batch starts after those that this one has read.
    pub(super) fn skip_staying(
        &mut self,
        source: Source,
        portion: &Portion,
        read: Option<&[StreamEntry]>,
        done: &Done<'_>,
    ) {
        let Some(read) = read else { return };
        let place = (source, portion.shard);
        let any_stays = done.len_of(portion.shard) < read.len();
        match read.last() {
            Some(last) if any_stays && read.len() >= portion.count => {
                self.starts.insert(place, last.id.clone());
            }
            _ => _ = self.starts.remove(&place),
        }
    }
}
