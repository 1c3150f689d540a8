//! One acquisition: a place in the queue of a lock. The place is created once, even if answers are
//! lost. The first place in the queue holds the lock; of a name with permits, the first places.

use std::sync::Arc;

use async_trait::async_trait;
use zookeeper_client::{CreateMode, Error};

use super::ZooKeeper;
use super::names::{in_order, nonce_prefix, place_prefix, share};
use super::places::Place;
use super::session::{Health, Session, backend_error, disconnected};
use super::turn::{Turn, turn};
use crate::backend::{
    Attempt, Claim, Contender, Fence, Fencing, Grant, Left, Release, Request, Sealed,
};
use crate::shared::clock::Moment;
use crate::shared::error::{BackendError, LostReason};
use crate::shared::nonce::Nonce;
use crate::shared::token::Token;

/// How often to retry if the server removes the directory before the place is created in it.
const TRIES: u32 = 8;

pub(super) struct ZooKeeperContender {
    pub(super) zookeeper: Arc<ZooKeeper>,
    pub(super) request: Request,
    /// What the acquisition waits for.
    pub(super) blocker: Option<Blocker>,
}

pub(super) enum Blocker {
    /// The node at this path, until it is deleted or changed.
    Node {
        path: String,
        /// A change that has already happened ends the wait too.
        may_be_reduced: bool,
    },
    /// The queue in this directory, until its places differ from `order`.
    Queue {
        directory: String,
        order: Vec<String>,
    },
}

impl Fencing for super::ZooKeeperBackend {
    type Token = Token;
}

impl Sealed for ZooKeeperContender {}

#[async_trait]
impl Contender for ZooKeeperContender {
    async fn attempt(&mut self) -> Result<Attempt, BackendError> {
        let mut place = self.place().await?;
        let begin = place.session.clock.now();
        if place.session.health() == Health::Disconnected {
            return Err(disconnected());
        }
        // Ask before the place is created: if it becomes first, it needs the source of its token at
        // once.
        let source = place.session.source(&self.zookeeper.sessions.root).await;
        let source = source.map_err(backend_error)?;
        let node = match place.node.clone() {
            Some(node) => node,
            None => self.find_or_create(&mut place).await?,
        };
        self.position(&place, &node, source, begin).await
    }

    async fn wait(&mut self) -> Result<(), BackendError> {
        let nonce = self.request.nonce;
        let (Some(place), Some(blocker)) = (self.zookeeper.places.get(nonce), &self.blocker) else {
            return Ok(());
        };
        tokio::select! {
            changed = changed(&place.session, blocker) => changed.map_err(backend_error),
            // A watch survives a reconnect, but not the end of the session. While disconnected, the
            // answer `Busy` would be a guess, so this is an error.
            error = place.session.trouble() => Err(error),
        }
    }

    /// A server executes the requests of a session in order, so none arrives after the release.
    fn left(&self) -> Left {
        match self.zookeeper.places.get(self.request.nonce) {
            Some(_) => Left::Something,
            None => Left::Nothing,
        }
    }
}

impl ZooKeeperContender {
    /// Returns the recorded place of this acquisition if its session is alive, or a new one.
    async fn place(&mut self) -> Result<Place, BackendError> {
        let nonce = self.request.nonce;
        if let Some(place) = self.zookeeper.places.get(nonce) {
            if place.session.health() != Health::Over {
                return Ok(place);
            }
            // Its node disappears with its session. The ensemble may end the session later than this client
            // did, so both nodes of this nonce may exist for a while.
            self.zookeeper.places.remove(nonce);
        }
        Ok(Place {
            session: self.zookeeper.sessions.get().await?,
            directory: self
                .zookeeper
                .directory(&self.request.name, self.request.claim),
            node: None,
            deletion_unclear: false,
        })
    }

    /// Returns the node of this nonce: one that an unanswered request created, or a new one.
    async fn find_or_create(&mut self, place: &mut Place) -> Result<String, BackendError> {
        let nonce = self.request.nonce;
        let prefix = place_prefix(nonce, self.request.claim);
        let places = &self.zookeeper.places;
        let is_recorded = places.get(nonce).is_some();
        let mut found = None;
        if is_recorded {
            found = find(place, &nonce_prefix(nonce))
                .await
                .map_err(backend_error)?;
        } else {
            // Record the place before the request. If this future is dropped, the release finds it.
            places.insert(nonce, place.clone());
        }
        let node = if let Some(node) = found {
            node
        } else {
            let created = create(place, &prefix).await;
            if !is_recorded && matches!(created, Err(Error::NoAuth)) {
                // There is no place. Its release would be refused too, again and again.
                places.remove(nonce);
            }
            created.map_err(backend_error)?
        };
        let known = node.clone();
        places.change(nonce, |place| place.node = Some(known));
        place.node = Some(node.clone());
        Ok(node)
    }

