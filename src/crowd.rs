//! The open client connections, and whether there are so many that silent clients must make room.

use std::time::Duration;

use tokio_util::task::TaskTracker;

/// How long the server waits for a silent client while it is crowded.
pub(crate) const CROWDED_WAIT: Duration = Duration::from_secs(1);

/// The open client connections of a replica. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Crowd {
    /// One task for each connection.
    pub(crate) connections: TaskTracker,
    max_connections: usize,
}

impl Crowd {
    /// No connection yet.
    pub(crate) fn new(max_connections: u32) -> Self {
        Self {
            connections: TaskTracker::new(),
            max_connections: max_connections as usize,
        }
    }

    /// Whether more than nine tenths of the connections are in use. Idle ones are closed then, and silent
    /// clients get [`CROWDED_WAIT`], so that a probe or a new client can always connect.
    pub(crate) fn is_crowded(&self) -> bool {
        self.connections.len() * 10 > self.max_connections * 9
    }

    /// The time to wait for a client that has to send or read something.
    pub(crate) fn wait(&self, limit: Duration) -> Duration {
        if self.is_crowded() {
            limit.min(CROWDED_WAIT)
        } else {
            limit
        }
    }
}
