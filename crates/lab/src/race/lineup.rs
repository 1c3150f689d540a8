//! The line-up: the strategies that run, and the ones that are skipped.

use serde::Serialize;

use super::RaceError;
use super::plan::{Entrants, RacePlan};
use super::replica_client::{Listed, ReplicaClient};
use super::row::as_text;
use super::target::Target;
use stocklock_core::stock::Home;
use stocklock_core::strategy::Strategy;

/// A strategy that does not run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// The strategy.
    #[serde(serialize_with = "as_text")]
    pub strategy: Strategy,
    /// The reason.
    pub reason: String,
}

/// The strategies that run, and the ones that do not.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Lineup {
    pub(super) running: Vec<Strategy>,
    pub(super) skipped: Vec<Skipped>,
}

impl Lineup {
    /// Asks every target for its strategies. A strategy runs if all targets have it.
    pub(super) async fn new(plan: &RacePlan, targets: &[Target]) -> Result<Self, RaceError> {
        let mut lists = Vec::with_capacity(targets.len());
        for target in targets {
            let mut client = ReplicaClient::new(target);
            client.check_lab_mode(&plan.probe_path()).await?;
            lists.push(client.strategies().await?);
        }
        Self::from_lists(&plan.strategies, plan.home, &lists)
    }

    fn from_lists(
        entrants: &Entrants,
        home: Home,
        lists: &[Vec<Listed>],
    ) -> Result<Self, RaceError> {
        let (strategies, named): (&[Strategy], bool) = match entrants {
            Entrants::Everyone => (&Strategy::ALL, false),
            Entrants::Only(strategies) => (strategies, true),
        };
        let mut lineup = Self::default();
        for &strategy in strategies {
            let obstacle = wrong_home(strategy, home)
                .or_else(|| lists.iter().find_map(|list| unavailable(strategy, list)));
            match obstacle {
                None => lineup.running.push(strategy),
                Some(reason) if named => return Err(RaceError::Unavailable(strategy, reason)),
                Some(reason) => lineup.skipped.push(Skipped { strategy, reason }),
            }
        }
        if lineup.running.is_empty() {
            return Err(RaceError::NoStrategy);
        }
        Ok(lineup)
    }
}

/// The reason if the strategy does not support stock with this home.
fn wrong_home(strategy: Strategy, home: Home) -> Option<String> {
    let reason = match home {
        Home::Sql => "it needs stock in Redis (--home redis)",
        Home::Redis => "it needs stock in SQL (--home sql)",
    };
    (!strategy.card().homes.include(home)).then(|| reason.to_owned())
}

/// The reason if the target with this list cannot run the strategy.
fn unavailable(strategy: Strategy, list: &[Listed]) -> Option<String> {
    match list.iter().find(|listed| listed.name == strategy.name()) {
        None => Some("a target does not know it".to_owned()),
        Some(listed) if listed.available => None,
        Some(Listed { reason, .. }) => {
            let reason = reason.as_deref().unwrap_or("a target gives no reason");
            Some(reason.to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_REDIS: &str = "it needs Redis: set REDIS_URL";

    fn list(strategies: &[(&str, bool)]) -> Vec<Listed> {
        let listed = |(name, available): &(&str, bool)| Listed {
            name: (*name).to_owned(),
            available: *available,
            reason: (!available).then(|| NO_REDIS.to_owned()),
        };
        strategies.iter().map(listed).collect()
    }

    /// The strategies that run, and the reason why `strategy` does not.
    fn choose(home: Home, lists: &[Vec<Listed>], strategy: Strategy) -> (Vec<Strategy>, String) {
        let lineup = Lineup::from_lists(&Entrants::Everyone, home, lists).unwrap();
        let mut skipped = lineup.skipped.into_iter();
        let reason = skipped
            .find(|skipped| skipped.strategy == strategy)
            .unwrap()
            .reason;
        let named = Entrants::Only(vec![strategy]);
        let error = Lineup::from_lists(&named, home, lists).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("strategy {strategy} cannot run: {reason}")
        );
        (lineup.running, reason)
    }

    #[test]
    fn strategy_that_one_target_lacks_is_skipped_or_refused() {
        let lists = [
            list(&[("single-sql", true), ("redis-lock", true)]),
            list(&[("single-sql", true), ("redis-lock", false)]),
        ];
        let expected = (vec![Strategy::SingleSql], NO_REDIS.to_owned());
        assert_eq!(choose(Home::Sql, &lists, Strategy::RedisLock), expected);
        let error = Lineup::from_lists(&Entrants::Everyone, Home::Sql, &[Vec::new()]).unwrap_err();
        assert!(matches!(error, RaceError::NoStrategy));
    }

    #[test]
    fn strategy_for_the_other_home_is_skipped_or_refused() {
        let all = ["no-lock", "single-sql", "redis-lua"].map(|name| (name, true));
        let lists = [list(&all)];
        let (running, reason) = choose(Home::Sql, &lists, Strategy::RedisLua);
        assert_eq!(running, [Strategy::NoLock, Strategy::SingleSql]);
        assert_eq!(reason, "it needs stock in Redis (--home redis)");
        let (running, reason) = choose(Home::Redis, &lists, Strategy::SingleSql);
        assert_eq!(running, [Strategy::NoLock, Strategy::RedisLua]);
        assert_eq!(reason, "it needs stock in SQL (--home sql)");
    }
}
