//! A barrier: participants go in together, and come out together.
//!
//! Each participant holds one of as many permits as there are participants, so one that dies loses its
//! place at the end of its lease. The gate is a number: the greatest token that was let in. A participant
//! that finds as many holders above the gate as there are participants replaces the gate by the greatest
//! token of them. Each participant whose token is not above the gate is let in. Tokens grow, so an old
//! gate lets no later participant in.
//!
//! The last one that leaves finds no token that is not above the gate, and removes the gate. That wakes
//! those that wait to leave.

use std::time::Duration;

use super::Number;
use crate::api::builder::LockBuilder;
use crate::api::guard::{LockGuard, ReleaseOutcome};
use crate::api::lost::Lost;
use crate::api::manager::LockManager;
use crate::backend::Change;
use crate::shared::error::LockError;
use crate::shared::token::Token;

/// How long the gate stays on the server after it was opened. Without it, those that are still inside
/// would count as waiting.
const KEEP: Duration = Duration::from_hours(24);

/// How often a participant that leaves looks for others that have died. The server reports only those
/// that leave.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Lets a fixed number of participants in together, and out together: a double barrier. Created by
/// [`LockManager::barrier`](crate::LockManager::barrier).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration; use stocklock_locks::{LockManager, local::LocalBackend};
/// let locks = LockManager::new(LocalBackend::new());
/// let limit = Duration::from_secs(60);
/// // In each of two processes:
/// let work = || async {
///     let party = locks.barrier("simulation", 2).enter(limit).await?; // both are here
///     /* ... work ... */
///     party.leave(limit).await // both are done
/// };
/// # tokio::try_join!(work(), work())?;
/// # Ok(()) }
/// ```
///
/// The barrier can be used again and again with the same name. To wait only at the start, leave with a
/// limit of zero. One that enters again is let in when all others have left and entered again too. On
/// Redis, that is so for a day after the participants were let in.
///
/// - **Dead participants.** A dead process counts as present until its lease ends, on ZooKeeper its
///   session. Until then, the others may be let in with it, also if it starts again and waits beside its
///   old place. One that dies inside keeps the others only until then; a participant that leaves notices
///   that within a second. One whose future is dropped while it waits leaves in the background.
/// - **More participants** than `parties` wait until others have left.
/// - **Lost answers** have no effect: all requests may be repeated.
/// - **Expiry.** Nothing is left on the server after the last participant has left. If all die, the gate
///   stays: on Redis for a day, on ZooKeeper until the next use of the name.
///
/// A barrier uses the permits with its name, so do not use that name for permits or read-write locks.
#[derive(Debug, Clone)]
pub struct Barrier {
    place: LockBuilder,
    gate: Number,
    parties: u32,
}

impl Barrier {
    pub(super) fn new(manager: &LockManager, name: &str, parties: u32) -> Self {
        Self {
            place: manager.permits(name, 1, parties),
            gate: Number::new(manager, "gate", name, Some(KEEP)),
            parties,
        }
    }

