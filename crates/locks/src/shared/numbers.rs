//! Shared numbers: what a back end stores for counters, latches and barriers.

use std::sync::Arc;
#[cfg(feature = "zookeeper")]
use std::sync::Mutex;
use std::time::Duration;

use crate::shared::error::BackendError;
use crate::shared::nonce::Nonce;

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
