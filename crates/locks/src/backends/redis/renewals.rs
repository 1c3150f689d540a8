//! Renewals of many locks at the same time.

use std::sync::Arc;

use futures_util::future::join_all;
use tokio::time::timeout;

use super::Redis;
use super::scripts::{self, milliseconds};
use crate::backend::{Claim, Request};
use crate::shared::error::BackendError;

/// One master may take one of so many parts of the shortest lease. The watchdog waits for a third of it for all.
const PARTS: u32 = 4;

impl Redis {
    /// Renews all at one server with one script, and at a cluster with one script for each, all at the same
    /// time. Returns for each what [`loss`](super::loss) reads, or why it is not known.
    ///
    /// The caller waits for all answers, for a third of the shortest lease. A master of a cluster that does
    /// not answer must not delay the answers of the others that long.
    pub(super) async fn renew_each(
        self: &Arc<Self>,
        renewals: &[Request],
    ) -> Vec<Result<i64, BackendError>> {
        if !self.servers.is_cluster() || renewals.len() < 2 {
            return self.renew_together(renewals).await;
        }
        let shortest = renewals.iter().map(|renewal| renewal.lease).min();
        let limit = shortest.unwrap_or_default() / PARTS;
        let parts = renewals.iter().map(async |renewal| {
            let (redis, renewal) = (Arc::clone(self), renewal.clone());
            // A separate task: it runs on after the limit, so its own time limit closes a silent connection.
            let task = tokio::spawn(async move { redis.renew_together(&[renewal]).await });
            let error = match timeout(limit, task).await {
                Ok(Ok(answers)) => return answers,
                Ok(Err(_)) => "the Tokio runtime was shut down",
                Err(_) => "the master of this lock did not answer in time",
            };
            vec![Err(BackendError::transient(error))]
        });
        join_all(parts).await.concat()
    }

    /// Sends at most one script for locks and one for permits.
    async fn renew_together(&self, renewals: &[Request]) -> Vec<Result<i64, BackendError>> {
        let is_exclusive = |renewal: &&Request| renewal.claim == Claim::Exclusive;
        let (locks, permits): (Vec<_>, Vec<_>) = renewals.iter().partition(is_exclusive);
        let (locks, permits) = tokio::join!(self.renew_locks(locks), self.renew_permits(permits));
        let (mut locks, mut permits) = (locks.map(Vec::into_iter), permits.map(Vec::into_iter));
        let answer = |renewal| {
            let answers = if is_exclusive(&renewal) {
                &mut locks
            } else {
                &mut permits
            };
            let answer = answers.as_mut().map_err(|error| error.clone())?.next();
            answer.ok_or_else(|| BackendError::transient("a renewal has no answer"))
        };
        renewals.iter().map(answer).collect()
    }

    /// Returns for each lock what [`loss`](super::loss) reads.
    async fn renew_locks(&self, renewals: Vec<&Request>) -> Result<Vec<i64>, BackendError> {
        if renewals.is_empty() {
            return Ok(Vec::new());
        }
        let key = |renewal: &&Request| self.lock_key(&renewal.name);
        let keys: Vec<_> = renewals.iter().map(key).collect();
        let arguments =
            |renewal: &&Request| [renewal.nonce.to_string(), milliseconds(renewal.lease)];
        let arguments: Vec<_> = renewals.iter().flat_map(arguments).collect();
        let script = self.servers.script(&scripts::RENEW, &keys, &arguments);
        script.await
    }
}
