//! A server that is a round trip away, through the proxy that delays the servers of a race.

use std::time::Duration;

use stocklock::lab::delay::{DelayedServers, ServerUrls};

/// The URL of a server through a proxy that adds this round trip, and the proxy.
pub(crate) async fn distant(url: &str, rtt: Duration) -> (DelayedServers, String) {
    let is_redis = url.starts_with("redis");
    let database = if is_redis { "sqlite://none" } else { url };
    let servers = ServerUrls {
        database: database.into(),
        redis: is_redis.then(|| url.into()),
        redlock: None,
        zookeeper: None,
    };
    let delayed = DelayedServers::start(rtt, servers).await;
    let delayed = delayed.expect("the server can be delayed");
    let urls = &delayed.urls;
    let url = urls.redis.as_ref().unwrap_or(&urls.database);
    let url = secrecy::ExposeSecret::expose_secret(url).to_owned();
    (delayed, url)
}
