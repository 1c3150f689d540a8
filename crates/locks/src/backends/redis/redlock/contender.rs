//! One acquisition: asks all masters for their votes.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::node::{Ballot, Loss, Node, Vote};
use super::quorum::{Answers, Quorum, Votes, count, is_decided, unanswered};
use crate::backend::{Attempt, Contender, Grant, Left, Request, Sealed};
use crate::shared::error::{BackendError, was_answered};

/// The longest time until a waiter asks again, first and after several attempts. It is random, so that
/// clients that split the votes do not meet again.
const FIRST_POLL: Duration = Duration::from_millis(5);
const LONGEST_POLL: Duration = Duration::from_millis(100);

pub(super) struct QuorumContender {
    pub(super) quorum: Arc<Quorum>,
    pub(super) request: Request,
    /// The number of the last attempt.
    pub(super) attempt: u64,
    /// How often the lock was busy.
    pub(super) busy: u32,
    pub(super) left: Left,
}

impl QuorumContender {
    fn ask_again(&mut self) -> Duration {
        let longest = (FIRST_POLL * 2_u32.pow(self.busy.min(10))).min(LONGEST_POLL);
        self.busy += 1;
        longest
            .mul_f64(fastrand::f64())
            .max(Duration::from_millis(1))
    }

    /// Gives back the votes of this attempt and earlier ones. Returns whether none can be left.
    async fn give_back(&self, ballot: &Ballot, votes: &Answers<Vote>) -> bool {
        let release = |_, node: Arc<Node>| {
            let ballot = ballot.clone();
            async move { node.release(&ballot, false).await }
        };
        let majority = self.quorum.majority();
        // A master that has not answered before is not waited for.
        let enough = |answers: &Answers<Loss>| {
            let mut both = votes.iter().zip(answers);
            answers.iter().flatten().count() >= majority
                || both.all(|(vote, answer)| vote.is_none() || answer.is_some())
        };
        let answers = self.quorum.ask(release, enough).await;
        let mut both = votes.iter().zip(&answers);
        both.all(|(vote, answer)| {
            let has_none = matches!(vote, Some(Err(error)) if error.is_refusal());
            has_none || matches!(answer, Some(Ok(_)))
        })
    }
}

/// The masters that the request may still reach.
fn open<T>(answers: &Answers<T>) -> Vec<usize> {
    let is_open = |node: &usize| !answers[*node].as_ref().is_some_and(was_answered);
    (0..answers.len()).filter(is_open).collect()
}

fn is(wanted: Vote) -> impl Fn(&Vote) -> bool {
    move |vote| *vote == wanted
}

impl Sealed for QuorumContender {}

#[async_trait]
impl Contender for QuorumContender {
    async fn attempt(&mut self) -> Result<Attempt, BackendError> {
        self.attempt += 1;
        let was_unclear = std::mem::replace(&mut self.left, Left::Unclear) == Left::Unclear;
        let ballot = Ballot {
            name: self.request.name.to_string(),
            nonce: self.request.nonce,
            attempt: self.attempt,
        };
        let lease = self.request.lease.min(self.quorum.max_lease);
        let vote = |index: usize, node: Arc<Node>| {
            let (ballot, quorum) = (ballot.clone(), Arc::clone(&self.quorum));
            async move {
                let vote = node.vote(&ballot, lease).await;
                if was_answered(&vote) {
                    quorum.note_late(&ballot, index, matches!(vote, Ok(Vote::Given)));
                }
                vote
            }
        };
        let majority = self.quorum.majority();
        // Whether it is held, and if not, whether enough masters can vote.
        let is_settled = |answers: &Answers<Vote>| {
            let (given, open) = (count(answers, is(Vote::Given)), unanswered(answers));
            let voters = given + count(answers, is(Vote::Taken));
            let is_known = is_decided(given, open, majority) && is_decided(voters, open, majority);
            given >= majority || is_known
        };
        let answers = self.quorum.ask(vote, is_settled).await;
        let open = open(&answers);
        let is_unclear = was_unclear || !open.is_empty();
        let given = count(&answers, is(Vote::Given));
        if given >= majority {
            let gave = |node: &usize| matches!(answers[*node], Some(Ok(Vote::Given)));
            self.quorum.insert(Votes {
                ballot,
                nodes: (0..answers.len()).filter(gave).collect(),
                open: (!was_unclear).then_some(open),
            });
            if !is_unclear {
                self.left = Left::Something;
            }
            return Ok(Attempt::Held(Grant {
                fence: None,
                lease: self.quorum.validity(lease),
            }));
        }
        let has_votes = given > 0 || !open.is_empty();
        let is_clear = !has_votes || self.give_back(&ballot, &answers).await;
        let is_unclear = is_unclear || !is_clear;
        if !is_unclear {
            self.left = Left::Nothing;
        }
        if count(&answers, is(Vote::Released)) > 0 {
            return Err(BackendError::already_released());
        }
        let voters = given + count(&answers, is(Vote::Taken));
        if voters < majority {
            let problem = |vote: &Vote| match vote {
                Vote::Restarted(votes_in) => Some(self.quorum.restarted(*votes_in)),
                _ => None,
            };
            let error = self.quorum.too_few(voters, &answers, problem);
            let answered = answers.iter().flatten();
            let mut failures = answered.filter_map(|vote| vote.as_ref().err());
            let may_pass = is_unclear || failures.any(BackendError::may_pass_at_once);
            return Err(if may_pass { error } else { error.refused() });
        }
        Ok(Attempt::Busy {
            ask_again: Some(self.ask_again()),
        })
    }

    /// No master can know when a majority is free, so waiters only ask again after a random time.
    async fn wait(&mut self) -> Result<(), BackendError> {
        std::future::pending().await
    }

    fn left(&self) -> Left {
        self.left
    }
}
