//! All masters together: asks them at the same time, and remembers who voted for which lock.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::task::TaskTracker;

use super::node::{Ballot, Loss, Node};
use crate::backend::{Renewed, Request};
use crate::shared::error::{BackendError, LostReason};
use crate::shared::lock::lock;
use crate::shared::managers::Managers;
use crate::shared::nonce::Nonce;
use crate::shared::retry::Backoff;

/// How much longer than the first majority the other masters may take, at least.
const GRACE: Duration = Duration::from_millis(5);

/// The answer of each master. `None` if it has not answered.
pub(super) type Answers<T> = Vec<Option<Result<T, BackendError>>>;

/// How many masters have given such an answer.
pub(super) fn count<T>(answers: &Answers<T>, is_wanted: impl Fn(&T) -> bool) -> usize {
    let known = answers.iter().flatten().flatten();
    known.filter(|answer| is_wanted(answer)).count()
}

/// Why a lock is lost: it was revoked if one of the masters reports that.
fn reason<'a>(mut losses: impl Iterator<Item = &'a Loss>) -> LostReason {
    if losses.any(|loss| *loss == Some(LostReason::Revoked)) {
        LostReason::Revoked
    } else {
        LostReason::Stolen
    }
}

/// Whether so many answers are enough, or those that are still open cannot make them so.
pub(super) const fn is_decided(count: usize, open: usize, needed: usize) -> bool {
    count >= needed || count + open < needed
}

/// The masters that have not answered.
pub(super) fn unanswered<T>(answers: &Answers<T>) -> usize {
    answers.iter().filter(|answer| answer.is_none()).count()
}

/// The votes to renew on one master, and the numbers of their renewals.
type Renewals = (Vec<(Ballot, Duration)>, Vec<usize>);

#[derive(Debug)]
pub(super) struct Quorum {
    nodes: Vec<Arc<Node>>,
    pub(super) max_lease: Duration,
    /// How long one master may take to connect, and to answer.
    pub(super) limit: Duration,
    pub(super) managers: Managers,
    /// The requests whose answer may be awaited no longer.
    requests: TaskTracker,
    held: Mutex<HashMap<Nonce, Votes>>,
}

/// The votes for a lock. A master that has lost its vote is removed, and never added again.
#[derive(Debug, Clone)]
pub(super) struct Votes {
    pub(super) ballot: Ballot,
    pub(super) nodes: Vec<usize>,
    /// The masters that a request for a vote may still reach. `None`: all, because an earlier attempt was not
    /// answered.
    pub(super) open: Option<Vec<usize>>,
}

impl Votes {
    /// Whether a request for a vote may still reach this master.
    pub(super) fn is_open(&self, node: usize) -> bool {
        self.open.as_ref().is_none_or(|open| open.contains(&node))
    }
}

impl Quorum {
    pub(super) fn new(nodes: Vec<Arc<Node>>, max_lease: Duration, limit: Duration) -> Self {
        let requests = TaskTracker::new();
        // Accepts tasks nevertheless, and can be waited for.
        requests.close();
        Self {
            nodes,
            max_lease,
            limit,
            managers: Managers::default(),
            requests,
            held: Mutex::default(),
        }
    }

