//! Redis masters for locks on a majority of them. Tests share them, because a master votes only after it
//! has been up for longer than the longest lease.

use std::time::Duration;

use tokio::sync::OnceCell;

use super::{PrivateServer, redis, with_path};
use crate::eventually;
use crate::run::variable;

/// Names masters to use, with commas between their URLs.
pub(super) const VARIABLE: &str = "TEST_REDLOCK_URLS";
/// The largest number of masters of one test.
const MASTERS: usize = 5;
/// How much longer than the lease a busy machine may take.
const SLACK: Duration = Duration::from_secs(30);

/// A database on each of several Redis masters, for one test. The databases are empty, and have the same
/// number. Their servers are shared: a test that kills or changes one needs
/// [`PrivateServer::redis`].
#[derive(Debug)]
pub struct TestMasters {
    /// Their URLs.
    pub urls: Vec<String>,
}

impl TestMasters {
    /// Their URLs with commas between them.
    pub fn joined(&self) -> String {
        self.urls.join(",")
    }
}

/// The URLs of the masters that tests share.
pub(super) async fn masters() -> &'static [String] {
    static SHARED: OnceCell<(Vec<String>, Vec<PrivateServer>)> = OnceCell::const_new();
    let shared = SHARED.get_or_init(async || {
        let (mut urls, mut servers) = (Vec::new(), Vec::new());
        if let Some(given) = variable(VARIABLE) {
            urls = given.split(',').map(str::to_owned).collect();
        }
        while urls.len() < MASTERS {
            let server = PrivateServer::redis(&[]).await;
            urls.push(server.url().to_owned());
            servers.push(server);
        }
        (urls, servers)
    });
    &shared.await.0
}

/// Reserves a database on each of `count` masters, at most five. Returns when all of them have been up for
/// longer than `lease`.
///
/// # Panics
/// If they cannot be started.
pub async fn fresh_masters(count: usize, lease: Duration) -> TestMasters {
    assert!(count <= MASTERS, "there are {MASTERS} masters");
    let urls = &Box::pin(masters()).await[..count];
    let urls: Vec<_> = urls.iter().map(String::as_str).collect();
    vote(&urls, lease).await;
    // Not released, but expires: a late message of this test must not meet another one.
    let number = redis::claim(urls[0]).await;
    let number = number.unwrap_or_else(|error| panic!("no database on the masters: {error:#}"));
    let database = |url: &&str| with_path(url, &number.to_string());
    TestMasters {
        urls: urls.iter().map(database).collect(),
    }
}

/// Waits until these Redis masters vote for locks of at most this lease, which clients round up to whole
/// seconds.
///
/// # Panics
/// If that takes much longer than the lease.
pub async fn vote(urls: &[&str], lease: Duration) {
    let whole = lease.as_secs() + u64::from(lease.subsec_nanos() > 0);
    let lease = Duration::from_secs(whole);
    eventually("the masters vote", lease + SLACK, async || {
        for url in urls {
            let uptime = redis::uptime(url).await;
            if !uptime.is_ok_and(|uptime| uptime > lease) {
                return false;
            }
        }
        true
    })
    .await;
}
