//! The line-up: the strategies that run, and the ones that are skipped.

use serde::{Serialize, Serializer};

use super::RaceError;
use super::plan::{Entrants, ONLY_GROUP_COMMIT, RacePlan};
use super::replica_client::Listed;
use super::text::as_text;
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

/// The strategies of a race.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Lineup {
    /// Those that run, in their order.
    #[serde(serialize_with = "as_names")]
    pub strategies: Vec<Strategy>,
    /// Those that cannot run here.
    pub skipped: Vec<Skipped>,
}

impl Lineup {
    /// Chooses the strategies of the plan for which `why_not` gives no reason.
    ///
    /// # Errors
    /// If a strategy that the plan names cannot run, or if none can.
    pub fn choose(
        plan: &RacePlan,
        why_not: impl Fn(Strategy) -> Option<String>,
    ) -> Result<Self, String> {
        let (named, is_named): (&[Strategy], bool) = match &plan.strategies {
            Entrants::Everyone if plan.is_only_for_group_commit() => {
                (&[Strategy::GroupCommit], true)
            }
            Entrants::Everyone => (&Strategy::ALL, false),
            Entrants::Only(strategies) => (strategies, true),
        };
        let (mut strategies, mut skipped) = (Vec::new(), Vec::new());
        for &strategy in named {
            let is_other = plan.is_only_for_group_commit() && strategy != Strategy::GroupCommit;
            let only = || ONLY_GROUP_COMMIT.to_owned();
            match is_other.then(only).or_else(|| why_not(strategy)) {
                None => strategies.push(strategy),
                Some(reason) if is_named => {
                    return Err(format!("strategy {strategy} cannot run: {reason}"));
                }
                Some(reason) => skipped.push(Skipped { strategy, reason }),
            }
        }
        if strategies.is_empty() {
            return Err("no strategy can run here".to_owned());
        }
        Ok(Self {
            strategies,
            skipped,
        })
    }
}

/// The line-up of targets that list their strategies like this.
pub(super) fn of_targets(plan: &RacePlan, lists: &[Vec<Listed>]) -> Result<Lineup, RaceError> {
    let why_not = |strategy| {
        let mut lists = lists.iter();
        lists.find_map(|list| unavailable(strategy, list).map(str::to_owned))
    };
    Ok(Lineup::choose(plan, why_not)?)
}

/// The reason if the target with this list cannot run the strategy.
fn unavailable(strategy: Strategy, list: &[Listed]) -> Option<&str> {
    match list.iter().find(|listed| listed.name == strategy.name()) {
        None => Some("a target does not know it"),
        Some(listed) if listed.available => None,
        Some(Listed { reason, .. }) => reason.as_deref().or(Some("a target gives no reason")),
    }
}

fn as_names<S: Serializer>(strategies: &[Strategy], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(strategies.iter().map(|strategy| strategy.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A target that lists these strategies; a `!` marks one that is not available.
    fn list(names: &str) -> Vec<Listed> {
        let listed = |name: &str| Listed {
            name: name.trim_start_matches('!').to_owned(),
            available: !name.starts_with('!'),
            reason: Some("set REDIS_URL".to_owned()),
        };
        names.split(' ').map(listed).collect()
    }

    /// Each line: running strategies, a skipped strategy, and a part of the reason.
    #[test]
    fn strategy_that_cannot_run_is_skipped_or_refused() {
        let lists = [
            list("no-lock single-sql redis-lock redis-lua"),
            list("no-lock single-sql !redis-lock redis-lua"),
        ];
        for line in [
            "no-lock single-sql redis-lua: redis-lock: set REDIS_URL",
            "no-lock single-sql redis-lua: optimistic: does not know",
        ] {
            let parts: Vec<_> = line.split(": ").collect();
            let mut plan = RacePlan::jmeter();
            let lineup = of_targets(&plan, &lists).unwrap();
            let running: Vec<_> = lineup.strategies.into_iter().map(Strategy::name).collect();
            assert_eq!(running.join(" "), parts[0]);
            let mut skipped = lineup.skipped.iter();
            let skipped = skipped.find(|skipped| skipped.strategy.name() == parts[1]);
            assert!(skipped.unwrap().reason.contains(parts[2]), "{skipped:?}");
            plan.strategies = parts[1].parse().unwrap();
            let error = of_targets(&plan, &lists).unwrap_err().to_string();
            assert!(error.contains(parts[2]), "{error}");
        }
        assert!(of_targets(&RacePlan::jmeter(), &[Vec::new()]).is_err());
    }

    #[test]
    fn orders_of_several_lines_race_with_group_commit_only() {
        let lists = [list("single-sql group-commit")];
        let mut plan = RacePlan::jmeter();
        for (lines, holds) in [(2, false), (1, true)] {
            (plan.lines, plan.holds) = (lines, holds);
            plan.strategies = Entrants::Everyone;
            let lineup = of_targets(&plan, &lists).unwrap();
            assert_eq!(lineup.strategies, [Strategy::GroupCommit]);
            assert_eq!(lineup.skipped, []);
            plan.strategies = "group-commit,single-sql".parse().unwrap();
            let error = of_targets(&plan, &lists).unwrap_err().to_string();
            assert!(error.contains(ONLY_GROUP_COMMIT), "{error}");
        }
    }
}
