//! A database on several servers, of which one accepts writes: `postgres://user@a,b:5433/database`.
//!
//! A new connection goes to the server that was reached last, and to the next one in the list if that one does not
//! answer or refuses writes. After a failover, the connections to the old primary are closed as they fail.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sqlx::Error;
use tokio::time::timeout;

use super::errors::is_connection_limit;

/// What libpq's programs call a server that accepts writes. This service needs such a server in any case.
const PARAMETER: &str = "target_session_attrs=";

/// A URL for each server that this one lists.
///
/// # Errors
/// It wants other servers than one that accepts writes.
pub fn urls_of(url: &str) -> Result<Vec<String>, String> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return Ok(vec![url.to_owned()]);
    };
    if scheme == "sqlite" {
        return Ok(vec![url.to_owned()]);
    }
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, place) = rest.split_at(end);
    let (user, servers) = match authority.rfind('@') {
        Some(at) => authority.split_at(at + 1),
        None => ("", authority),
    };
    let place = without_parameter(place)?;
    let url = |server| format!("{scheme}://{user}{server}{place}");
    Ok(servers.split(',').map(url).collect())
}

/// sqlx does not know the parameter.
fn without_parameter(place: &str) -> Result<String, String> {
    let Some((path, query)) = place.split_once('?') else {
        return Ok(place.to_owned());
    };
    let mut others = Vec::new();
    for parameter in query.split('&') {
        match parameter.strip_prefix(PARAMETER) {
            None => others.push(parameter),
            Some("read-write" | "primary") => {}
            Some(other) => {
                return Err(format!(
                    "`{PARAMETER}{other}` leads to servers that refuse writes: use read-write"
                ));
            }
        }
    }
    Ok(match &*others.join("&") {
        "" => path.to_owned(),
        query => format!("{path}?{query}"),
    })
}

/// The servers, each with its options, and which of them was reached last. Clones share that.
#[derive(Debug, Clone)]
pub(crate) struct Hosts<O> {
    servers: Arc<[O]>,
    reached: Arc<AtomicUsize>,
    /// How long a server may take, if there are others.
    limit: Duration,
}

impl<O: Clone> Hosts<O> {
    /// `within` is the time in which each server must have been tried.
    pub(crate) fn new(
        url: &str,
        within: Duration,
        options: impl Fn(&str) -> Result<O, String>,
    ) -> Result<Self, String> {
        let urls = urls_of(url)?;
        let servers: Result<Arc<[O]>, String> = urls.iter().map(|url| options(url)).collect();
        let servers = servers?;
        let count = u32::try_from(servers.len()).unwrap_or(u32::MAX);
        Ok(Self {
            servers,
            reached: Arc::default(),
            limit: within / count.saturating_add(1),
        })
    }

    /// The server that was reached last.
    pub(crate) fn reached(&self) -> &O {
        &self.servers[self.reached.load(Ordering::Relaxed)]
    }

    /// Opens a connection to the first server that has one. `open` gets the options of a server, and whether
    /// there are others: then it must also find out whether this one accepts writes.
    ///
    /// # Errors
    /// That of the only server. If there are several: that of one that allows no more connections, so that the
    /// pools make room; or an error that may pass, if one of them does not answer or all refuse writes.
    pub(crate) async fn open<C, F>(&self, open: impl Fn(O, bool) -> F) -> sqlx::Result<C>
    where
        F: Future<Output = sqlx::Result<C>>,
    {
        let count = self.servers.len();
        if count == 1 {
            return open(self.servers[0].clone(), false).await;
        }
        let first = self.reached.load(Ordering::Relaxed);
        let mut refusals = Vec::new();
        let (mut full, mut all_answer) = (None, true);
        for server in (first..first + count).map(|server| server % count) {
            let opened = {
                let _passing = Passing {
                    reached: &self.reached,
                    from: server,
                    to: (server + 1) % count,
                };
                timeout(self.limit, open(self.servers[server].clone(), true)).await
            };
            match opened.unwrap_or(Err(Error::PoolTimedOut)) {
                Ok(connection) => {
                    self.reached.store(server, Ordering::Relaxed);
                    return Ok(connection);
                }
                Err(error) => {
                    refusals.push(format!("{}: {error}", server + 1));
                    all_answer &= error.as_database_error().is_some();
                    if is_connection_limit(&error) {
                        full = Some(error);
                    }
                }
            }
        }
        if let Some(full) = full.filter(|_| all_answer) {
            return Err(full);
        }
        let refusals = refusals.join("; ");
        let cause = format!("no server of the URL accepts writes: {refusals}");
        Err(io::Error::new(io::ErrorKind::ConnectionRefused, cause).into())
    }
}

