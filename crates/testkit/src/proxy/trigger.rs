//! What a proxy looks for in the bytes that pass, and what it does when it finds it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

/// The longest pattern that a trigger may look for.
const LONGEST_PATTERN: usize = 64;
/// How long [`Hold::held`] waits; on an idle machine what it waits for is a moment away.
const HELD_WITHIN: Duration = Duration::from_secs(20);

/// The side whose bytes a trigger reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

/// What a trigger does.
#[derive(Debug)]
pub(super) enum Act {
    /// Closes the connection before the other side has seen the message.
    CutBefore,
    /// Closes the connection when the server has carried the message out and begins to answer; the
    /// client sees no answer.
    CutAfter,
    /// Keeps the message, and what follows it, until it is told to let go.
    Hold(CancellationToken),
}

/// A message to wait for, armed for a number of times.
#[derive(Debug)]
pub struct Trigger {
    sender: Side,
    pattern: Vec<u8>,
    pub(super) act: Act,
    left: AtomicU32,
    fired: watch::Sender<u32>,
}

impl Trigger {
    /// How many connections it has closed, or messages it has held.
    pub fn fired(&self) -> u32 {
        *self.fired.borrow()
    }

    /// Does nothing any more to what comes from now on.
    pub fn disarm(&self) {
        self.left.store(0, Ordering::SeqCst);
    }

    fn is_spent(&self) -> bool {
        self.left.load(Ordering::SeqCst) == 0
    }

    /// Whether the pattern ends in the last `new` bytes of `seen`, and the trigger is still armed.
    fn takes(&self, seen: &[u8], new: usize) -> bool {
        // What lies wholly in the bytes before has been looked at when they came.
        let start = seen.len().saturating_sub(new + self.pattern.len() - 1);
        seen[start..]
            .windows(self.pattern.len())
            .any(|window| window == self.pattern)
            && self
                .left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                    left.checked_sub(1)
                })
                .is_ok()
    }

    pub(super) fn count(&self) {
        self.fired.send_modify(|fired| *fired += 1);
    }
}

/// One message that is kept on its way, or will be when it comes; dropping this lets it go.
#[derive(Debug)]
pub struct Hold {
    trigger: Arc<Trigger>,
    _let_go: DropGuard,
}

impl Hold {
    /// Returns when the message is held: its sender has sent it, and its receiver has not got it.
    ///
    /// # Panics
    /// When it does not come.
    pub async fn held(&self) {
        let mut fired = self.trigger.fired.subscribe();
        let held = tokio::time::timeout(HELD_WITHIN, fired.wait_for(|&fired| fired > 0)).await;
        let pattern = self.trigger.pattern.escape_ascii();
        held.unwrap_or_else(|_| panic!("no \"{pattern}\" within {HELD_WITHIN:?}"))
            .expect("the trigger lives as long as this");
    }

    /// Lets the message go on, with all that waits behind it.
    pub fn let_go(self) {
        drop(self);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // Nobody is there any more to let go of one that comes later.
        self.trigger.disarm();
    }
}

/// The triggers of a proxy, in the order in which they were armed.
#[derive(Debug, Default)]
pub(super) struct Triggers(Mutex<Vec<Arc<Trigger>>>);

impl Triggers {
    pub(super) fn arm(&self, sender: Side, pattern: &[u8], act: Act, times: u32) -> Arc<Trigger> {
        assert!((1..=LONGEST_PATTERN).contains(&pattern.len()));
        let trigger = Arc::new(Trigger {
            sender,
            pattern: pattern.to_vec(),
            act,
            left: AtomicU32::new(times),
            fired: watch::Sender::new(0),
        });
        let mut triggers = lock(&self.0);
        triggers.retain(|trigger| !trigger.is_spent());
        triggers.push(Arc::clone(&trigger));
        drop(triggers);
        trigger
    }

    pub(super) fn arm_hold(&self, sender: Side, pattern: &[u8]) -> Hold {
        let over = CancellationToken::new();
        Hold {
            trigger: self.arm(sender, pattern, Act::Hold(over.clone()), 1),
            _let_go: over.drop_guard(),
        }
    }
}

/// Looks for the triggers' patterns in what one side of a connection sends.
pub(super) struct Watcher<'a> {
    triggers: &'a Triggers,
    sender: Side,
    /// The end of what came before, since a pattern may lie across two reads.
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
