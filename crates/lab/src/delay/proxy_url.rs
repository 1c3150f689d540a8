//! Replaces the address in the URL of a server by the address of a proxy.
//!
//! User, password, database and parameters stay as they are and appear in no error message.
//! Refused: Unix sockets, and certificates that are checked against the host name.

use std::net::SocketAddr;
use std::str::FromStr;

use url::Url;

/// The URL of a database or Redis server. It may contain a password.
pub(super) struct ServerUrl {
    url: Url,
    /// `host:port`
    server: String,
}

impl ServerUrl {
    /// Parses `DATABASE_URL`; `None` for SQLite.
    ///
    /// # Errors
    /// The reason why a proxy cannot be used.
    pub(super) fn from_database_url(url: &str) -> Result<Option<Self>, String> {
        // Not parsed: a file path need not be a valid URL.
        if url.starts_with("sqlite:") {
            return Ok(None);
        }
        let url = parse(url)?;
        let port = match url.scheme() {
            "mysql" | "mariadb" => 3306,
            "postgres" | "postgresql" => 5432,
            scheme => return Err(format!("`{scheme}:` is not a supported database")),
        };
        for (name, value) in url.query_pairs() {
            match &*name {
                "socket" | "host" | "hostaddr" | "port" => {
                    return Err(format!(
                        "the parameter `{name}` names the server; --rtt needs `//host:port` \
                         instead and cannot delay a Unix socket"
                    ));
                }
                "sslmode" | "ssl-mode" if checks_host_name(&value) => {
                    return Err(format!(
                        "`{name}={value}` checks the host name in the server's certificate, which \
                         fails through a proxy of --rtt; use a mode that does not check it"
                    ));
                }
                _ => {}
            }
        }
        Self::new(url, port).map(Some)
    }

    /// Parses `REDIS_URL`.
    ///
    /// # Errors
    /// The reason why a proxy cannot be used.
    pub(super) fn from_redis_url(url: &str) -> Result<Self, String> {
        let url = parse(url)?;
        match url.scheme() {
            "redis" | "valkey" => Self::new(url, 6379),
            "rediss" | "valkeys" => Err(
                "TLS checks the host name in the server's certificate, which fails through a \
                 proxy of --rtt; use redis://"
                    .to_owned(),
            ),
            scheme => Err(format!(
                "`{scheme}:` cannot be delayed; use redis://host:port"
            )),
        }
    }

    fn new(url: Url, default_port: u16) -> Result<Self, String> {
        let host = url.host_str().unwrap_or_default();
        // PostgreSQL: a host with a slash is the directory of a Unix socket.
        if host.is_empty() || host.to_ascii_lowercase().starts_with("%2f") {
            return Err("no host; --rtt needs `//host:port`".to_owned());
        }
        let server = format!("{host}:{}", url.port().unwrap_or(default_port));
        Ok(Self { url, server })
    }

    /// `host:port`
    pub(super) fn server(&self) -> &str {
        &self.server
    }

    /// The same URL, password included, with the address of `proxy`.
    pub(super) fn with_address(mut self, proxy: SocketAddr) -> String {
        let host = self.url.set_ip_host(proxy.ip());
        host.expect("the URL has a host");
        let port = self.url.set_port(Some(proxy.port()));
        port.expect("the URL has a host");
        self.url.into()
    }
}

/// The servers in `ZOOKEEPER_CONNECT`.
#[derive(Debug)]
pub(super) struct Ensemble {
    servers: Vec<String>,
    /// Starts with a slash, or is empty.
    chroot: String,
}

impl FromStr for Ensemble {
    type Err = String;

    fn from_str(connect: &str) -> Result<Self, String> {
        let mut hosts: Vec<&str> = connect.split(',').collect();
        let mut chroot = "";
        if let Some(last) = hosts.last_mut() {
            let authority = last.find("://").map_or(0, |at| at + "://".len());
            let end = last[authority..].find('/').map(|at| authority + at);
            (*last, chroot) = last.split_at(end.unwrap_or(last.len()));
        }
        Ok(Self {
            servers: hosts.into_iter().map(member).collect::<Result<_, _>>()?,
            chroot: chroot.to_owned(),
        })
    }
}

impl Ensemble {
    /// Each server's `host:port`.
    pub(super) fn servers(&self) -> &[String] {
        &self.servers
    }

    /// The same setting with the addresses of `proxies`, one for each server.
    pub(super) fn with_addresses(&self, proxies: &[SocketAddr]) -> String {
        let proxies: Vec<String> = proxies.iter().map(ToString::to_string).collect();
        format!("{}{}", proxies.join(","), self.chroot)
    }
}

