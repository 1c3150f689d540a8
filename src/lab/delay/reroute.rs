//! Settings that lead to a server, and the same ones leading through a proxy before it.
//!
//! Only the address is changed; user, password, database and parameters are kept, and appear in no
//! message. What a proxy would change the meaning of is refused: a socket in the file system, and
//! a certificate that is held against the host's name.

use std::net::SocketAddr;

use url::Url;

/// The setting of one server.
pub(super) struct ServerUrl {
    url: Url,
    /// `host:port`
    server: String,
}

impl ServerUrl {
    /// The server of `DATABASE_URL`; none if the database is in the process.
    ///
    /// # Errors
    /// Why no proxy can stand before it.
    pub(super) fn of_database(url: &str) -> Result<Option<Self>, String> {
        // Not parsed: the path of a file is no URL.
        if url.starts_with("sqlite:") {
            return Ok(None);
        }
        let url = parse(url)?;
        let port = match url.scheme() {
            "mysql" | "mariadb" => 3306,
            "postgres" | "postgresql" => 5432,
            scheme => return Err(format!("`{scheme}:` is no database known here")),
        };
        for (name, value) in url.query_pairs() {
            match &*name {
                "socket" | "host" | "hostaddr" | "port" => {
                    return Err(format!(
                        "it names its server by the parameter `{name}`; --rtt needs it as \
                         `//host:port` (a socket in the file system cannot be delayed)"
                    ));
                }
                "sslmode" | "ssl-mode" if checks_the_host(&value) => {
                    return Err(format!(
                        "with `{name}={value}` the server's certificate has to name its host, and \
                         --rtt puts a proxy in its place; take a mode that does not look at the \
                         name"
                    ));
                }
                _ => {}
            }
        }
        Self::new(url, port).map(Some)
    }

    /// The server of `REDIS_URL`.
    ///
    /// # Errors
    /// Why no proxy can stand before it.
    pub(super) fn of_redis(url: &str) -> Result<Self, String> {
        let url = parse(url)?;
        match url.scheme() {
            "redis" | "valkey" => Self::new(url, 6379),
            "rediss" | "valkeys" => Err(
                "with TLS the server's certificate has to name its host, and --rtt puts a proxy \
                 in its place; use redis://"
                    .to_owned(),
            ),
            scheme => Err(format!(
                "`{scheme}:` cannot be delayed; use redis://host:port"
            )),
        }
    }

    fn new(url: Url, default_port: u16) -> Result<Self, String> {
        let host = url.host_str().unwrap_or_default();
        // A host with a slash is PostgreSQL's way to name a directory with a socket.
        if host.is_empty() || host.to_ascii_lowercase().starts_with("%2f") {
            return Err("it names no host; --rtt needs it as `//host:port`".to_owned());
        }
        let server = format!("{host}:{}", url.port().unwrap_or(default_port));
        Ok(Self { url, server })
    }

    /// `host:port`
    pub(super) fn server(&self) -> &str {
        &self.server
    }

    /// The setting that leads to `proxy` instead, password and all.
    pub(super) fn through(mut self, proxy: SocketAddr) -> String {
        let host = self.url.set_ip_host(proxy.ip());
        host.expect("a URL with a host takes another one");
        let port = self.url.set_port(Some(proxy.port()));
        port.expect("a URL with a host takes a port");
        self.url.into()
    }
}

/// The setting of a `ZooKeeper` ensemble.
#[derive(Debug)]
pub(super) struct Ensemble {
    servers: Vec<String>,
    /// With its slash, or empty.
    chroot: String,
}