    /// Sets after which time without renewals a participant counts as dead. Default: that of the manager's
    /// locks. ZooKeeper ignores it: a participant lives as long as its session.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.place = self.place.lease(lease);
        self
    }

    /// Enters, and waits until all participants are present.
    ///
    /// # Errors
    /// - [`LockError::Incomplete`] if the others were not present within `limit`. In rare cases they were
    ///   let in at that moment; for them, this participant has left.
    /// - [`LockError::WaitLimit`] if other participants had all places until then.
    /// - [`LockError::Lost`] if this participant lost its place.
    /// - The other errors of [`LockBuilder::acquire`].
    ///
    /// # Cancel safety
    /// The future may be dropped at any point. The place is given back in the background.
    pub async fn enter(&self, limit: Duration) -> Result<Party, LockError> {
        let clock = &self.gate.manager.engine().clock;
        let started = clock.now();
        let guard = self.place.clone().wait(limit).acquire().await?;
        let rest = limit.saturating_sub(clock.now().since(started));
        let opened = tokio::select! {
            biased;
            reason = guard.lost() => Err(LockError::Lost { reason }),
            opened = self.open(guard.token(), rest) => opened,
        };
        match opened {
            Ok(Some(gate)) => Ok(Party {
                barrier: self.clone(),
                guard,
                gate,
            }),
            refused => {
                guard.release().await;
                refused.and(Err(LockError::Incomplete { limit }))
            }
        }
    }

    /// Opens the gate if all participants are present. Waits until it is open for this token, and returns
    /// it.
    async fn open(&self, token: Token, limit: Duration) -> Result<Option<i64>, LockError> {
        let parties = usize::try_from(self.parties).unwrap_or(usize::MAX);
        loop {
            // Those below the gate are inside, so they do not wait. If the gate changes after it was read,
            // the count may be wrong, and the gate is not replaced.
            let expected = self.gate.get().await?;
            let mut waiting = self.present().await?;
            waiting.retain(|token| token.get() > expected);
            let Some(newest) = waiting.iter().max() else {
                break;
            };
            let to = newest.get();
            if waiting.len() < parties || self.gate.compare_exchange(expected, to).await? {
                break;
            }
        }
        let is_open = |gate| gate >= token.get();
        self.gate.wait_for(limit, is_open).await
    }

    /// Returns whether all that this gate let in have left, and removes the gate then. Otherwise waits
    /// for a change, but no longer than this.
    async fn others_left(&self, gate: i64, wait: Duration) -> Result<bool, LockError> {
        // Read the gate before the tokens: a participant that leaves in between changes it.
        let seen = self.gate.get().await?;
        let present = self.present().await?;
        if present.iter().all(|token| token.get() > gate) {
            let remove = Change::Remove { only: Some(gate) };
            self.gate.change(remove).await?;
            return Ok(true);
        }
        if !wait.is_zero() {
            self.gate.wait_for(wait, |gate| gate != seen).await?;
        }
        Ok(false)
    }

    /// The tokens of all that wait or are inside.
    async fn present(&self) -> Result<Vec<Token>, LockError> {
        let numbers = self.gate.numbers()?;
        let name = &self.gate.key.name;
        let ask = self.gate.ask("look into", || numbers.tokens(name));
        ask.await
    }
}

/// A participant that was let in by a [`Barrier`].
///
/// Dropping it leaves in the background, without waiting for the others.
#[derive(Debug)]
#[must_use = "the participant leaves when it is dropped"]
pub struct Party {
    barrier: Barrier,
    guard: LockGuard,
    /// The gate when it let this participant in.
    gate: i64,
}

impl Party {
    /// Returns a future that completes when this participant counts as dead: see [`LockGuard::lost`].
    pub fn lost(&self) -> Lost {
        self.guard.lost()
    }

    /// Returns the guard of this participant's permit, for its token and for checks.
    pub fn guard(&self) -> &LockGuard {
        &self.guard
    }

    /// Leaves, and waits until all others have left or died.
    ///
    /// # Errors
    /// - [`LockError::Incomplete`] if the others had not left within `limit`. This participant has.
    /// - [`LockError::Lost`] if this participant has lost its place before. The others may have left without
    ///   it.
    /// - [`LockError::Unavailable`] if the server did not answer within `limit` either, and
    ///   [`LockError::Shutdown`]. This participant leaves in the background.
    ///
    /// # Cancel safety
    /// The future may be dropped at any point. The participant leaves in the background.
    pub async fn leave(self, limit: Duration) -> Result<(), LockError> {
        let Self {
            barrier,
            guard,
            gate,
        } = self;
        let clock = &barrier.gate.manager.engine().clock;
        let until = clock.now() + limit;
        if let ReleaseOutcome::AlreadyLost { reason, .. } = guard.release().await {
            return Err(LockError::Lost { reason });
        }
        loop {
            let rest = until.since(clock.now()).min(LOOK_EVERY);
            let others_left = barrier.others_left(gate, rest).await;
            let is_over = clock.now() >= until;
            match others_left {
                Ok(true) => return Ok(()),
                Ok(false) if is_over => return Err(LockError::Incomplete { limit }),
                Err(LockError::Unavailable(error)) if !error.is_permanent() && !is_over => {}
                Ok(false) => {}
                Err(error) => return Err(error),
            }
        }
    }
}
