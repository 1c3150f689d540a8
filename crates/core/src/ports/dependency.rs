//! The servers that strategies need.

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
    /// One Redis server, Sentinels, or a Redis Cluster.
    Redis => "redis", "Redis", "REDIS_URL";
    /// Independent Redis masters, of which a majority holds a lock.
    RedisMasters => "redis-masters", "a majority of the Redis masters", "REDLOCK_URLS";
    /// A `ZooKeeper` ensemble.
    Zookeeper => "zookeeper", "ZooKeeper", "ZOOKEEPER_CONNECT";
}
