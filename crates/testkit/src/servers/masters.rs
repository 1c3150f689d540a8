//! Redis masters for locks on a majority of them. The tests of a process share them, because a master
//! votes only after it has been up for longer than the longest lease.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::OnceCell;

use super::{PrivateServer, redis, with_path};
use crate::eventually;

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

/// Reserves a database on each of `count` masters, at most five. Returns when all of them have been up for
/// longer than `lease`.
///
/// # Panics
/// If they cannot be started.
pub async fn fresh_masters(count: usize, lease: Duration) -> TestMasters {
    static SERVERS: OnceCell<Vec<PrivateServer>> = OnceCell::const_new();
    static LAST: AtomicU32 = AtomicU32::new(0);
    assert!(count <= MASTERS, "there are {MASTERS} masters");
    let servers = SERVERS.get_or_init(async || {
        let mut servers = Vec::new();
        for _ in 0..MASTERS {
            servers.push(PrivateServer::redis(&[]).await);
        }
        servers
    });
    let servers = servers.await;
    let urls: Vec<_> = servers[..count].iter().map(PrivateServer::url).collect();
    vote(&urls, lease).await;
    // Numbers are not used again. A server has more databases than one run has tests.
    let number = LAST.fetch_add(1, Ordering::SeqCst).to_string();
    let database = |url: &&str| with_path(url, &number);
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
