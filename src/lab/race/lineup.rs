//! The line-up: which strategies run, and which are left out for what reason.

use serde::Serialize;

use super::RaceError;
use super::plan::{Entrants, RacePlan};
use super::row::as_text;
use super::service::{Listed, Service};
use super::target::Target;
use crate::strategy::Strategy;

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
        let mut service = Service::new(target);
        service.check_lab_mode(&plan.probe_path()).await?;
        lists.push(service.strategies().await?);
    }
    choose(&plan.strategies, &lists)
}

fn choose(entrants: &Entrants, lists: &[Vec<Listed>]) -> Result<Lineup, RaceError> {
    let (strategies, named): (&[Strategy], bool) = match entrants {
        Entrants::Everyone => (&Strategy::ALL, false),
        Entrants::Only(strategies) => (strategies, true),
    };
    let mut lineup = Lineup::default();
    for &strategy in strategies {
        match lists.iter().find_map(|list| why_not(strategy, list)) {
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

fn why_not(strategy: Strategy, list: &[Listed]) -> Option<String> {
    if strategy.card().home == "redis" {
        return Some("its stock lives in Redis, and the race's in SQL".to_owned());
    }
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
        let lineup = choose(&Entrants::Everyone, &lists).unwrap();
        assert_eq!(lineup.running, [Strategy::SingleSql]);
        let redis = lineup
            .skipped
            .iter()
            .find(|skipped| skipped.strategy == Strategy::RedisLock);
        assert_eq!(redis.unwrap().reason, "it needs Redis: set REDIS_URL");

        let named = Entrants::Only(vec![Strategy::SingleSql, Strategy::RedisLock]);
        let error = choose(&named, &lists).unwrap_err();
        assert_eq!(
            error.to_string(),
            "strategy redis-lock cannot run: it needs Redis: set REDIS_URL"
        );
    }

    #[test]
    fn a_race_of_nobody_is_refused() {
        let error = choose(&Entrants::Everyone, &[Vec::new()]).unwrap_err();
        assert!(matches!(error, RaceError::NobodyRuns));
    }
}
