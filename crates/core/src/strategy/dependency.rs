//! The servers that strategies need, and which of them a replica has.

use super::Strategy;

/// Declares the enum, and the texts of each variant: the name in the API, the name in messages, and
/// the variable with the address.
macro_rules! dependencies {
    ($($(#[$doc:meta])+ $variant:ident => $name:literal, $title:literal, $variable:literal;)+) => {
        /// A server that a strategy needs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Dependency { $($(#[$doc])+ $variant,)+ }

        impl Dependency {
            /// The name in the API, lower case.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// The name in messages.
            #[must_use]
            pub fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)+ }
            }

            /// The variable that names its address.
            #[must_use]
            pub fn variable(self) -> &'static str {
                match self { $(Self::$variant => $variable,)+ }
            }
        }
    };
}

dependencies! {
    /// The SQL database. Every strategy needs it.
    Database => "database", "the database", "DATABASE_URL";
    /// One Redis.
    Redis => "redis", "Redis", "REDIS_URL";
    /// A `ZooKeeper` ensemble.
    Zookeeper => "zookeeper", "ZooKeeper", "ZOOKEEPER_CONNECT";
}

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
