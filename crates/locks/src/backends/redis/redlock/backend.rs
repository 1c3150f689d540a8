//! The interface of the manager to the masters.

use std::sync::Arc;

use async_trait::async_trait;

use super::RedLockBackend;
use super::contender::QuorumContender;
use super::node::{Ballot, Loss, Node};
use super::quorum::{Answers, no, reason, yes};
use crate::backend::{
    Backend, Contender, Extras, Fencing, Nudge, Properties, Release, ReleaseRequest, Renewal,
    Renewed, Request, Sealed,
};
use crate::shared::error::{BackendError, LostReason};
use crate::shared::nonce::Nonce;

/// For each renewal, the masters with such an answer.
fn answered(
    answers: &Answers<Vec<Loss>>,
    numbers: &[&[usize]],
    renewals: usize,
    is_wanted: impl Fn(&Loss) -> bool,
) -> Vec<Vec<usize>> {
    let mut found = vec![Vec::new(); renewals];
    for (node, answer) in answers.iter().enumerate() {
        let Some(Ok(losses)) = answer else { continue };
        for (loss, &number) in losses.iter().zip(numbers[node]) {
            if is_wanted(loss) {
                found[number].push(node);
            }
        }
    }
    found
}

/// There are no tokens.
impl Fencing for RedLockBackend {
    type Token = ();
}

impl Sealed for RedLockBackend {}

#[async_trait]
impl Backend for RedLockBackend {
    fn properties(&self) -> Properties {
        Properties {
            name: "redlock",
            // A failed attempt also gives its votes back.
            response_limit: self.0.limit * 6,
            session: None,
            max_lease: Some(self.0.max_lease),
            lookahead: 0,
        }
    }

    fn extras(&self) -> Extras<'_> {
        Extras::default()
    }

    fn contender(&self, request: Request) -> Box<dyn Contender> {
        Box::new(QuorumContender::new(Arc::clone(&self.0), request))
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>, BackendError> {
        let by_node = self.0.renewals_by_node(renewals);
        let numbers: Vec<&[usize]> = by_node.iter().map(|(_, numbers)| &**numbers).collect();
        let request = |index: usize, node: Arc<Node>| {
            let list = by_node[index].0.clone();
            async move {
                if list.is_empty() {
                    return Ok(Vec::new());
                }
                node.renew(&list).await
            }
        };
        // Locks in one request may have votes of different masters. One whose majority depends on a silent
        // master does not delay the others for longer than a watchdog waits.
        let is_settled = |answers: &Answers<Vec<Loss>>| {
            let kept = answered(answers, &numbers, renewals.len(), Loss::is_none);
            kept.iter().enumerate().all(|(number, kept)| {
                let is_open = |(node, answer): &(usize, &Option<_>)| {
                    answer.is_none() && numbers[*node].contains(&number)
                };
                let open = answers.iter().enumerate().filter(is_open).count();
                kept.len() >= self.0.majority() || kept.len() + open < self.0.majority()
            })
        };
        let shortest = renewals.iter().map(|renewal| renewal.lease).min();
        let shortest = shortest.unwrap_or_default().min(self.0.max_lease);
        let limit = (self.0.limit * 3).min(shortest / 4);
        let answers = self.0.ask_within(limit, request, is_settled).await;
        let masters =
            |is_wanted: fn(&Loss) -> bool| answered(&answers, &numbers, renewals.len(), is_wanted);
        let (kept, lost) = (masters(Loss::is_none), masters(Loss::is_some));
        let revoked = masters(|loss| *loss == Some(LostReason::Revoked));
        let count = |(number, renewal): (usize, &Renewal)| {
            let reason = if revoked[number].is_empty() {
                LostReason::Stolen
            } else {
                LostReason::Revoked
            };
            self.0.count(renewal, &kept[number], &lost[number], reason)
        };
        Ok(renewals.iter().enumerate().map(count).collect())
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<Release, BackendError> {
        let votes = self.0.remove(request.nonce);
        let ballot = Ballot {
            name: request.name.to_string(),
            nonce: request.nonce,
            attempt: u64::MAX,
        };
        let unclear = |index: usize| {
            let is_open = votes.as_ref().is_none_or(|votes| votes.is_open(index));
            request.unclear && is_open
        };
        let release = |index: usize, node: Arc<Node>| {
            let (ballot, unclear) = (ballot.clone(), unclear(index));
            async move { node.release(&ballot, unclear).await }
        };
        let majority = self.0.majority();
        let is_settled = |answers: &_| self.0.is_settled(answers);
        let answers = self.0.ask(release, is_settled).await;
        if yes(&answers) >= majority {
            self.0.release_late(&answers, &ballot, unclear);
            Ok(Release::Released)
        } else if no(&answers) > self.0.nodes().len() - majority {
            self.0.release_late(&answers, &ballot, unclear);
            Ok(Release::NotHeld(reason(&answers)))
        } else {
            let usable = yes(&answers) + no(&answers);
            Err(self.0.too_few(usable, &answers, |_| None))
        }
    }

    async fn verify(&self, _name: &str, nonce: Nonce) -> Result<Option<LostReason>, BackendError> {
        let Some(votes) = self.0.votes(nonce) else {
            return Ok(Some(LostReason::Stolen));
        };
        let verify = |index: usize, node: Arc<Node>| {
            let vote = votes.nodes.contains(&index).then(|| votes.ballot.clone());
            async move {
                match vote {
                    Some(vote) => node.verify(&vote).await,
                    None => Ok(Some(LostReason::Stolen)),
                }
            }
        };
        let majority = self.0.majority();
        let is_settled = |answers: &_| self.0.is_settled(answers);
        let answers = self.0.ask(verify, is_settled).await;
        if yes(&answers) >= majority {
            Ok(None)
        } else if no(&answers) > self.0.nodes().len() - majority {
            self.0.give_up(nonce);
            Ok(Some(reason(&answers)))
        } else {
            let usable = yes(&answers) + no(&answers);
            Err(self.0.too_few(usable, &answers, |_| None))
        }
    }

    fn attach(&self, nudge: Nudge) {
        let open = || self.0.nodes().iter().for_each(|node| node.open());
        self.0.managers.attach(&nudge, open);
    }

    async fn detach(&self, nudge: &Nudge) {
        self.0.finish_requests().await;
        let close = || self.0.nodes().iter().for_each(|node| node.close());
        self.0.managers.detach(nudge, close);
    }
}
