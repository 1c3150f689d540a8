//! The servers that strategies need.

/// A server that a strategy needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dependency {
    /// The SQL database. Every strategy needs it.
    Database,
    /// One Redis.
    Redis,
    /// A `ZooKeeper` ensemble.
    Zookeeper,
}

impl Dependency {
    /// The name in the API, lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Database => "database",
            Self::Redis => "redis",
            Self::Zookeeper => "zookeeper",
        }
    }

    /// The name in messages.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Database => "the database",
            Self::Redis => "Redis",
            Self::Zookeeper => "ZooKeeper",
        }
    }

    /// The variable that names its address.
    #[must_use]
    pub fn variable(self) -> &'static str {
        match self {
            Self::Database => "DATABASE_URL",
            Self::Redis => "REDIS_URL",
            Self::Zookeeper => "ZOOKEEPER_CONNECT",
        }
    }
}
