//! The list of servers in a URL.

use redis::{ConnectionInfo, IntoConnectionInfo, RedisResult};

/// Splits what follows the scheme at the first `/` after the password.
pub(super) fn split_path(rest: &str) -> (&str, &str) {
    let hosts = rest.rfind('@').unwrap_or(0);
    let end = rest[hosts..].find('/').map_or(rest.len(), |at| hosts + at);
    (&rest[..end], rest.get(end + 1..).unwrap_or(""))
}

/// Parses `[user:password@]host[:port],…`. All servers have the same user, password and database.
pub(super) fn parse_hosts(
    scheme: &str,
    hosts: &str,
    port: &str,
    database: &str,
) -> RedisResult<Vec<ConnectionInfo>> {
    let (user, hosts) = match hosts.rsplit_once('@') {
        Some((user, hosts)) => (format!("{user}@"), hosts),
        None => (String::new(), hosts),
    };
    let parse = |host: &str| {
        let has_port = host
            .rsplit_once(':')
            .is_some_and(|(_, port)| !port.ends_with(']'));
        let port = if has_port { "" } else { port };
        let colon = if has_port { "" } else { ":" };
        let url = format!("{scheme}://{user}{host}{colon}{port}/{database}");
        url.into_connection_info()
    };
    hosts.split(',').map(parse).collect()
}
