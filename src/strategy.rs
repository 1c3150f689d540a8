//! The strategies: the closed set of ways to protect a deduction.
//!
//! One file per way under `strategy/`, each opening with the four lines *Guarantees, Costs, Fails
//! when, Use when*; those lines are also what `GET /strategies` answers. `attempt` is the one
//! `match`. [`Protection`] turns attempts into an answer (retries, replays, unknown commits), and
//! the [`Deductor`] runs it in a task of its own, so that nobody's disconnect can cut it short.

use std::fmt;
use std::str::FromStr;

use crate::stock::{Deduction, Home};
use crate::store::{Attempt, StoreError};

mod card;
mod deductor;
mod for_update;
mod local_mutex;
mod lock;
mod lock_meter;
mod locked;
mod locks;
mod no_lock;
mod optimistic;
mod planned;
mod protection;
mod read_check;
mod redis_lock;
mod redis_lua;
mod redis_watch;
mod service;
mod single_sql;
mod tenure;
mod zookeeper_lock;

pub use card::Card;
pub use deductor::{DeductOrder, Deductor};
pub use local_mutex::LocalMutexes;
pub use lock::{Held, Lock, ManagedLock};
pub use locked::Safeguards;
pub use locks::{LockSettings, Locks};
pub use protection::Protection;
pub use service::{Service, Services};
use tenure::Tenure;

/// A way to protect a deduction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Strategy {
    /// Nothing: read, check, write back.
    NoLock,
    /// An in-process mutex around read, check, write.
    LocalMutex,
    /// One guarded SQL statement.
    SingleSql,
    /// `SELECT … FOR UPDATE`, check, write.
    ForUpdate,
    /// Read with version, write if the version is still the same, else again.
    Optimistic,
    /// Many waiting deductions in one transaction.
    GroupCommit,
    /// A Redis lock around read, check, write.
    RedisLock,
    /// A majority of independent Redis masters around it.
    Redlock,
    /// A `ZooKeeper` lock around it.
    ZookeeperLock,
    /// A lock table in the SQL database around it.
    SqlLock,
    /// `WATCH`, `MULTI`, `EXEC` on Redis.
    RedisWatch,
    /// One atomic Lua script on Redis.
    RedisLua,
}

/// What a strategy promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tier {
    /// Never oversells, on one durable primary, whatever fails.
    Safe,
    /// Never oversells either: a lost lock is found out by the conditional write.
    Guarded,
    /// Never oversells while Redis keeps its data.
    Volatile,
    /// Oversells, on purpose.
    Unsafe,
}

impl Tier {
    /// The name at every edge.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Safe => "safe",
            Self::Guarded => "guarded",
            Self::Volatile => "volatile",
            Self::Unsafe => "unsafe",
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The name is none of a strategy's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no such strategy; there are {}", Strategy::names().join(", "))]
pub struct UnknownStrategy;

impl Strategy {
    /// Every strategy, in the order in which they are shown.
    pub const ALL: [Self; 12] = [
        Self::NoLock,
        Self::LocalMutex,
        Self::SingleSql,
        Self::ForUpdate,
        Self::Optimistic,
        Self::GroupCommit,
        Self::RedisLock,
        Self::Redlock,
        Self::ZookeeperLock,
        Self::SqlLock,
        Self::RedisWatch,
        Self::RedisLua,
    ];

    /// The name at every edge, kebab-case.
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

    /// What it promises for stock that lives there: in Redis nothing better than
    /// [`Tier::Volatile`], for what Redis loses no protection brings back.
    #[must_use]
    pub fn tier_on(self, home: Home) -> Tier {
        match (home, self.tier()) {
            (Home::Redis, Tier::Safe | Tier::Guarded) => Tier::Volatile,
            (_, tier) => tier,
        }
    }

    /// Whether it works on stock that lives there.
    #[must_use]
    pub fn works_on(self, home: Home) -> bool {
        let works_on = self.card().home;
        works_on == "either" || works_on == home.as_str()
    }

