//! The services that some strategies need beside the SQL database, and which of them there are.

/// A service beside the SQL database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Service {
    /// One Redis.
    Redis,
    /// Several independent Redis masters.
    Redlock,
    /// A `ZooKeeper` ensemble.
    Zookeeper,
}

impl Service {
    /// The name at every edge, lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Redlock => "redlock",
            Self::Zookeeper => "zookeeper",
        }
    }

    /// The name for people.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Redis => "Redis",
            Self::Redlock => "several Redis masters",
            Self::Zookeeper => "ZooKeeper",
        }
    }

    /// The variable that says where it is.
    #[must_use]
    pub fn variable(self) -> &'static str {
        match self {
            Self::Redis => "REDIS_URL",
            Self::Redlock => "REDLOCK_URLS",
            Self::Zookeeper => "ZOOKEEPER_CONNECT",
        }
    }
}

/// The services that the configuration names, whether or not they answer at the moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Services {
    /// Whether it names a Redis.
    pub redis: bool,
    /// Whether it names a `ZooKeeper`.
    pub zookeeper: bool,
}

impl Services {
    /// None but the SQL database.
    pub const NONE: Self = Self {
        redis: false,
        zookeeper: false,
    };

    /// Whether it is among them.
    #[must_use]
    pub fn has(self, service: Service) -> bool {
        match service {
            Service::Redis => self.redis,
            Service::Zookeeper => self.zookeeper,
            // No configuration names any yet.
            Service::Redlock => false,
        }
    }
}
