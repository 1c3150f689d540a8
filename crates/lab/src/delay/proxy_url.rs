//! Finds the server in a setting, and replaces its address by the address of a proxy.
//!
//! User, password, database and parameters stay as they are and appear in no error message.
//! Refused: Unix sockets, and certificates that are checked against the host name.

use std::net::SocketAddr;

use url::Url;

/// Parses a `DATABASE_URL` that is not SQLite's. Returns it with its server's `host:port`, or the
/// reason why a proxy cannot be used.
pub(super) fn database_server(url: &str) -> Result<(Url, String), String> {
    let servers = url.split_once("://").map_or("", |(_, rest)| rest);
    let servers = servers.split(['/', '?']).next().unwrap_or_default();
    if servers
        .rsplit('@')
        .next()
        .is_some_and(|servers| servers.contains(','))
    {
        return Err("several servers; --rtt needs one".to_owned());
    }
    let url = parse(url)?;
    let port = match url.scheme() {
        "mysql" | "mariadb" => 3306,
        "postgres" | "postgresql" => 5432,
        scheme => return Err(format!("`{scheme}:` is not a supported database")),
    };
    for (name, value) in url.query_pairs() {
        let checks_host_name = ["verify-full", "verify_identity"]
            .iter()
            .any(|strict| value.eq_ignore_ascii_case(strict));
        match &*name {
            "socket" | "host" | "hostaddr" | "port" => {
                return Err(format!(
                    "the parameter `{name}` names the server; --rtt needs `//host:port` instead \
                     and cannot delay a Unix socket"
                ));
            }
            "sslmode" | "ssl-mode" if checks_host_name => {
                return Err(format!(
                    "`{name}={value}` checks the host name in the server's certificate, which \
                     fails through a proxy of --rtt; use a mode that does not check it"
                ));
            }
            _ => {}
        }
    }
    with_server(url, port)
}

/// The same for `REDIS_URL`, and for each URL of `REDLOCK_URLS`.
pub(super) fn redis_server(url: &str) -> Result<(Url, String), String> {
    let url = parse(url)?;
    match url.scheme() {
        "redis" | "valkey" => with_server(url, 6379),
        "rediss" | "valkeys" => Err(
            "TLS checks the host name in the server's certificate, which fails through a proxy of \
             --rtt; use redis://"
                .to_owned(),
        ),
        scheme => Err(format!(
            "`{scheme}:` cannot be delayed; use redis://host:port"
        )),
    }
}

fn with_server(url: Url, default_port: u16) -> Result<(Url, String), String> {
    let host = url.host_str().unwrap_or_default();
    // PostgreSQL: a host with a slash is the directory of a Unix socket.
    if host.is_empty() || host.to_ascii_lowercase().starts_with("%2f") {
        return Err("no host; --rtt needs `//host:port`".to_owned());
    }
    let server = format!("{host}:{}", url.port().unwrap_or(default_port));
    Ok((url, server))
}

/// The same URL, password included, with the address of `proxy`.
pub(super) fn with_address(mut url: Url, proxy: SocketAddr) -> String {
    let host = url.set_ip_host(proxy.ip());
    host.expect("the URL has a host");
    let port = url.set_port(Some(proxy.port()));
    port.expect("the URL has a host");
    url.into()
}

/// Parses `ZOOKEEPER_CONNECT`. Returns each server's `host:port`, and the chroot, which starts with
/// a slash or is empty. An error is the reason why a proxy cannot be used.
pub(super) fn zookeeper_servers(connect: &str) -> Result<(Vec<String>, String), String> {
    // The chroot starts at the first slash of the last server, after its scheme.
    let comma = connect.rfind(',').map_or(0, |comma| comma + 1);
    let scheme = connect.rfind("://").map_or(0, |scheme| scheme + 3);
    let address = comma.max(scheme);
    let slash = connect[address..].find('/').map(|slash| address + slash);
    let (servers, chroot) = connect.split_at(slash.unwrap_or(connect.len()));
    let servers = servers.split(',').map(zookeeper_server);
    Ok((servers.collect::<Result<_, _>>()?, chroot.to_owned()))
}