/// Parses one server of an ensemble and returns its `host:port`.
fn member(text: &str) -> Result<String, String> {
    let refused = || format!("--rtt needs `host:port`, not `{text}`");
    let address = text.strip_prefix("tcp://").unwrap_or(text);
    let url = Url::parse(&format!("zookeeper://{address}")).map_err(|_| refused())?;
    match url.host_str() {
        Some(host) if url.path().is_empty() && url.username().is_empty() => {
            Ok(format!("{host}:{}", url.port().unwrap_or(2181)))
        }
        _ => Err(refused()),
    }
}

fn checks_host_name(mode: &str) -> bool {
    ["verify-full", "verify_identity"]
        .iter()
        .any(|strict| mode.eq_ignore_ascii_case(strict))
}

fn parse(url: &str) -> Result<Url, String> {
    Url::parse(url).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn database_url_keeps_everything_but_its_address() {
        for (before, server, after) in [
            (
                "mysql://a:b@db:3307/s?charset=utf8",
                "db:3307",
                "mysql://a:b@PROXY/s?charset=utf8",
            ),
            (
                "mariadb://localhost/s",
                "localhost:3306",
                "mariadb://PROXY/s",
            ),
            (
                "postgres://a:b%2Fc@[::1]/s",
                "[::1]:5432",
                "postgres://a:b%2Fc@PROXY/s",
            ),
        ] {
            let url = ServerUrl::from_database_url(before).unwrap().unwrap();
            assert_eq!(url.server(), server);
            let expected = after.replace("PROXY", "127.0.0.1:20001");
            assert_eq!(url.with_address(proxy(20_001)), expected);
        }
        let sqlite = ServerUrl::from_database_url("sqlite://a file.db");
        assert!(sqlite.unwrap().is_none());
    }

    #[test]
    fn unusable_database_url_is_refused_without_its_password() {
        for (url, reason) in [
            (
                "postgres:///s?host=/run/postgresql&password=c4n4ry",
                "`host`",
            ),
            ("postgres://a:c4n4ry@%2Frun%2Fpostgresql/s", "no host"),
            ("postgres:///s", "no host"),
            (
                "mysql://a:c4n4ry@localhost/s?socket=/run/m.sock",
                "`socket`",
            ),
            (
                "postgres://a:c4n4ry@db/s?sslmode=verify-full",
                "certificate",
            ),
            (
                "mysql://a:c4n4ry@db/s?ssl-mode=VERIFY_IDENTITY",
                "certificate",
            ),
            ("mysql://a:c4n4ry@db:nonsense/s", "port"),
            ("oracle://a:c4n4ry@db/s", "oracle"),
        ] {
            let error = ServerUrl::from_database_url(url).err().unwrap();
            assert!(error.contains(reason), "{url}: {error}");
            assert!(!error.contains("c4n4ry"), "{url}: {error}");
        }
    }

    #[test]
    fn redis_url_keeps_everything_but_its_address() {
        let url = ServerUrl::from_redis_url("redis://a:b@cache/2").unwrap();
        assert_eq!(url.server(), "cache:6379");
        assert_eq!(
            url.with_address(proxy(20_002)),
            "redis://a:b@127.0.0.1:20002/2"
        );
        for url in [
            "rediss://:c4n4ry@a",
            "unix:///r.sock?pass=c4n4ry",
            "redis:///0",
            "c4n4ry",
        ] {
            let error = ServerUrl::from_redis_url(url).err().unwrap();
            assert!(!error.contains("c4n4ry"), "{url}: {error}");
        }
    }

    #[test]
    fn ensemble_gets_one_proxy_per_server_and_keeps_its_chroot() {
        for (connect, servers, after) in [
            ("zoo", &["zoo:2181"][..], "127.0.0.1:20000"),
            (
                "zoo1:2182,tcp://[::1]:2183/a/b",
                &["zoo1:2182", "[::1]:2183"],
                "127.0.0.1:20000,127.0.0.1:20001/a/b",
            ),
            ("tcp://zoo/", &["zoo:2181"], "127.0.0.1:20000/"),
        ] {
            let ensemble = connect.parse::<Ensemble>().unwrap();
            assert_eq!(ensemble.servers(), servers);
            let proxies: Vec<_> = (20_000..).take(servers.len()).map(proxy).collect();
            assert_eq!(ensemble.with_addresses(&proxies), after);
        }
        for connect in ["", "zoo,", "zoo/a,zoo", "tcp+tls://zoo", "zoo:nonsense"] {
            assert!(connect.parse::<Ensemble>().is_err(), "{connect:?}");
        }
    }
}
