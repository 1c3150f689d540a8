//! The interface of the manager to the masters.

use std::sync::Arc;

use async_trait::async_trait;

use super::RedLockBackend;
use super::contender::QuorumContender;
use super::node::{Ballot, Loss, Node};
use super::quorum::Answers;
use crate::backend::{
    Backend, Contender, Fencing, Left, Nudge, Numbers, Properties, Release, Renewed, Request,
    Sealed,
};
use crate::shared::error::{BackendError, LostReason};
use crate::shared::nonce::Nonce;

/// For each renewal, the masters that have answered, and what.
fn by_renewal(
    answers: &Answers<Vec<Loss>>,
    numbers: &[&[usize]],
    renewals: usize,
) -> Vec<Vec<(usize, Loss)>> {
    let mut found = vec![Vec::new(); renewals];
    for (node, answer) in answers.iter().enumerate() {
        let Some(Ok(losses)) = answer else { continue };
        for (loss, &number) in losses.iter().zip(numbers[node]) {
            found[number].push((node, *loss));
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

    fn numbers(&self) -> Option<&dyn Numbers> {
        None
    }

    fn contender(&self, request: Request) -> Box<dyn Contender> {
        Box::new(QuorumContender {
            quorum: Arc::clone(&self.0),
            request,
            attempt: 0,
            busy: 0,
            left: Left::Nothing,
        })
    }

    async fn renew(&self, renewals: &[Request]) -> Result<Vec<Renewed>, BackendError> {
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
            let found = by_renewal(answers, &numbers, renewals.len());
            found.iter().enumerate().all(|(number, found)| {
                let is_open = |(node, answer): &(usize, &Option<_>)| {
                    answer.is_none() && numbers[*node].contains(&number)
                };
                let open = answers.iter().enumerate().filter(is_open).count();
                let kept = found.iter().filter(|(_, loss)| loss.is_none()).count();
                kept >= self.0.majority() || kept + open < self.0.majority()
            })
        };
        let shortest = renewals.iter().map(|renewal| renewal.lease).min();
        let shortest = shortest.unwrap_or_default().min(self.0.max_lease);
        let limit = (self.0.limit * 3).min(shortest / 4);
        let answers = self.0.ask_within(limit, request, is_settled).await;
        let found = by_renewal(&answers, &numbers, renewals.len());
        let counted = renewals.iter().zip(found);
        Ok(counted
            .map(|(renewal, answers)| self.0.count(renewal, &answers))
            .collect())
    }

    async fn release(&self, request: &Request, unclear: bool) -> Result<Release, BackendError> {
        let votes = self.0.remove(request.nonce);
        let ballot = Ballot {
            name: request.name.to_string(),
            nonce: request.nonce,
            attempt: u64::MAX,
        };
        let unclear = |index: usize| {
            let is_open = votes.as_ref().is_none_or(|votes| votes.is_open(index));
            unclear && is_open
        };
        let release = |index: usize, node: Arc<Node>| {
            let (ballot, unclear) = (ballot.clone(), unclear(index));
            async move { node.release(&ballot, unclear).await }
        };
        let (loss, answers) = self.0.ask_for_loss(release).await?;
        self.0.release_late(&answers, &ballot, unclear);
        Ok(loss.map_or(Release::Released, Release::NotHeld))
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
        let (loss, _) = self.0.ask_for_loss(verify).await?;
        if loss.is_some() {
            self.0.give_up(nonce);
        }
        Ok(loss)
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
