//! Looking into locks, and taking them away. All masters are asked, and their answers are counted.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::RedLockBackend;
use super::node::Node;
use super::quorum::Answers;
use crate::admin::{Admin, Claimant, LockView};
use crate::backend::Claim;
use crate::error::BackendError;
use crate::nonce::Nonce;

/// The answers, and how many of them are yes.
fn counted(answers: &Answers<bool>) -> (usize, usize) {
    let known = answers.iter().flatten().flatten();
    (known.clone().count(), known.filter(|yes| **yes).count())
}

#[async_trait]
impl Admin for RedLockBackend {
    /// Shows the client that has the votes of a majority. Those that collect votes are no waiters: each
    /// gives its votes back before it asks again.
    async fn inspect(&self, name: &str, _: Claim) -> Result<LockView, BackendError> {
        let name: Arc<str> = name.into();
        let request = |_, node: Arc<Node>| {
            let name = Arc::clone(&name);
            async move { node.holder(&name).await }
        };
        let answers = self.0.ask(request, |_| false).await;
        let majority = self.0.majority();
        let known = answers.iter().flatten().flatten();
        if known.clone().count() < majority {
            return Err(self.0.too_few(known.count(), &answers, |_| None));
        }
        let mut votes: HashMap<Nonce, Vec<Duration>> = HashMap::new();
        for (nonce, rest) in known.flatten() {
            votes.entry(*nonce).or_default().push(*rest);
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
        let answers = self.0.ask(request, |_| false).await;
        let (known, yes) = counted(&answers);
        // The masters that have not answered are no majority, so the holder has none either.
        if self.0.nodes().len() - known < self.0.majority() {
            Ok(yes > 0)
        } else {
            Err(self.0.too_few(known, &answers, |_| None))
        }
    }

    async fn was_revoked(&self, name: &str, nonce: Nonce, _: Claim) -> Result<bool, BackendError> {
        let name: Arc<str> = name.into();
        let request = |_, node: Arc<Node>| {
            let name = Arc::clone(&name);
            async move { node.was_revoked(&name, nonce).await }
        };
        let some = |answers: &Answers<bool>| counted(answers).1 > 0;
        let answers = self.0.ask(request, some).await;
        let (known, yes) = counted(&answers);
        if yes > 0 || known >= self.0.majority() {
            Ok(yes > 0)
        } else {
            Err(self.0.too_few(known, &answers, |_| None))
        }
    }
}