fn zookeeper_server(text: &str) -> Result<String, String> {
    let address = text.strip_prefix("tcp://").unwrap_or(text);
    let url = Url::parse(&format!("zookeeper://{address}"));
    let url = url
        .ok()
        .filter(|url| url.path().is_empty() && url.username().is_empty());
    let server = url.and_then(|url| with_server(url, 2181).ok());
    let (_, server) = server.ok_or_else(|| format!("--rtt needs `host:port`, not `{text}`"))?;
    Ok(server)
}

fn parse(url: &str) -> Result<Url, String> {
    Url::parse(url).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(url: &str) -> Result<(Url, String), String> {
        if url.starts_with("redis") {
            redis_server(url)
        } else {
            database_server(url)
        }
    }

    #[test]
    fn url_keeps_everything_but_its_address() {
        for line in [
            "mysql://a:b@db:3307/s?charset=utf8 db:3307 mysql://a:b@PROXY/s?charset=utf8",
            "mariadb://localhost/s localhost:3306 mariadb://PROXY/s",
            "postgres://a:b%2Fc@[::1]/s [::1]:5432 postgres://a:b%2Fc@PROXY/s",
            "redis://a:b@cache/2 cache:6379 redis://a:b@PROXY/2",
        ] {
            let words: Vec<_> = line.split(' ').collect();
            let (url, server) = server(words[0]).unwrap();
            assert_eq!(server, words[1]);
            let proxy = SocketAddr::from(([127, 0, 0, 1], 20_001));
            let moved = words[2].replace("PROXY", "127.0.0.1:20001");
            assert_eq!(with_address(url, proxy), moved);
        }
    }

    #[test]
    fn unusable_url_is_refused_without_its_password() {
        for line in [
            "postgres:///s?host=/run/postgresql&password=c4n4ry `host`",
            "postgres://a:c4n4ry@%2Frun%2Fpostgresql/s host",
            "postgres:///s host",
            "postgres://a:c4n4ry@b:1,c:2/s several",
            "mysql://a:c4n4ry@localhost/s?socket=/run/m.sock `socket`",
            "postgres://a:c4n4ry@db/s?sslmode=verify-full certificate",
            "mysql://a:c4n4ry@db/s?ssl-mode=VERIFY_IDENTITY certificate",
            "mysql://a:c4n4ry@db:nonsense/s port",
            "oracle://a:c4n4ry@db/s oracle",
            "rediss://:c4n4ry@a certificate",
            "redis:///0 host",
        ] {
            let (url, reason) = line.split_once(' ').unwrap();
            let error = server(url).unwrap_err();
            assert!(error.contains(reason), "{url}: {error}");
            assert!(!error.contains("c4n4ry"), "{url}: {error}");
        }
        for url in ["unix:///r.sock?pass=c4n4ry", "c4n4ry"] {
            let error = redis_server(url).unwrap_err();
            assert!(!error.contains("c4n4ry"), "{url}: {error}");
        }
    }

    #[test]
    fn zookeeper_servers_are_split_from_their_chroot() {
        for (connect, servers, chroot) in [
            ("zoo", "zoo:2181", ""),
            ("a:1,tcp://[::1]:2/b/c", "a:1,[::1]:2", "/b/c"),
            ("tcp://a,b/c", "a:2181,b:2181", "/c"),
            ("tcp://zoo/", "zoo:2181", "/"),
        ] {
            let (found, rest) = zookeeper_servers(connect).unwrap();
            assert_eq!((&*found.join(","), &*rest), (servers, chroot));
        }
        for connect in [
            "",
            "zoo,",
            "tcp://zoo/a,zoo",
            "tcp+tls://zoo",
            "zoo:nonsense",
        ] {
            assert!(zookeeper_servers(connect).is_err(), "{connect:?}");
        }
    }
}
