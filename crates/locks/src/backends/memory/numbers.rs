//! Numbers in memory.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::shared::clock::Moment;
use crate::shared::error::BackendError;
use crate::shared::nonce::Nonce;
use crate::shared::numbers::{Change, Changed, NumberKey, NumberRequest};

/// The fewest numbers at which the table looks for expired ones.
const PRUNE_FROM: usize = 64;

#[derive(Debug, Default)]
pub(super) struct NumberTable {
    numbers: HashMap<NumberKey, Row>,
    /// The number of rows at which to look for expired ones.
    prune_at: usize,
    answers: HashMap<Nonce, Changed>,
    /// When to forget the answers, in that order.
    forget: VecDeque<(Moment, Nonce)>,
}

#[derive(Debug)]
struct Row {
    value: i64,
    expires_at: Option<Moment>,
}

impl Row {
    fn is_live(&self, now: Moment) -> bool {
        self.expires_at.is_none_or(|end| now < end)
    }
}

impl NumberTable {
    /// Changes a number, and remembers the answer for this long.
    pub(super) fn change(
        &mut self,
        now: Moment,
        request: &NumberRequest,
        remember: Duration,
    ) -> Result<Changed, BackendError> {
        while let Some((_, nonce)) = self.forget.pop_front_if(|(end, _)| *end <= now) {
            self.answers.remove(&nonce);
        }
        if let Some(answer) = self.answers.get(&request.nonce) {
            return Ok(*answer);
        }
        let value = self.value(now, &request.key);
        let next = request.change.apply(value)?;
        if matches!(request.change, Change::Remove { .. }) {
            if next.is_some() {
                self.numbers.remove(&request.key);
            }
        } else if let Some(value) = next {
            let expires_at = request.keep.map(|keep| now + keep);
            let row = Row { value, expires_at };
            self.numbers.insert(request.key.clone(), row);
            self.prune(now);
        }
        let answer = Changed {
            value: next.unwrap_or(value),
            is_changed: next.is_some(),
        };
        if !remember.is_zero() {
            self.answers.insert(request.nonce, answer);
            self.forget.push_back((now + remember, request.nonce));
        }
        Ok(answer)
    }

    pub(super) fn value(&self, now: Moment, key: &NumberKey) -> i64 {
        let row = self.numbers.get(key).filter(|row| row.is_live(now));
        row.map_or(0, |row| row.value)
    }

    pub(super) fn len(&self, now: Moment) -> usize {
        self.numbers.values().filter(|row| row.is_live(now)).count()
    }

    /// Removes expired numbers if there are twice as many as after the last time.
    fn prune(&mut self, now: Moment) {
        if self.numbers.len() >= self.prune_at.max(PRUNE_FROM) {
            self.numbers.retain(|_, row| row.is_live(now));
            self.prune_at = self.numbers.len() * 2;
        }
    }
}