impl Ensemble {
    /// The servers of `ZOOKEEPER_CONNECT`.
    ///
    /// # Errors
    /// Why no proxy can stand before them.
    pub(super) fn of(connect: &str) -> Result<Self, String> {
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

    /// Each server's `host:port`.
    pub(super) fn servers(&self) -> &[String] {
        &self.servers
    }

    /// The setting that leads to `proxies` instead, one for each server.
    pub(super) fn through(&self, proxies: &[SocketAddr]) -> String {
        let proxies: Vec<String> = proxies.iter().map(ToString::to_string).collect();
        format!("{}{}", proxies.join(","), self.chroot)
    }
}

/// One member of an ensemble, as `host:port`.
fn member(text: &str) -> Result<String, String> {
    let refused = || format!("`{text}` is no `host:port` that --rtt can put a proxy before");
    let address = text.strip_prefix("tcp://").unwrap_or(text);
    let url = Url::parse(&format!("zookeeper://{address}")).map_err(|_| refused())?;
    match url.host_str() {
        Some(host) if url.path().is_empty() && url.username().is_empty() => {
            Ok(format!("{host}:{}", url.port().unwrap_or(2181)))
        }
        _ => Err(refused()),
    }
}

fn checks_the_host(mode: &str) -> bool {
    ["verify-full", "verify_identity"]
        .iter()
        .any(|checking| mode.eq_ignore_ascii_case(checking))
}

fn parse(url: &str) -> Result<Url, String> {
    Url::parse(url).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWORD: &str = "c4n4ry";

    fn proxy(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn of_a_databases_url_the_address_alone_is_changed() {
        for (url, server, through) in [
            (
                "mysql://shop:c4n4ry@db.example:3307/stock?ssl-mode=disabled&charset=utf8mb4",
                "db.example:3307",
                "mysql://shop:c4n4ry@127.0.0.1:20001/stock?ssl-mode=disabled&charset=utf8mb4",
            ),
            (
                "mariadb://localhost/stock",
                "localhost:3306",
                "mariadb://127.0.0.1:20001/stock",
            ),
            (
                "postgres://shop:a%2Fb%40c@[::1]/stock?sslmode=require",
                "[::1]:5432",
                "postgres://shop:a%2Fb%40c@127.0.0.1:20001/stock?sslmode=require",
            ),
        ] {
            let parsed = ServerUrl::of_database(url).unwrap().unwrap();
            assert_eq!(parsed.server(), server);
            assert_eq!(parsed.through(proxy(20_001)), through);
        }
        assert!(
            ServerUrl::of_database("sqlite://a file.db")
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn a_database_that_no_proxy_can_stand_before_is_refused_without_its_password() {
        for (url, why) in [
            (
                "postgres:///stock?host=/run/postgresql&password=c4n4ry",
                "`host`",
            ),
            (
                "postgres://shop:c4n4ry@%2Frun%2Fpostgresql/stock",
                "no host",
            ),
            ("postgres:///stock", "no host"),
            (
                "mysql://shop:c4n4ry@localhost/stock?socket=/run/m.sock",
                "`socket`",
            ),
            (
                "postgres://shop:c4n4ry@db/stock?sslmode=verify-full",
                "certificate",
            ),
            (
                "mysql://shop:c4n4ry@db/stock?ssl-mode=VERIFY_IDENTITY",
                "certificate",
            ),
            ("mysql://shop:c4n4ry@db:nonsense/stock", "port"),
            ("oracle://shop:c4n4ry@db/stock", "oracle"),
        ] {
            let error = ServerUrl::of_database(url).err().unwrap();
            assert!(error.contains(why), "{url}: {error}");
            assert!(!error.contains(PASSWORD), "{url}: {error}");
        }
    }

    #[test]
    fn of_a_redis_url_the_address_alone_is_changed() {
        let url = "redis://shop:c4n4ry@cache/2";
        let parsed = ServerUrl::of_redis(url).unwrap();
        assert_eq!(parsed.server(), "cache:6379");
        let through = "redis://shop:c4n4ry@127.0.0.1:20002/2";
        assert_eq!(parsed.through(proxy(20_002)), through);
        for url in [
            "rediss://:c4n4ry@cache",
            "unix:///run/redis.sock?pass=c4n4ry",
            "redis:///0",
            "c4n4ry",
        ] {
            let error = ServerUrl::of_redis(url).err().unwrap();
            assert!(!error.contains(PASSWORD), "{url}: {error}");
        }
    }

    #[test]
    fn every_member_of_an_ensemble_has_a_proxy_and_the_chroot_stays() {
        for (connect, servers, through) in [
            ("zoo", &["zoo:2181"][..], "127.0.0.1:20000"),
            (
                "zoo1:2182,tcp://zoo2,[::1]:2183/shop/locks",
                &["zoo1:2182", "zoo2:2181", "[::1]:2183"],
                "127.0.0.1:20000,127.0.0.1:20001,127.0.0.1:20002/shop/locks",
            ),
            ("tcp://zoo/", &["zoo:2181"], "127.0.0.1:20000/"),
        ] {
            let ensemble = Ensemble::of(connect).unwrap();
            assert_eq!(ensemble.servers(), servers);
            let proxies: Vec<_> = (20_000..).take(servers.len()).map(proxy).collect();
            assert_eq!(ensemble.through(&proxies), through);
        }
        for connect in ["", "zoo,", "zoo/a,zoo", "tcp+tls://zoo", "zoo:nonsense"] {
            assert!(Ensemble::of(connect).is_err(), "{connect:?}");
        }
    }
}