    /// Checks whether it is the turn of the node. If not, remembers what it waits for.
    async fn position(
        &mut self,
        place: &Place,
        node: &str,
        source: Arc<str>,
        begin: Moment,
    ) -> Result<Attempt, BackendError> {
        let session = &place.session;
        let path = format!("{}/{node}", place.directory);
        // Both requests are sent together and answered in order. The stat contains the token, and
        // proves that the node still exists and belongs to this session.
        let (children, stat) = tokio::join!(
            session.ask(session.client.list_children(&place.directory)),
            session.ask(session.client.check_stat(&path)),
        );
        let (children, stat) = match (children, stat) {
            (Ok(children), Ok(stat)) => (children, stat),
            (Err(Error::NoNode), _) => (Vec::new(), None),
            (Err(error), _) | (_, Err(error)) => return Err(backend_error(error)),
        };
        let order = in_order(children);
        let position = order.iter().position(|place| place == node);
        let (Some(position), Some(stat)) = (position, stat.filter(|stat| session.owns(stat)))
        else {
            let nonce = self.request.nonce;
            let revoked = self.zookeeper.was_revoked(session, nonce).await;
            let revoked = revoked.map_err(backend_error)?;
            self.zookeeper.places.remove(nonce);
            return Err(if revoked {
                BackendError::already_released()
            } else {
                let cause = "the node of this acquisition was deleted by another client";
                BackendError::transient(cause)
            });
        };
        let turn = match self.request.claim {
            Claim::Exclusive if position == 0 => Turn::Held,
            Claim::Exclusive => Turn::Behind(order[position - 1].clone()),
            Claim::Permits { .. } => {
                let keeps = kept_by_first(session, &place.directory, &order, position).await;
                turn(&order, position, keeps.map_err(backend_error)?)
            }
        };
        if turn == Turn::Held {
            // The reads may come from a server that has lost its leader. Only a write proves that
            // the session lives; normally it is the creation of the node.
            let lease = if let Some(rest) = session.rest_of_lease(begin) {
                rest
            } else {
                let checked = session.check(&[&path]).await;
                checked.map_err(|error| backend_error(error.into()))?;
                session.lease()
            };
            return Ok(Attempt::Held(Grant {
                fence: Some(Fence {
                    token: Token::new(stat.czxid),
                    source,
                }),
                lease,
            }));
        }
        let directory = place.directory.clone();
        self.blocker = Some(match turn {
            Turn::Behind(node) => Blocker::Node {
                path: format!("{directory}/{node}"),
                may_be_reduced: self.request.claim == Claim::READ,
            },
            Turn::BehindSeveral | Turn::Held => Blocker::Queue { directory, order },
        });
        // The watch fires unless the session ends, so no fallback is needed.
        Ok(Attempt::Busy { ask_again: None })
    }
}

