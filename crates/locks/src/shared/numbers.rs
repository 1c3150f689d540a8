//! Shared numbers: what a back end stores for counters, latches and barriers, and a table of them in
//! memory, used by the back ends `local` and `memory`.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::shared::clock::Moment;
use crate::shared::error::BackendError;
use crate::shared::lock::lock;
use crate::shared::nonce::Nonce;
use crate::shared::topics::Topics;

/// The fewest numbers at which the table looks for expired ones.
const PRUNE_FROM: usize = 64;

/// Identifies a number.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NumberKey {
    /// What it is used for. Numbers of different kinds do not affect each other.
    pub kind: &'static str,
    /// The name that the user chose.
    pub name: Arc<str>,
}

impl NumberKey {
    /// The topic on which changes of the number are published.
    pub(crate) fn topic(&self) -> String {
        format!("{}:{}", self.kind, self.name)
    }
}

/// How to change a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// Adds this.
    Add(i64),
    /// Replaces the number.
    Set(i64),
    /// Replaces the number if it is the expected one.
    Exchange {
        /// What the number must be.
        expected: i64,
        /// What it then becomes.
        to: i64,
    },
    /// Removes the number. With a value, only if the number is that.
    Remove {
        /// What the number must be.
        only: Option<i64>,
    },
}

impl Change {
    /// Returns what this makes of a number. `None` if it changes nothing.
    pub(crate) fn apply(self, value: i64) -> Result<Option<i64>, BackendError> {
        Ok(match self {
            Self::Add(by) => {
                let sum = value
                    .checked_add(by)
                    .ok_or("the sum does not fit into 64 bits");
                Some(sum.map_err(BackendError::permanent)?)
            }
            Self::Set(to) => Some(to),
            Self::Exchange { expected, to } => (value == expected).then_some(to),
            Self::Remove { only } => only.is_none_or(|only| value == only).then_some(0),
        })
    }
}

/// A request to change a number.
#[derive(Debug, Clone)]
pub struct NumberRequest {
    /// The number.
    pub key: NumberKey,
    /// Identifies the request, so that the server recognises a repetition.
    pub nonce: Nonce,
    /// What to do.
    pub change: Change,
    /// How long the number stays after this change. `None`: until it is removed. ZooKeeper ignores it.
    pub keep: Option<Duration>,
    /// What the last attempt wanted to replace.
    #[cfg(feature = "zookeeper")]
    pub(crate) tried: Arc<Mutex<Option<Replaced>>>,
}

impl NumberRequest {
    /// Creates a request with a new nonce.
    #[must_use]
    pub fn new(key: NumberKey, change: Change, keep: Option<Duration>) -> Self {
        Self {
            key,
            nonce: Nonce::random(),
            change,
            keep,
            #[cfg(feature = "zookeeper")]
            tried: Arc::default(),
        }
    }
}

/// The creation and the version of a node. Without a node: no creation, and version -1.
#[cfg(feature = "zookeeper")]
pub(crate) type Replaced = (Option<i64>, i32);

/// The result of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changed {
    /// The number after the request.
    pub value: i64,
    /// False if the number was not the expected one.
    pub is_changed: bool,
}

/// Numbers in memory.
#[derive(Debug, Default)]
pub(crate) struct NumberTable {
    rows: Mutex<Rows>,
    pub(crate) changed: Topics,
}

#[derive(Debug, Default)]
struct Rows {
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
    pub(crate) fn change(
        &self,
        now: Moment,
        request: &NumberRequest,
        remember: Duration,
    ) -> Result<Changed, BackendError> {
        let mut rows = lock(&self.rows);
        rows.forget_old_answers(now);
        if let Some(answer) = rows.answers.get(&request.nonce) {
            return Ok(*answer);
        }
        let value = rows.value(now, &request.key);
        let next = request.change.apply(value)?;
        if matches!(request.change, Change::Remove { .. }) {
            if next.is_some() {
                rows.numbers.remove(&request.key);
            }
        } else if let Some(value) = next {
            let expires_at = request.keep.map(|keep| now + keep);
            let row = Row { value, expires_at };
            rows.numbers.insert(request.key.clone(), row);
            rows.prune(now);
        }
        let answer = Changed {
            value: next.unwrap_or(value),
            is_changed: next.is_some(),
        };
        if !remember.is_zero() {
            rows.answers.insert(request.nonce, answer);
            rows.forget.push_back((now + remember, request.nonce));
        }
        Ok(answer)
    }

    pub(crate) fn value(&self, now: Moment, key: &NumberKey) -> i64 {
        lock(&self.rows).value(now, key)
    }

    /// Returns how many numbers there are.
    pub(crate) fn len(&self, now: Moment) -> usize {
        let rows = lock(&self.rows);
        rows.numbers.values().filter(|row| row.is_live(now)).count()
    }

    pub(crate) fn clear(&self) {
        *lock(&self.rows) = Rows::default();
    }
}

impl Rows {
    fn value(&self, now: Moment, key: &NumberKey) -> i64 {
        let row = self.numbers.get(key).filter(|row| row.is_live(now));
        row.map_or(0, |row| row.value)
    }

    fn forget_old_answers(&mut self, now: Moment) {
        while let Some((_, nonce)) = self.forget.pop_front_if(|(end, _)| *end <= now) {
            self.answers.remove(&nonce);
        }
    }

    /// Removes expired numbers if there are twice as many as after the last time.
    fn prune(&mut self, now: Moment) {
        if self.numbers.len() >= self.prune_at.max(PRUNE_FROM) {
            self.numbers.retain(|_, row| row.is_live(now));
            self.prune_at = self.numbers.len() * 2;
        }
    }
}
