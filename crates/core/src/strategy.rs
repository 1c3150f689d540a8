//! The strategies: the closed set of ways to protect a deduction, and what they work with.
//!
//! One file per strategy. Each file opens with four lines, *Guarantees, Costs, Fails when, Use
//! when*, which `GET /strategies` also answers. `Strategy::attempt` is the one `match`.
//!
//! A strategy neither spawns nor sleeps by a clock: every await in it is a call of the store, of a
//! mutex or lock, or of the injected sleep. So tests can explore every interleaving.

use std::fmt;
use std::str::FromStr;

use crate::names::named;
pub use crate::ports::Dependency;
use crate::ports::{AttemptOutcome, CounterMethod, StoreError};
use crate::stock::{Operation, StockError};

mod available;
mod card;
mod context;
mod for_update;
mod group_commit;
mod local_mutex;
mod locked;
mod mutexes;
mod no_lock;
mod optimistic;
mod read_check;
mod redis_get_set;
mod redis_lock;
mod redis_lua;
mod redis_watch;
mod redlock;
mod single_sql;
mod sql_lock;
mod zookeeper_lock;

pub use available::Available;
pub use card::Card;
pub use context::{DeductionContext, DeductionRun, Locks, Safeguards};
pub use mutexes::LocalMutexes;

/// Declares the enum, the list of all strategies, and the card and the code of each, from one list: name, file,
/// name in the API, tier, and the server that it needs beside the database.
macro_rules! strategies {
    ($(
        $(#[$doc:meta])+
        $name:ident => $module:ident, $text:literal, $tier:ident, [$($need:ident)?];
    )+) => {
        /// A way to protect a deduction.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Strategy { $($(#[$doc])+ $name,)+ }

        impl Strategy {
            /// Every strategy, in the order in which they are shown.
            pub const ALL: [Self; [$(stringify!($name)),+].len()] = [$(Self::$name),+];

            /// Name, tier, dependencies, and the four lines.
            #[must_use]
            pub fn card(self) -> &'static Card {
                match self { $(Self::$name => &Card {
                    name: $text,
                    tier: Tier::$tier,
                    needs: &[$(Dependency::$need)?],
                    source: include_str!(concat!("strategy/", stringify!($module), ".rs")),
                },)+ }
            }

            /// One attempt to deduct: the one place where a strategy becomes code.
            pub(crate) async fn attempt(
                self,
                run: &DeductionRun<'_>,
            ) -> Result<AttemptOutcome, StoreError> {
                match self { $(Self::$name => $module::attempt(run).await,)+ }
            }
        }
    };
}

strategies! {
    /// Nothing: read, check, write.
    NoLock => no_lock, "no-lock", Unsafe, [];
    /// An in-process mutex around read, check, write.
    LocalMutex => local_mutex, "local-mutex", Unsafe, [];
    /// `GET`, check, `SET` on a counter in Redis, then the level in SQL is set.
    RedisGetSet => redis_get_set, "redis-get-set", Unsafe, [Redis];
    /// One guarded SQL statement.
    SingleSql => single_sql, "single-sql", Safe, [];
    /// `SELECT … FOR UPDATE`, check, write.
    ForUpdate => for_update, "for-update", Safe, [];
    /// Read the version, write if the version is still the same, else retry.
    Optimistic => optimistic, "optimistic", Safe, [];
    /// Many waiting deductions of one level in one transaction.
    GroupCommit => group_commit, "group-commit", Safe, [];
    /// A row in a table of locks around read, check, write.
    SqlLock => sql_lock, "sql-lock", Guarded, [];
    /// A Redis lock around read, check, write.
    RedisLock => redis_lock, "redis-lock", Guarded, [Redis];
    /// A lock on a majority of Redis masters around read, check, write.
    Redlock => redlock, "redlock", Guarded, [RedisMasters];
    /// A `ZooKeeper` lock around read, check, write.
    ZookeeperLock => zookeeper_lock, "zookeeper-lock", Guarded, [Zookeeper];
    /// A counter in Redis, changed by `WATCH`, `MULTI`, `EXEC`, in front of `group-commit`.
    RedisWatch => redis_watch, "redis-watch", Safe, [Redis];
    /// A counter in Redis, changed by one Lua script, in front of `group-commit`.
    RedisLua => redis_lua, "redis-lua", Safe, [Redis];
}

impl Strategy {
    /// The refusal of a deduction that no attempt has been made of, if it needs none.
    pub(crate) fn known_refusal(
        self,
        context: &DeductionContext,
        deduction: &Operation,
    ) -> Option<StockError> {
        match self {
            Self::GroupCommit => group_commit::known_refusal(context, deduction),
            _ => None,
        }
    }

    /// How it asks the counter in Redis before its first attempt, if it does.
    pub(crate) fn asks(self) -> Option<CounterMethod> {
        match self {
            Self::RedisGetSet => Some(CounterMethod::GetSet),
            Self::RedisWatch => Some(CounterMethod::Watch),
            Self::RedisLua => Some(CounterMethod::Script),
            _ => None,
        }
    }

    /// The name in the API, kebab-case.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.card().name
    }

    /// All names, in the order of [`Strategy::ALL`].
    #[must_use]
    pub fn names() -> Vec<&'static str> {
        Self::ALL.into_iter().map(Self::name).collect()
    }

    /// What it promises.
    #[must_use]
    pub fn tier(self) -> Tier {
        self.card().tier
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The name of no strategy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no such strategy; use one of {}", Strategy::names().join(", "))]
pub struct UnknownStrategy;

impl FromStr for Strategy {
    type Err = UnknownStrategy;

    fn from_str(name: &str) -> Result<Self, UnknownStrategy> {
        let mut all = Self::ALL.into_iter();
        all.find(|strategy| strategy.name() == name)
            .ok_or(UnknownStrategy)
    }
}

named! {
    /// What a strategy promises.
    pub enum Tier {
        /// Never oversells under any fault, on one durable primary.
        Safe = "safe",
        /// Never oversells: if the lock was lost and another order has written since, the write is refused.
        Guarded = "guarded",
        /// Oversells, on purpose.
        Unsafe = "unsafe",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_parses_back() {
        for strategy in Strategy::ALL {
            assert_eq!(strategy.name().parse(), Ok(strategy));
        }
        assert_eq!("No-Lock".parse::<Strategy>(), Err(UnknownStrategy));
    }
}
