//! Looking into the queue of a lock, taking the lock away from its holder, and the periods of jobs.
//!
//! Nodes: `<root>/.revoked/<nonce>`, created in the same transaction that deletes the place of the nonce. A
//! write to `<root>/.revoked` itself reads the clock of the leader, and makes the following reads current.
//! The next revocation removes nodes that are older than two minutes.
//!
//! `<root>/.periods/<name>` contains the nonce that has started the period, and was last written then. A write
//! to `<root>/.periods` itself reads the clock of the leader.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{join_all, try_join_all};
use zookeeper_client::{CreateMode, Error, MultiWriteError, Stat};

use super::contender::kept_by_first;
use super::names::{element, in_order, nonce_of, share};
use super::session::{Session, backend_error};
use super::turn::{Turn, turn};
use super::{ZooKeeper, ZooKeeperBackend};
use crate::backend::{Admin, Claim};
use crate::claims::{Claimant, LockView};
use crate::shared::error::{BackendError, LostReason};
use crate::shared::nonce::{Nonce, REMEMBERED};
use crate::shared::token::Token;

/// A place in a queue, as the server knows it.
pub(super) struct Seen {
    path: String,
    pub(super) nonce: Nonce,
    permits: u32,
    pub(super) is_holder: bool,
    pub(super) stat: Stat,
}

/// The times of ZooKeeper count milliseconds.
fn since(earlier: i64, now: i64) -> Duration {
    Duration::from_millis(u64::try_from(now - earlier).unwrap_or(0))
}

/// The operations of a revocation: the deletion of the place, then the note.
const NOTE: usize = 1;

impl ZooKeeper {
    fn revoked(&self) -> String {
        format!("{}/.revoked", self.sessions.root)
    }

    /// Returns whether a lock was taken away from this holder, a short while ago.
    pub(super) async fn was_revoked(&self, session: &Session, nonce: Nonce) -> Result<bool, Error> {
        let path = format!("{}/{nonce}", self.revoked());
        let stat = session.ask(session.client.check_stat(&path)).await?;
        Ok(stat.is_some())
    }

    /// Why the place of this nonce is gone, although its session is alive.
    pub(super) async fn reason(&self, session: &Session, nonce: Nonce) -> LostReason {
        match self.was_revoked(session, nonce).await {
            Ok(true) => LostReason::Revoked,
            Ok(false) => LostReason::Stolen,
            Err(error) => {
                tracing::debug!(%nonce, %error, "the reason of a loss is unknown");
                LostReason::Stolen
            }
        }
    }

    pub(super) async fn queue(
        &self,
        session: &Session,
        name: &str,
        claim: Claim,
    ) -> Result<Vec<Seen>, Error> {
        let directory = self.directory(name, claim);
        let order = match session.ask(session.client.list_children(&directory)).await {
            Ok(children) => in_order(children),
            Err(Error::NoNode) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let path = |node: &String| format!("{directory}/{node}");
        let stat = async |node| session.ask(session.client.check_stat(&path(node))).await;
        let stats = join_all(order.iter().map(stat)).await;
        let keeps = match claim {
            Claim::Exclusive => None,
            Claim::Permits { .. } => {
                kept_by_first(session, &directory, &order, order.len()).await?
            }
        };
        let mut queue = Vec::new();
        for (position, (node, stat)) in order.iter().zip(stats).enumerate() {
            let (Some(nonce), Some(stat)) = (nonce_of(node), stat?) else {
                continue;
            };
            let take = share(node).map_or(1, |(take, _)| take);
            let kept = keeps.filter(|_| position == 0).unwrap_or(take);
            queue.push(Seen {
                path: path(node),
                nonce,
                permits: take.min(kept),
                is_holder: match claim {
                    Claim::Exclusive => position == 0,
                    Claim::Permits { .. } => turn(&order, position, keeps) == Turn::Held,
                },
                stat,
            });
        }
        Ok(queue)
    }

    /// Takes the place of a holder away. Returns whether it was done, now or before.
    async fn take_away(
        &self,
        session: &Session,
        name: &str,
        nonce: Nonce,
        claim: Claim,
    ) -> Result<bool, Error> {
        let queue = self.queue(session, name, claim).await?;
        let mut holders = queue.iter().filter(|seen| seen.is_holder);
        let Some(holder) = holders.find(|holder| holder.nonce == nonce) else {
            return self.was_revoked(session, nonce).await;
        };
        let note = format!("{}/{nonce}", self.revoked());
        let options = CreateMode::Persistent.with_acls(session.acls);
        let mut writer = session.client.new_multi_writer();
        writer.add_delete(&holder.path, None)?;
        writer.add_create(&note, &[], &options)?;
        match session.write(writer.commit()).await {
            Ok(_) => return Ok(true),
            // It was revoked before, and has joined the queue again since.
            Err(MultiWriteError::OperationFailed {
                index: NOTE,
                source: Error::NodeExists,
            }) => {}
            Err(error) => match Error::from(error) {
                // It was released, or taken away, in the meantime.
                Error::NoNode => return self.was_revoked(session, nonce).await,
                error => return Err(error),
            },
        }
        match session
            .write(session.client.delete(&holder.path, None))
            .await
        {
            Ok(()) | Err(Error::NoNode) => Ok(true),
            Err(error) => Err(error),
        }
    }
}

/// Removes the notes in this directory that are older than two minutes.
async fn forget(session: &Session, directory: &str, now: i64) -> Result<(), Error> {
    let notes = session.ask(session.client.list_children(directory)).await?;
    let forget = async |note: &String| {
        let path = format!("{directory}/{note}");
        let stat = session.ask(session.client.check_stat(&path)).await?;
        if stat.is_none_or(|stat| since(stat.ctime, now) < REMEMBERED) {
            return Ok(());
        }
        match session.write(session.client.delete(&path, None)).await {
            Ok(()) | Err(Error::NoNode) => Ok(()),
            Err(error) => Err(error),
        }
    };
    try_join_all(notes.iter().map(forget)).await.map(drop)
}

#[async_trait]
impl Admin for ZooKeeperBackend {
    async fn ping(&self) -> Result<(), BackendError> {
        let session = self.0.sessions.connected().await?;
        // The leader answers a sync. A server without a quorum fails here, as it should. No right is
        // needed for that, so this also reads what each acquisition reads.
        let source = format!("{}/.source", self.0.sessions.root);
        let (synced, read) = tokio::join!(
            session.sync(),
            session.ask(session.client.get_data(&source)),
        );
        match synced.and(read.map(drop)) {
            Ok(()) | Err(Error::NoNode) => Ok(()),
            Err(error) => Err(backend_error(error)),
        }
    }

