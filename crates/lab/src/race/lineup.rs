//! The line-up: which strategies run, and which are left out for what reason.

use serde::Serialize;

use super::RaceError;
use super::plan::{Entrants, RacePlan};
use super::replica_client::{Listed, ReplicaClient};
use super::row::as_text;
use super::target::Target;
use stocklock_core::stock::Home;
use stocklock_core::strategy::Strategy;

/// A strategy that the targets cannot run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// Which one.
    #[serde(serialize_with = "as_text")]
    pub strategy: Strategy,
    /// Why.
    pub reason: String,
}

/// Who runs, and who does not.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Lineup {
    pub(super) running: Vec<Strategy>,
    pub(super) skipped: Vec<Skipped>,
}

/// Asks every target which strategies it has. One runs only where all targets have it.
pub(super) async fn draw_up(plan: &RacePlan, targets: &[Target]) -> Result<Lineup, RaceError> {
    let mut lists = Vec::with_capacity(targets.len());
    for target in targets {
        let mut service = ReplicaClient::new(target);
        service.check_lab_mode(&plan.probe_path()).await?;
        lists.push(service.strategies().await?);
    }
    choose(&plan.strategies, plan.home, &lists)
}

fn choose(entrants: &Entrants, home: Home, lists: &[Vec<Listed>]) -> Result<Lineup, RaceError> {
    let (strategies, named): (&[Strategy], bool) = match entrants {
        Entrants::Everyone => (&Strategy::ALL, false),
        Entrants::Only(strategies) => (strategies, true),
    };
    let mut lineup = Lineup::default();
    for &strategy in strategies {
        let why_not = not_at_home(strategy, home)
            .or_else(|| lists.iter().find_map(|list| not_at_target(strategy, list)));
        match why_not {
            None => lineup.running.push(strategy),
            Some(reason) if named => return Err(RaceError::Unavailable { strategy, reason }),
            Some(reason) => lineup.skipped.push(Skipped { strategy, reason }),
        }
    }
    if lineup.running.is_empty() {
        return Err(RaceError::NobodyRuns);
    }
    Ok(lineup)
}

/// Why it cannot sell stock that lives there.
fn not_at_home(strategy: Strategy, home: Home) -> Option<String> {
    let reason = match home {
        Home::Sql => "its stock lives in Redis, and the race's in SQL",
        Home::Redis => "its stock lives in SQL, and the race's in Redis",
    };
    (!strategy.card().homes.include(home)).then(|| reason.to_owned())
}

/// Why the target with this list cannot run it.
fn not_at_target(strategy: Strategy, list: &[Listed]) -> Option<String> {
    match list.iter().find(|listed| listed.name == strategy.name()) {
        None => Some("the target does not know it".to_owned()),
        Some(listed) if listed.available => None,
        Some(Listed { reason, .. }) => {
            let reason = reason.as_deref().unwrap_or("the target does not say why");
            Some(reason.to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(name: &str, available: bool) -> Listed {
        Listed {
            name: name.to_owned(),
            available,
            reason: (!available).then(|| "it needs Redis: set REDIS_URL".to_owned()),
        }
    }

    #[test]
    fn what_a_target_cannot_run_is_skipped_or_refused() {
        let lists = [
            vec![listed("single-sql", true), listed("redis-lock", true)],
            vec![listed("single-sql", true), listed("redis-lock", false)],
        ];
        let lineup = choose(&Entrants::Everyone, Home::Sql, &lists).unwrap();
        assert_eq!(lineup.running, [Strategy::SingleSql]);
        let redis = lineup
            .skipped
            .iter()
            .find(|skipped| skipped.strategy == Strategy::RedisLock);
        assert_eq!(redis.unwrap().reason, "it needs Redis: set REDIS_URL");

        let named = Entrants::Only(vec![Strategy::SingleSql, Strategy::RedisLock]);
        let error = choose(&named, Home::Sql, &lists).unwrap_err();
        assert_eq!(
            error.to_string(),
            "strategy redis-lock cannot run: it needs Redis: set REDIS_URL"
        );
    }

    #[test]
    fn who_works_on_the_other_home_is_skipped_or_refused() {
        let everyone = ["no-lock", "single-sql", "redis-lock", "redis-lua"];
        let lists = [everyone.map(|name| listed(name, true)).into()];
        for (home, running, other) in [
            (
                Home::Sql,
                [Strategy::NoLock, Strategy::SingleSql, Strategy::RedisLock],
                (
                    Strategy::RedisLua,
                    "its stock lives in Redis, and the race's in SQL",
                ),
            ),
            (
                Home::Redis,
                [Strategy::NoLock, Strategy::RedisLock, Strategy::RedisLua],
                (
                    Strategy::SingleSql,
                    "its stock lives in SQL, and the race's in Redis",
                ),
            ),
        ] {
            let lineup = choose(&Entrants::Everyone, home, &lists).unwrap();
            assert_eq!(lineup.running, running);
            let (strategy, reason) = (other.0, other.1.to_owned());
            let skipped = Skipped { strategy, reason };
            assert!(lineup.skipped.contains(&skipped), "{lineup:?}");

            let named = Entrants::Only(vec![strategy]);
            let error = choose(&named, home, &lists).unwrap_err();
            let told = format!("strategy {strategy} cannot run: {}", other.1);
            assert_eq!(error.to_string(), told);
        }
    }

    #[test]
    fn a_race_of_nobody_is_refused() {
        let error = choose(&Entrants::Everyone, Home::Sql, &[Vec::new()]).unwrap_err();
        assert!(matches!(error, RaceError::NobodyRuns));
    }
}
