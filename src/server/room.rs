//! Keeps a few connections free, so that a probe, or whoever else is new, is not locked out by
//! clients that keep theirs and say nothing.

use hyper::Response;
use hyper::header::{CONNECTION, HeaderValue};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

/// How many connections there are of how many, and the call to the idle ones to go.
#[derive(Debug, Clone)]
pub(super) struct Room {
    connections: TaskTracker,
    max: usize,
    call: watch::Sender<()>,
}

impl Room {
    /// `connections` has one task for each connection.
    pub(super) fn new(connections: TaskTracker, max: usize) -> Self {
        let (call, _) = watch::channel(());
        Self {
            connections,
            max,
            call,
        }
    }

    /// Whether more than nine tenths of the connections are in use.
    pub(super) fn is_short(&self) -> bool {
        self.connections.len() * 10 > self.max * 9
    }

    /// Calls upon idle connections to go if room is short. They look again before they do, so
    /// about as many go as must.
    pub(super) fn make(&self) {
        if self.is_short() {
            self.call.send_replace(());
        }
    }

    /// What a connection hears calls with.
    pub(super) fn calls(&self) -> watch::Receiver<()> {
        self.call.subscribe()
    }

    /// Lets the connection end with its answer if room is short: it would be idle next.
    pub(super) fn mark<B>(&self, response: &mut Response<B>) {
        if self.is_short() {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
        }
    }
}