/// Waits for a change. Completes at once if it has already happened.
async fn changed(session: &Session, blocker: &Blocker) -> Result<(), Error> {
    let client = &session.client;
    let answer = match blocker {
        // Not `stat`: if the node is already gone, it would leave a watch for its creation.
        Blocker::Node {
            path,
            may_be_reduced,
        } => {
            let answer = session.ask(client.get_and_watch_data(path)).await;
            answer.map(|(data, _, watcher)| (*may_be_reduced && !data.is_empty(), watcher))
        }
        Blocker::Queue { directory, order } => {
            let answer = session.ask(client.list_and_watch_children(directory)).await;
            answer.map(|(children, watcher)| (in_order(children) != *order, watcher))
        }
    };
    match answer {
        Ok((true, _)) | Err(Error::NoNode) => Ok(()),
        Ok((false, watcher)) => {
            watcher.changed().await;
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Returns what the first place in a queue keeps, if it is a writer that was reduced. Only a writer that
/// has its permits is reduced, and it is the first.
pub(super) async fn kept_by_first(
    session: &Session,
    directory: &str,
    order: &[String],
    position: usize,
) -> Result<Option<u32>, Error> {
    let first = order.first().filter(|_| position > 0);
    let Some(first) = first.filter(|first| is_writer(first)) else {
        return Ok(None);
    };
    let path = format!("{directory}/{first}");
    match session.ask(session.client.get_data(&path)).await {
        Ok((data, _)) => Ok(String::from_utf8_lossy(&data).parse().ok()),
        Err(Error::NoNode) => Ok(Some(0)),
        Err(error) => Err(error),
    }
}

fn is_writer(place: &str) -> bool {
    let claim = share(place).map(|(take, of)| Claim::Permits { take, of });
    claim == Some(Claim::WRITE)
}

/// Finds the node of an unanswered create request, if it exists. A node with the same nonce in an earlier
/// session does not count: if it were used or deleted instead, the node of this session would stay, and
/// block all clients, for as long as the process lives.
async fn find(place: &Place, prefix: &str) -> Result<Option<String>, Error> {
    let client = &place.session.client;
    // The client may now be connected to another server, whose data may be older.
    let (synced, children) = tokio::join!(
        place.session.ask(client.sync(&place.directory)),
        place.session.ask(client.list_children(&place.directory)),
    );
    let children = match (synced, children) {
        (Ok(()), Ok(children)) => children,
        (_, Err(Error::NoNode)) | (Err(Error::NoNode), _) => return Ok(None),
        (Err(error), _) | (_, Err(error)) => return Err(error),
    };
    for child in children.iter().filter(|child| child.starts_with(prefix)) {
        let path = format!("{}/{child}", place.directory);
        let stat = place.session.ask(client.check_stat(&path)).await?;
        if stat.is_some_and(|stat| place.session.owns(&stat)) {
            return Ok(Some(child.clone()));
        }
    }
    Ok(None)
}

/// Creates a node, and the directories above it as containers. The server removes containers that
/// become empty.
async fn create(place: &Place, prefix: &str) -> Result<String, Error> {
    let path = format!("{}/{prefix}", place.directory);
    let session = &place.session;
    for _ in 0..TRIES {
        let options = CreateMode::EphemeralSequential.with_acls(session.acls);
        match session
            .write(session.client.create(&path, &[], &options))
            .await
        {
            Ok((_, sequence)) => return Ok(format!("{prefix}{sequence}")),
            Err(Error::NoNode) => {
                let options = CreateMode::Container.with_acls(session.acls);
                let made = session.client.mkdir(&place.directory, &options);
                session.ask(made).await?;
            }
            Err(error) => return Err(error),
        }
    }
    Err(Error::NoNode)
}

/// Removes the directory of a place that was never created. The server removes only containers that
/// once had a child. A concurrent contender creates the directory again if it needs it.
async fn remove_unused(place: &Place) -> Result<(), BackendError> {
    let session = &place.session;
    match session
        .ask(session.client.delete(&place.directory, None))
        .await
    {
        Ok(()) | Err(Error::NoNode | Error::NotEmpty | Error::SessionExpired) => Ok(()),
        Err(error) => Err(backend_error(error)),
    }
}

impl ZooKeeper {
    pub(super) async fn delete(
        &self,
        nonce: Nonce,
        mut place: Place,
    ) -> Result<Release, BackendError> {
        if place.node.is_none() {
            let prefix = nonce_prefix(nonce);
            let found = find(&place, &prefix).await;
            place.node = found.map_err(backend_error)?;
        }
        let Some(path) = place.path() else {
            let removed = remove_unused(&place).await;
            return removed.map(|()| Release::NotHeld(LostReason::Stolen));
        };
        // Record this before the request, because this future may be dropped.
        self.places
            .change(nonce, |known| known.deletion_unclear = true);
        let session = &place.session;
        match session.write(session.client.delete(&path, None)).await {
            Ok(()) => Ok(Release::Released),
            Err(Error::NoNode) if place.deletion_unclear => Ok(Release::Released),
            Err(Error::NoNode) => Ok(Release::NotHeld(self.reason(session, nonce).await)),
            Err(Error::SessionExpired) => Ok(Release::NotHeld(LostReason::SessionExpired)),
            Err(error) => Err(backend_error(error)),
        }
    }
}