    /// What is known of it: tier, home, needs, and the four lines.
    #[must_use]
    pub fn card(self) -> &'static Card {
        match self {
            Self::NoLock => &no_lock::CARD,
            Self::LocalMutex => &local_mutex::CARD,
            Self::SingleSql => &single_sql::CARD,
            Self::ForUpdate => &for_update::CARD,
            Self::Optimistic => &optimistic::CARD,
            Self::GroupCommit => &planned::GROUP_COMMIT,
            Self::RedisLock => &redis_lock::CARD,
            Self::Redlock => &planned::REDLOCK,
            Self::ZookeeperLock => &zookeeper_lock::CARD,
            Self::SqlLock => &planned::SQL_LOCK,
            Self::RedisWatch => &redis_watch::CARD,
            Self::RedisLua => &redis_lua::CARD,
        }
    }

    /// Why it cannot be used with these services, or `None` when it can.
    #[must_use]
    pub fn unavailable(self, services: Services) -> Option<String> {
        let card = self.card();
        if card.planned {
            return Some("not built yet in this version".to_owned());
        }
        let missing = card.needs.iter().find(|service| !services.has(**service))?;
        let (title, variable) = (missing.title(), missing.variable());
        Some(format!("it needs {title}: set {variable}"))
    }

    /// The strategies that can be used with these services.
    pub fn available(services: Services) -> impl Iterator<Item = Self> {
        Self::ALL
            .into_iter()
            .filter(move |strategy| strategy.unavailable(services).is_none())
    }

    /// The lock that it puts around a deduction, if it puts one there and `locks` has it.
    #[must_use]
    pub fn lock(self, locks: &Locks) -> Option<&dyn Lock> {
        match self {
            Self::RedisLock => locks.get(Service::Redis),
            Self::ZookeeperLock => locks.get(Service::Zookeeper),
            _ => None,
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Strategy {
    type Err = UnknownStrategy;
    fn from_str(name: &str) -> Result<Self, UnknownStrategy> {
        Self::ALL
            .into_iter()
            .find(|strategy| strategy.name() == name)
            .ok_or(UnknownStrategy)
    }
}

/// One attempt: the one place where a strategy becomes code.
async fn attempt(
    strategy: Strategy,
    protection: &Protection<'_>,
    tenure: Option<&Tenure<'_>>,
    deduction: &Deduction,
) -> Result<Attempt, StoreError> {
    let Protection {
        store,
        mutexes,
        policy,
        ..
    } = *protection;
    match strategy {
        Strategy::NoLock => no_lock::attempt(store, deduction).await,
        Strategy::LocalMutex => local_mutex::attempt(store, mutexes, policy, deduction).await,
        Strategy::SingleSql => single_sql::attempt(store, deduction).await,
        Strategy::ForUpdate => for_update::attempt(store, deduction).await,
        Strategy::Optimistic => optimistic::attempt(protection, deduction).await,
        Strategy::RedisLock | Strategy::ZookeeperLock => {
            let tenure = tenure.expect("`Protection` gives every lock strategy its lock");
            locked::attempt(protection, tenure, deduction).await
        }
        Strategy::RedisWatch => redis_watch::attempt(store, deduction).await,
        Strategy::RedisLua => redis_lua::attempt(store, deduction).await,
        Strategy::GroupCommit | Strategy::Redlock | Strategy::SqlLock => {
            unreachable!("`Protection` refuses what is not available")
        }
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

    #[test]
    fn stock_in_redis_is_at_best_volatile() {
        for strategy in Strategy::ALL {
            assert_eq!(strategy.tier_on(Home::Sql), strategy.tier(), "{strategy}");
            let expected = match strategy.tier() {
                Tier::Unsafe => Tier::Unsafe,
                Tier::Safe | Tier::Guarded | Tier::Volatile => Tier::Volatile,
            };
            assert_eq!(strategy.tier_on(Home::Redis), expected, "{strategy}");
        }
    }

    #[test]
    fn a_strategy_works_on_its_own_home_or_on_either() {
        let on = |strategy: Strategy| [Home::Sql, Home::Redis].map(|home| strategy.works_on(home));
        assert_eq!(on(Strategy::SingleSql), [true, false]);
        assert_eq!(on(Strategy::RedisLua), [false, true]);
        assert_eq!(on(Strategy::NoLock), [true, true]);
    }

    #[test]
    fn every_card_says_all_four_things() {
        for strategy in Strategy::ALL {
            let card = strategy.card();
            for text in [
                card.guarantees(),
                card.costs(),
                card.fails_when(),
                card.use_when(),
            ] {
                assert!(text.len() > 10, "{strategy}: {text:?}");
            }
        }
    }
}