/// Lets the next attempt begin with the next server, also if this one is given up before its end.
struct Passing<'a> {
    reached: &'a AtomicUsize,
    from: usize,
    to: usize,
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        // Another attempt may have reached a server meanwhile.
        let (reached, from, to) = (self.reached, self.from, self.to);
        let _ = reached.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_gets_the_rest_of_the_url() {
        for (url, urls) in [
            ("postgres://a/s", "postgres://a/s"),
            (
                "postgres://u:p@a,b:5433/s?target_session_attrs=read-write&sslmode=disable",
                "postgres://u:p@a/s?sslmode=disable postgres://u:p@b:5433/s?sslmode=disable",
            ),
            (
                "mysql://u:p@q@[::1]:1,b/s",
                "mysql://u:p@q@[::1]:1/s mysql://u:p@q@b/s",
            ),
            (
                "postgres://a,b?target_session_attrs=primary",
                "postgres://a postgres://b",
            ),
            ("sqlite://a,b.db", "sqlite://a,b.db"),
            ("sqlite::memory:", "sqlite::memory:"),
        ] {
            assert_eq!(urls_of(url).unwrap().join(" "), urls);
        }
        let refused = urls_of("postgres://a,b/s?target_session_attrs=any").unwrap_err();
        assert!(refused.contains("read-write"), "{refused}");
    }

    fn hosts(count: usize) -> Hosts<String> {
        let hosts = ["a", "b", "c"][..count].join(",");
        let url = format!("mysql://{hosts}/s");
        Hosts::new(&url, Duration::from_secs(4), |url| Ok(url.to_owned())).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn next_server_is_tried_and_remembered() {
        let hosts = hosts(3);
        let open = async |url: String, others: bool| {
            assert!(others);
            match url.as_str() {
                "mysql://a/s" => std::future::pending().await,
                "mysql://b/s" => Ok(()),
                _ => Err(Error::PoolClosed),
            }
        };
        let begin = tokio::time::Instant::now();
        hosts.open(open).await.unwrap();
        assert_eq!(begin.elapsed(), Duration::from_secs(1));
        assert_eq!(hosts.reached(), "mysql://b/s");
        hosts.clone().open(open).await.unwrap();
        assert_eq!(begin.elapsed(), Duration::from_secs(1), "it is tried first");
    }

    /// A check of readiness waits for less time than a silent server may take.
    #[tokio::test(start_paused = true)]
    async fn attempt_that_is_given_up_leads_to_the_next_server() {
        let hosts = hosts(3);
        let open = async |url: String, _| match url.as_str() {
            "mysql://b/s" => Ok(()),
            _ => std::future::pending().await,
        };
        let first = timeout(Duration::from_millis(1), hosts.open(open));
        first.await.unwrap_err();
        let second = timeout(Duration::from_millis(1), hosts.open(open));
        second.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn no_server_is_an_error_that_may_pass() {
        let refuse = async |_: String, _| sqlx::Result::<()>::Err(Error::PoolClosed);
        let Err(Error::Io(error)) = hosts(2).open(refuse).await else {
            panic!("another error");
        };
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        let only = hosts(1).open(refuse).await;
        assert!(matches!(only, Err(Error::PoolClosed)));
    }
}