    async fn inspect(&self, name: &str, claim: Claim) -> Result<LockView, BackendError> {
        let session = self.0.sessions.connected().await?;
        let now = session.time(&self.0.revoked()).await;
        let now = now.map_err(backend_error)?;
        let queue = self.0.queue(&session, name, claim).await;
        let mut view = LockView::default();
        for seen in queue.map_err(backend_error)? {
            let claimant = Claimant {
                nonce: seen.nonce,
                permits: seen.permits,
                token: seen.is_holder.then_some(Token::new(seen.stat.czxid)),
                owner: Some(format!("session 0x{:x}", seen.stat.ephemeral_owner)),
                age: Some(since(seen.stat.ctime, now)),
                expires_in: None,
            };
            if seen.is_holder {
                view.holders.push(claimant);
            } else {
                view.waiters.push(claimant);
            }
        }
        Ok(view)
    }

    async fn revoke(&self, name: &str, nonce: Nonce, claim: Claim) -> Result<bool, BackendError> {
        let session = self.0.sessions.connected().await?;
        let directory = self.0.revoked();
        let now = session.time(&directory).await.map_err(backend_error)?;
        let taken = self.0.take_away(&session, name, nonce, claim).await;
        let taken = taken.map_err(backend_error)?;
        // The operator does not wait for that. The next revocation tries it again.
        tokio::spawn(async move {
            if let Err(error) = forget(&session, &directory, now).await {
                tracing::debug!(%error, "the notes of old revocations were not removed");
            }
        });
        Ok(taken)
    }

    async fn begin_period(
        &self,
        name: &str,
        nonce: Nonce,
        period: Duration,
    ) -> Result<Option<Duration>, BackendError> {
        let session = self.0.sessions.connected().await?;
        let nonce = nonce.to_string();
        let directory = format!("{}/.periods", self.0.sessions.root);
        let path = format!("{directory}/{}", element(name));
        loop {
            let now = session.time(&directory).await.map_err(backend_error)?;
            let started = match session.ask(session.client.get_data(&path)).await {
                Ok((starter, _)) if starter == nonce.as_bytes() => return Ok(None),
                Ok((_, stat)) => {
                    let since = u64::try_from(now - stat.mtime).unwrap_or(0);
                    let rest = period.saturating_sub(Duration::from_millis(since));
                    if !rest.is_zero() {
                        return Ok(Some(rest));
                    }
                    let version = Some(stat.version);
                    let write = session.client.set_data(&path, nonce.as_bytes(), version);
                    session.write(write).await.map(drop)
                }
                Err(Error::NoNode) => {
                    let options = CreateMode::Persistent.with_acls(session.acls);
                    let create = session.client.create(&path, nonce.as_bytes(), &options);
                    session.write(create).await.map(drop)
                }
                Err(error) => Err(error),
            };
            match started {
                Ok(()) => return Ok(None),
                // Another client was faster.
                Err(Error::BadVersion | Error::NodeExists) => {}
                Err(error) => return Err(backend_error(error)),
            }
        }
    }
}
