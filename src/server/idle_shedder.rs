//! Closes idle connections when few are left, so that a probe or a new client can always connect.

use hyper::Response;
use hyper::header::{CONNECTION, HeaderValue};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

/// Counts the connections, and asks idle ones to close.
#[derive(Debug, Clone)]
pub(super) struct IdleShedder {
    connections: TaskTracker,
    max: usize,
    signal: watch::Sender<()>,
}

impl IdleShedder {
    /// `connections` has one task for each connection; `max` is their bound.
    pub(super) fn new(connections: TaskTracker, max: usize) -> Self {
        let (signal, _) = watch::channel(());
        Self {
            connections,
            max,
            signal,
        }
    }

    /// Whether more than nine tenths of the connections are in use.
    pub(super) fn is_crowded(&self) -> bool {
        self.connections.len() * 10 > self.max * 9
    }

    /// Asks idle connections to close if it is crowded. Each checks again before it closes, so
    /// about as many close as necessary.
    pub(super) fn shed_idle(&self) {
        if self.is_crowded() {
            self.signal.send_replace(());
        }
    }

    /// Changes when idle connections are asked to close.
    pub(super) fn subscribe(&self) -> watch::Receiver<()> {
        self.signal.subscribe()
    }

    /// If it is crowded, closes the connection after this response instead of keeping it idle.
    pub(super) fn close_if_crowded<B>(&self, response: &mut Response<B>) {
        if self.is_crowded() {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
        }
    }
}
