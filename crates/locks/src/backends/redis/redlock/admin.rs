//! Looking into locks, and taking them away. All masters are asked, and their answers are counted.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::RedLockBackend;
use super::node::Node;
use super::quorum::{Answers, count, is_decided, unanswered};
use crate::backend::{Admin, Claim};
use crate::claims::{Claimant, LockView};
use crate::shared::error::BackendError;
use crate::shared::nonce::Nonce;

/// The client that has the vote of a master, and the rest of its lease.
type Held = Option<(Nonce, Duration)>;

/// The number of answers, and the votes that each client has.
fn votes(answers: &Answers<Held>) -> (usize, HashMap<Nonce, Vec<Duration>>) {
    let known = answers.iter().flatten().flatten();
    let mut votes = HashMap::<_, Vec<_>>::new();
    for (nonce, rest) in known.clone().flatten() {
        votes.entry(*nonce).or_default().push(*rest);
    }
    (known.count(), votes)
}

#[async_trait]
impl Admin for RedLockBackend {
    async fn ping(&self) -> Result<(), BackendError> {
        let votes_in = |_, node: Arc<Node>| async move { node.votes_in().await };
        let majority = self.0.majority();
        let voters = |answers: &Answers<u64>| count(answers, |votes_in| *votes_in == 0);
        let is_settled =
            |answers: &Answers<u64>| is_decided(voters(answers), unanswered(answers), majority);
        let answers = self.0.ask(votes_in, is_settled).await;
        if voters(&answers) >= majority {
            return Ok(());
        }
        let problem = |votes_in: &u64| (*votes_in > 0).then(|| self.0.restarted(*votes_in));
        Err(self.0.too_few(voters(&answers), &answers, problem))
    }

    /// Shows the client that has the votes of a majority. Those that collect votes are no waiters: each
    /// gives its votes back before it asks again.
    async fn inspect(&self, name: &str, _: Claim) -> Result<LockView, BackendError> {
        let name: Arc<str> = name.into();
        let request = |_, node: Arc<Node>| {
            let name = Arc::clone(&name);
            async move { node.holder(&name).await }
        };
        let majority = self.0.majority();
        let is_settled = |answers: &Answers<Held>| {
            let (known, votes) = votes(answers);
            let most = votes.values().map(Vec::len).max().unwrap_or(0);
            let open = unanswered(answers);
            is_decided(known, open, majority) && is_decided(most, open, majority)
        };
        let answers = self.0.ask(request, is_settled).await;
        let (known, mut votes) = votes(&answers);
        if known < majority {
            return Err(self.0.too_few(known, &answers, |_| None));
        }
        votes.retain(|_, leases| leases.len() >= majority);
        let holder = |(nonce, mut leases): (Nonce, Vec<Duration>)| {
            leases.sort_unstable();
            Claimant {
                nonce,
                permits: 1,
                token: None,
                owner: None,
                age: None,
                // When so many votes have ended that no majority is left.
                expires_in: Some(leases[leases.len() - majority]),
            }
        };
        Ok(LockView {
            holders: votes.into_iter().map(holder).collect(),
            ..LockView::default()
        })
    }

    async fn revoke(&self, name: &str, nonce: Nonce, _: Claim) -> Result<bool, BackendError> {
        let name: Arc<str> = name.into();
        let request = |_, node: Arc<Node>| {
            let name = Arc::clone(&name);
            async move { node.revoke(&name, nonce).await }
        };
        // The masters that have not answered are then no majority, so the holder has none either.
        let enough = self.0.minority();
        let known = |answers: &_| count(answers, |_: &bool| true);
        let is_settled =
            |answers: &Answers<bool>| is_decided(known(answers), unanswered(answers), enough);
        let answers = self.0.ask(request, is_settled).await;
        let known = known(&answers);
        if known >= enough {
            Ok(count(&answers, |yes| *yes) > 0)
        } else {
            Err(self.0.too_few(known, &answers, |_| None))
        }
    }

    async fn begin_period(
        &self,
        _: &str,
        _: Nonce,
        _: Duration,
    ) -> Result<Option<Duration>, BackendError> {
        Err(BackendError::permanent("RedLock has no periods"))
    }
}
