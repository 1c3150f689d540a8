//! Triggers: the message that a proxy looks for, and what the proxy does when it finds it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Upper bound on the length of a pattern.
const LONGEST_PATTERN: usize = 64;
/// Upper bound on the waits of [`Hold`]. An idle machine needs milliseconds.
const HELD_WITHIN: Duration = Duration::from_secs(20);

/// The sender whose bytes a trigger reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

/// What a trigger does.
#[derive(Debug)]
pub(super) enum Action {
    /// Closes the connection before the message is forwarded.
    CutBefore,
    /// Closes the connection when the server starts to answer the message.
    CutAfter,
    /// Holds the message, and everything after it, until the token is cancelled.
    Hold(CancellationToken),
    /// The same, and closes the connection to the client at once. Closes the one to the server when
    /// it has answered.
    HoldAndCut(CancellationToken),
}

/// Looks for one message, a number of times.
#[derive(Debug)]
pub struct Trigger {
    sender: Side,
    pattern: Vec<u8>,
    pub(super) action: Action,
    /// How often it may still fire.
    left: AtomicU32,
    fired: watch::Sender<u32>,
}

impl Trigger {
    /// How many connections it has closed, or messages it has held.
    pub fn fired(&self) -> u32 {
        *self.fired.borrow()
    }

    /// Ignores every message from now on.
    pub fn disarm(&self) {
        self.left.store(0, Ordering::SeqCst);
    }

    /// Whether the pattern ends in the last `new` bytes of `seen` and the trigger is armed. Uses one
    /// of its times if so.
    fn takes(&self, seen: &[u8], new: usize) -> bool {
        // A pattern that ends before the new bytes was found when it arrived.
        let start = seen.len().saturating_sub(new + self.pattern.len() - 1);
        let mut windows = seen[start..].windows(self.pattern.len());
        let decrement = |left: u32| left.checked_sub(1);
        windows.any(|window| window == self.pattern)
            && self
                .left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, decrement)
                .is_ok()
    }

    /// Returns when it has fired this often.
    async fn has_fired(&self, times: u32) {
        let mut fired = self.fired.subscribe();
        let done = tokio::time::timeout(HELD_WITHIN, fired.wait_for(|&fired| fired >= times)).await;
        let pattern = self.pattern.escape_ascii();
        done.unwrap_or_else(|_| panic!("no \"{pattern}\" within {HELD_WITHIN:?}"))
            .expect("the sender lives as long as the trigger");
    }

    pub(super) fn count(&self) {
        self.fired.send_modify(|fired| *fired += 1);
    }
}

/// Holds one message, or will hold it when it arrives. Dropping this releases the message.
#[derive(Debug)]
pub struct Hold {
    trigger: Arc<Trigger>,
    release: CancellationToken,
}

impl Hold {
    /// Returns when the proxy holds the message: it has been sent and not been received.
    ///
    /// # Panics
    /// If the message does not come within 20 s.
    pub async fn held(&self) {
        self.trigger.has_fired(1).await;
    }

    /// Releases a message of [`Proxy::hold_and_cut`](super::Proxy::hold_and_cut), and returns when the
    /// server has answered it.
    ///
    /// # Panics
    /// If the answer does not come within 20 s.
    pub async fn deliver(&self) {
        self.release.cancel();
        self.trigger.has_fired(2).await;
    }

    /// Releases the message, and everything that waits behind it.
    pub fn let_go(self) {
        drop(self);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // A message held later would never be released.
        self.trigger.disarm();
        self.release.cancel();
    }
}

/// The triggers of a proxy, in the order in which they were armed.
#[derive(Debug, Default)]
pub(super) struct Triggers(Mutex<Vec<Arc<Trigger>>>);

impl Triggers {
    pub(super) fn arm(
        &self,
        sender: Side,
        pattern: &[u8],
        action: Action,
        times: u32,
    ) -> Arc<Trigger> {
        assert!((1..=LONGEST_PATTERN).contains(&pattern.len()));
        let trigger = Arc::new(Trigger {
            sender,
            pattern: pattern.to_vec(),
            action,
            left: AtomicU32::new(times),
            fired: watch::Sender::new(0),
        });
        let mut triggers = lock(&self.0);
        triggers.retain(|trigger| trigger.left.load(Ordering::SeqCst) > 0);
        triggers.push(Arc::clone(&trigger));
        trigger
    }

    pub(super) fn arm_hold(
        &self,
        sender: Side,
        pattern: &[u8],
        action: impl FnOnce(CancellationToken) -> Action,
    ) -> Hold {
        let release = CancellationToken::new();
        Hold {
            trigger: self.arm(sender, pattern, action(release.clone()), 1),
            release,
        }
    }
}

/// Looks for the triggers' patterns in what one side of a connection sends.
pub(super) struct Watcher<'a> {
    triggers: &'a Triggers,
    sender: Side,
    /// The end of the earlier pieces, because a pattern may span two reads.
    seen: Vec<u8>,
}

impl<'a> Watcher<'a> {
    pub(super) fn new(triggers: &'a Triggers, sender: Side) -> Self {
        Self {
            triggers,
            sender,
            seen: Vec::new(),
        }
    }

    /// The trigger whose pattern this piece completes.
    pub(super) fn look(&mut self, piece: &[u8]) -> Option<Arc<Trigger>> {
        self.seen.extend_from_slice(piece);
        let found = lock(&self.triggers.0)
            .iter()
            .find(|trigger| trigger.sender == self.sender && trigger.takes(&self.seen, piece.len()))
            .cloned();
        let kept = self.seen.len().min(LONGEST_PATTERN);
        self.seen.drain(..self.seen.len() - kept);
        found
    }
}

pub(super) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
