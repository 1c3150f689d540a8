//! Which strategies a replica can use.

use super::{Dependency, Strategy};

/// Which strategies the configuration allows, whether or not their servers answer now. Built once at
/// start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Available {
    servers: Vec<Dependency>,
    /// Strategies that the configuration rules out, and why.
    excluded: Vec<(Strategy, &'static str)>,
}

impl Available {
    /// The database is always available; `others` are the servers beside it.
    #[must_use]
    pub fn new(others: impl IntoIterator<Item = Dependency>) -> Self {
        Self {
            servers: others.into_iter().collect(),
            excluded: Vec::new(),
        }
    }

    /// The same without this strategy.
    #[must_use]
    pub fn without(mut self, strategy: Strategy, reason: &'static str) -> Self {
        self.excluded.push((strategy, reason));
        self
    }

    /// Whether the configuration names this server.
    #[must_use]
    pub fn has(&self, dependency: Dependency) -> bool {
        dependency == Dependency::Database || self.servers.contains(&dependency)
    }

    /// Why `strategy` cannot be used, or `None` if it can.
    #[must_use]
    pub fn why_not(&self, strategy: Strategy) -> Option<String> {
        let mut excluded = self.excluded.iter();
        if let Some((_, reason)) = excluded.find(|(excluded, _)| *excluded == strategy) {
            return Some((*reason).to_owned());
        }
        let mut needs = strategy.card().needs.iter();
        let missing = needs.find(|dependency| !self.has(**dependency))?;
        let (title, variable) = (missing.title(), missing.variable());
        Some(format!("it needs {title}: set {variable}"))
    }

    /// The strategies that can be used.
    pub fn strategies(&self) -> impl Iterator<Item = Strategy> {
        let mut all = Strategy::ALL.into_iter();
        std::iter::from_fn(move || all.find(|strategy| self.why_not(*strategy).is_none()))
    }
}
