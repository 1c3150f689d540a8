//! Which strategies a replica can use.

use super::{Dependency, Strategy};

/// The external servers that the configuration names, whether or not they answer now. Built once at
/// start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Available(Vec<Dependency>);

impl Available {
    /// The database is always available; `others` are the servers beside it.
    #[must_use]
    pub fn new(others: impl IntoIterator<Item = Dependency>) -> Self {
        Self(others.into_iter().collect())
    }

    /// Whether the configuration names this server.
    #[must_use]
    pub fn has(&self, dependency: Dependency) -> bool {
        dependency == Dependency::Database || self.0.contains(&dependency)
    }

    /// Why `strategy` cannot be used, or `None` if it can.
    #[must_use]
    pub fn why_not(&self, strategy: Strategy) -> Option<String> {
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