    pub(super) fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    pub(super) const fn majority(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    /// How long a lock is valid after the request for it was sent. The clocks of the masters may run
    /// faster than the clock of this machine.
    pub(super) fn validity(&self, lease: Duration) -> Duration {
        let lease = lease.min(self.max_lease);
        lease.saturating_sub(lease / 100 + Duration::from_millis(2))
    }

    /// [`ask_within`](Self::ask_within) the time that a master may take: for a connection, and two answers.
    /// See [`Node::within_limit`].
    pub(super) async fn ask<T, F>(
        &self,
        request: impl Fn(usize, Arc<Node>) -> F,
        enough: impl Fn(&Answers<T>) -> bool,
    ) -> Answers<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, BackendError>> + Send + 'static,
    {
        self.ask_within(self.limit * 3, request, enough).await
    }

    /// Sends a request to all masters at the same time. Waits until the answers are `enough`, and then a
    /// little for the others, but no longer than `limit`.
    ///
    /// The requests run in tasks: those of a dropped future, and those to slow masters, still arrive.
    pub(super) async fn ask_within<T, F>(
        &self,
        limit: Duration,
        request: impl Fn(usize, Arc<Node>) -> F,
        enough: impl Fn(&Answers<T>) -> bool,
    ) -> Answers<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, BackendError>> + Send + 'static,
    {
        let started = Instant::now();
        let send = |(index, node): (usize, &Arc<Node>)| {
            let task = self.requests.spawn(request(index, Arc::clone(node)));
            async move {
                let stopped = |_| BackendError::transient("the Tokio runtime was shut down");
                (index, task.await.map_err(stopped).flatten())
            }
        };
        let mut pending: FuturesUnordered<_> = self.nodes.iter().enumerate().map(send).collect();
        let mut answers: Answers<T> = self.nodes.iter().map(|_| None).collect();
        let mut end = started + limit;
        let mut is_enough = false;
        while let Ok(Some((index, answer))) = timeout_at(end, pending.next()).await {
            answers[index] = Some(answer);
            if !is_enough && enough(&answers) {
                is_enough = true;
                end = end.min(Instant::now() + started.elapsed() + GRACE);
            }
        }
        answers
    }

    /// Waits for the requests that are on their way: slow masters also get their releases. Those of other
    /// managers may never end.
    pub(super) async fn finish_requests(&self) {
        let finished = timeout(self.limit * 3, self.requests.wait()).await;
        if finished.is_err() {
            tracing::debug!("other managers still use the connections to the masters");
        }
    }

    /// The error if fewer than a majority of the masters answered usably. It names a problem of each of
    /// the others.
    pub(super) fn too_few<T>(
        &self,
        usable: usize,
        answers: &Answers<T>,
        problem: impl Fn(&T) -> Option<String>,
    ) -> BackendError {
        let mut problems = Vec::new();
        let mut refused = 0;
        for (node, answer) in self.nodes.iter().zip(answers) {
            let problem = match answer {
                None => Some("no answer in time".to_owned()),
                Some(Ok(answer)) => problem(answer),
                Some(Err(error)) => {
                    refused += usize::from(error.is_permanent());
                    Some(error.to_string())
                }
            };
            problems.extend(problem.map(|problem| format!("{}: {problem}", node.address)));
        }
        let (all, needed) = (self.nodes.len(), self.majority());
        let problems = problems.join("; ");
        let cause = format!("{usable} of {all} masters can vote, {needed} are needed: {problems}");
        if all - refused < needed {
            BackendError::permanent(cause)
        } else {
            BackendError::transient(cause)
        }
    }

    /// What is wrong with a master that votes in so many seconds.
    pub(super) fn restarted(&self, votes_in: u64) -> String {
        let seconds = self.max_lease.as_secs();
        format!(
            "it was started less than {seconds} s ago and may have lost locks; it votes in {votes_in} s"
        )
    }

    /// How many masters decide that the others are no majority.
    pub(super) const fn minority(&self) -> usize {
        self.nodes.len() - self.majority() + 1
    }

    /// Asks all masters whether they have a vote. Does not wait for those that have not answered if the outcome
    /// no longer depends on them: a majority says yes, or can no longer do so; and if it cannot, whether the
    /// others said no. Returns the loss of the lock, and the answers.
    pub(super) async fn ask_for_loss<F>(
        &self,
        request: impl Fn(usize, Arc<Node>) -> F,
    ) -> Result<(Loss, Answers<Loss>), BackendError>
    where
        F: Future<Output = Result<Loss, BackendError>> + Send + 'static,
    {
        let (majority, enough_no) = (self.majority(), self.minority());
        let count = |answers: &_| {
            (
                count(answers, Option::is_none),
                count(answers, Option::is_some),
            )
        };
        let is_settled = |answers: &Answers<Loss>| {
            let ((yes, no), open) = (count(answers), unanswered(answers));
            yes >= majority || no >= enough_no || (yes + open < majority && no + open < enough_no)
        };
        let answers = self.ask(request, is_settled).await;
        let (yes, no) = count(&answers);
        if yes >= majority {
            Ok((None, answers))
        } else if no >= enough_no {
            let reason = reason(answers.iter().flatten().flatten());
            Ok((Some(reason), answers))
        } else {
            Err(self.too_few(yes + no, &answers, |_| None))
        }
    }

    /// Remembers the votes of a lock that was acquired.
    pub(super) fn insert(&self, votes: Votes) {
        lock(&self.held).insert(votes.ballot.nonce, votes);
    }

    /// Notes an answer that came after the lock was acquired. Even after a refusal, no request of this attempt
    /// can reach the master any more. A master answers each attempt once, so this is not a vote that was lost.
    pub(super) fn note_late(&self, ballot: &Ballot, node: usize, is_given: bool) {
        let mut held = lock(&self.held);
        let votes = held.get_mut(&ballot.nonce);
        let Some(votes) = votes.filter(|votes| votes.ballot.attempt == ballot.attempt) else {
            return;
        };
        if is_given && !votes.nodes.contains(&node) {
            votes.nodes.push(node);
        }
        if let Some(open) = &mut votes.open {
            open.retain(|one| *one != node);
        }
    }

    /// The votes of a lock, unless it was released or lost.
    pub(super) fn votes(&self, nonce: Nonce) -> Option<Votes> {
        lock(&self.held).get(&nonce).cloned()
    }

    pub(super) fn remove(&self, nonce: Nonce) -> Option<Votes> {
        lock(&self.held).remove(&nonce)
    }

    /// Forgets a lock that has lost its majority, and gives its other votes back in the background.
    pub(super) fn give_up(&self, nonce: Nonce) {
        let Some(Votes { ballot, .. }) = self.remove(nonce) else {
            return;
        };
        for node in &self.nodes {
            self.release_on(node, &ballot, false);
        }
    }

    /// Goes on to release a lock, in the background, on the masters that have not answered: a request for a
    /// vote may still reach those that are `unclear`.
    pub(super) fn release_late(
        &self,
        answers: &Answers<Loss>,
        ballot: &Ballot,
        unclear: impl Fn(usize) -> bool,
    ) {
        for (index, (node, answer)) in self.nodes.iter().zip(answers).enumerate() {
            if !matches!(answer, Some(Ok(_))) {
                self.release_on(node, ballot, unclear(index));
            }
        }
    }

    /// Releases a lock on one master, again until that succeeds. After two leases, no vote can be left.
    fn release_on(&self, node: &Arc<Node>, ballot: &Ballot, unclear: bool) {
        let (node, ballot) = (Arc::clone(node), ballot.clone());
        let end = Instant::now() + self.max_lease * 2;
        let mut backoff = Backoff::of_releases(self.max_lease);
        self.requests.spawn(async move {
            while let Err(error) = node.release(&ballot, unclear).await {
                let pause = backoff.next();
                if Instant::now() + pause >= end {
                    let address = &node.address;
                    tracing::debug!(%address, %error, "the vote for a lock must expire");
                    break;
                }
                sleep(pause).await;
            }
        });
    }

    pub(super) fn renewals_by_node(&self, renewals: &[Request]) -> Vec<Renewals> {
        let mut by_node = vec![Renewals::default(); self.nodes.len()];
        let held = lock(&self.held);
        for (number, renewal) in renewals.iter().enumerate() {
            let Some(votes) = held.get(&renewal.nonce) else {
                continue;
            };
            for &node in &votes.nodes {
                let (list, numbers) = &mut by_node[node];
                list.push((votes.ballot.clone(), renewal.lease.min(self.max_lease)));
                numbers.push(number);
            }
        }
        by_node
    }

    /// Removes the votes that masters have lost. The lock is renewed if a majority has confirmed that.
    pub(super) fn count(&self, renewal: &Request, answers: &[(usize, Loss)]) -> Renewed {
        let (left, kept) = {
            let mut held = lock(&self.held);
            let Some(votes) = held.get_mut(&renewal.nonce) else {
                return Renewed::Gone(LostReason::Stolen);
            };
            let is_lost = |node: &usize| {
                answers
                    .iter()
                    .any(|(one, loss)| one == node && loss.is_some())
            };
            votes.nodes.retain(|node| !is_lost(node));
            let is_kept =
                |(node, loss): &&(usize, Loss)| loss.is_none() && votes.nodes.contains(node);
            let kept = answers.iter().filter(is_kept).count();
            (votes.nodes.len(), kept)
        };
        if left < self.majority() {
            self.give_up(renewal.nonce);
            Renewed::Gone(reason(answers.iter().map(|(_, loss)| loss)))
        } else if kept < self.majority() {
            Renewed::Unknown
        } else {
            Renewed::Held(self.validity(renewal.lease))
        }
    }

    pub(super) async fn warnings(&self) -> Vec<String> {
        let warnings = self.nodes.iter().map(async |node| {
            let warnings = node.warnings().await;
            let warnings = warnings.unwrap_or_else(|error| vec![error.to_string()]);
            let named = |warning| format!("{}: {warning}", node.address);
            warnings.into_iter().map(named).collect::<Vec<_>>()
        });
        join_all(warnings).await.concat()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Quorum;

    #[test]
    fn validity_is_the_capped_lease_less_the_drift() {
        let millis = Duration::from_millis;
        let quorum = Quorum::new(Vec::new(), millis(10_000), millis(500));
        for (lease, validity) in [
            (10_000, 9_898),
            (60_000, 9_898),
            (1_000, 988),
            (100, 97),
            (2, 0),
        ] {
            let found = quorum.validity(millis(lease));
            assert_eq!(found, millis(validity), "{lease} ms");
        }
    }
}
