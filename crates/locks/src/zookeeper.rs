//! Locks on ZooKeeper.
//!
//! *Guarantees:* exclusion between live sessions, in order of arrival; a fencing token that never
//! goes back (the czxid of the node in the queue). *Costs:* two writes of the ensemble per lock,
//! and three more if the name was not used recently, because its directory is created and removed;
//! three round trips; one sync per batch of renewals, and one read per lock; one wake-up per
//! handover, regardless of the number of waiters. *Fails when* the holder is paused for longer than
//! its session. Two clients may then believe that they hold the lock, and only the token in the
//! guarded write detects it. *Use when* ZooKeeper is available, fairness matters, or Redis might
//! lose data.
//!
//! The order of arrival is between processes: each process has one contender per lock. Locks and
//! tokens survive the failure of a server as long as the ensemble keeps its quorum.
//!
//! All locks of a back end belong to one session. While the connection is lost, they are suspect.
//! They are lost when the server reports the end of the session, or when the server has not
//! answered for 90 % of the session timeout. The next acquisition then opens another session.
//!
//! Nodes: `<root>/<name>/_c_<nonce>-lock-<sequence>`, and `<root>/.source`. The directories of the
//! names are container nodes, which the server removes when they are empty.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use zookeeper_client::Error;

use crate::backend::{Backend, Contender, Nudge, Properties, Release, Renewal, Renewed, Request};
use crate::error::{BackendError, LostReason};
use crate::link::Link;
use crate::nonce::Nonce;

mod cluster;
mod contender;
mod names;
mod places;
mod session;

use contender::ZooKeeperContender;
use places::{Place, Places};
use session::{Health, Session, Sessions, backend_error, disconnected};

/// The settings of a [`ZooKeeperBackend`]. Created by [`ZooKeeperBackend::builder`].
#[derive(Debug, Clone)]
#[must_use = "it does nothing before build"]
pub struct ZooKeeperBuilder {
    cluster: Result<String, BackendError>,
    root: String,
    session_timeout: Duration,
    connect_limit: Duration,
    response_limit: Duration,
}

impl ZooKeeperBuilder {
    /// Sets the path that contains all locks. Default: `/locks`.
    pub fn root(mut self, root: impl Into<String>) -> Self {
        self.root = root.into();
        self
    }

    /// Sets the session timeout to request. Default: 10 s. The server may choose another one. The
    /// session timeout is the lease of every lock.
    pub fn session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = timeout;
        self
    }

    /// Sets how long opening a session may take. Default: 2 s.
    pub fn connect_limit(mut self, limit: Duration) -> Self {
        self.connect_limit = limit;
        self
    }

    /// Sets how long an answer may take. Default: 1 s.
    pub fn response_limit(mut self, limit: Duration) -> Self {
        self.response_limit = limit;
        self
    }

    /// Builds the back end. It opens its session when it is first used.
    ///
    /// # Errors
    /// Returns an error if the connection string is invalid or contains `@`, or if the root is not
    /// an absolute path.
    pub fn build(self) -> Result<ZooKeeperBackend, BackendError> {
        let cluster = self.cluster?;
        cluster::check(&cluster).map_err(BackendError::permanent)?;
        if !self.root.strip_prefix('/').is_some_and(cluster::is_path) {
            let cause = format!("the root `{}` is not an absolute path", self.root);
            return Err(BackendError::permanent(cause));
        }
        Ok(ZooKeeperBackend(Arc::new(ZooKeeper {
            places: Places::default(),
            sessions: Arc::new(Sessions {
                cluster,
                root: self.root,
                timeout: self.session_timeout,
                connect_limit: self.connect_limit,
                response_limit: self.response_limit,
                nudge: OnceLock::new(),
                link: Link::default(),
            }),
        })))
    }
}

/// Locks on a ZooKeeper ensemble. Clones share one session.
#[derive(Debug, Clone)]
pub struct ZooKeeperBackend(Arc<ZooKeeper>);

#[derive(Debug)]
struct ZooKeeper {
    sessions: Arc<Sessions>,
    places: Places,
}

impl ZooKeeperBackend {
    /// Creates a back end from a connection string: `host:port[,host:port…][/chroot]`.
    ///
    /// # Errors
    /// The errors of [`ZooKeeperBuilder::build`]. No session is opened yet.
    pub fn new(cluster: &str) -> Result<Self, BackendError> {
        Self::builder(cluster).build()
    }

    /// Creates a builder for a back end with other settings.
    pub fn builder(cluster: &str) -> ZooKeeperBuilder {
        // The client library would take a password for part of the host name, and log it.
        let cluster = if cluster.contains('@') {
            let cause = "a ZooKeeper connection string must not contain a user or password";
            Err(BackendError::permanent(cause))
        } else {
            Ok(cluster.to_owned())
        };
        ZooKeeperBuilder {
            cluster,
            root: "/locks".to_owned(),
            session_timeout: Duration::from_secs(10),
            connect_limit: Duration::from_secs(2),
            response_limit: Duration::from_secs(1),
        }
    }

    /// Returns how many places in lock queues this process may have on the ensemble.
    #[must_use]
    pub fn places(&self) -> usize {
        self.0.places.len()
    }
}

impl ZooKeeper {
    fn directory(&self, name: &str) -> String {
        format!("{}/{}", self.sessions.root, names::element(name))
    }

    /// Checks whether a place still exists. Returns `None` if the server does not answer.
    async fn exists(&self, place: &Place) -> Option<Result<(), LostReason>> {
        let session = &place.session;
        match session.health() {
            Health::Over => return Some(Err(LostReason::SessionExpired)),
            Health::Disconnected => return None,
            Health::Connected => {}
        }
        let Some(path) = place.path() else {
            return Some(Err(LostReason::Stolen));
        };
        match session.ask(session.client.check_stat(&path)).await {
            Ok(Some(stat)) if session.owns(&stat) => Some(Ok(())),
            Ok(_) => Some(Err(LostReason::Stolen)),
            Err(Error::SessionExpired) => Some(Err(LostReason::SessionExpired)),
            Err(_) => None,
        }
    }

    async fn renew(&self, nonce: Nonce, place: Option<&Place>) -> Renewed {
        let Some(place) = place else {
            return Renewed::Gone(LostReason::Stolen);
        };
        match self.exists(place).await {
            Some(Ok(())) => Renewed::Held(place.session.timeout),
            Some(Err(reason)) => {
                self.places.remove(nonce);
                Renewed::Gone(reason)
            }
            None => Renewed::Unknown,
        }
    }

    /// Deletes a place. Returns true if it existed.
    async fn delete(&self, nonce: Nonce, mut place: Place) -> Result<bool, BackendError> {
        if place.node.is_none() {
            let prefix = names::place_prefix(nonce);
            let found = contender::find(&place, &prefix).await;
            place.node = found.map_err(backend_error)?;
        }
        let Some(path) = place.path() else {
            return remove_unused(&place).await.map(|()| false);
        };
        // Record this before the request, because this future may be dropped.
        self.places
            .change(nonce, |known| known.deletion_unclear = true);
        let session = &place.session;
        match session.ask(session.client.delete(&path, None)).await {
            Ok(()) => Ok(true),
            Err(Error::NoNode) => Ok(place.deletion_unclear),
            Err(Error::SessionExpired) => Ok(false),
            Err(error) => Err(backend_error(error)),
        }
    }
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

/// Returns each connected session once.
fn sessions_of<'a>(places: impl Iterator<Item = &'a Place>) -> Vec<&'a Arc<Session>> {
    let mut sessions: Vec<&Arc<Session>> = Vec::new();
    for Place { session, .. } in places {
        let is_known = sessions.iter().any(|known| Arc::ptr_eq(known, session));
        if !is_known && session.health() == Health::Connected {
            sessions.push(session);
        }
    }
    sessions
}

#[async_trait]
impl Backend for ZooKeeperBackend {
    fn properties(&self) -> Properties {
        let sessions = &self.0.sessions;
        let current = sessions.link.current();
        Properties {
            name: "zookeeper",
            response_limit: sessions.response_limit + sessions.connect_limit,
            session: Some(current.map_or(sessions.timeout, |session| session.timeout)),
        }
    }

    fn contender(&self, request: Request) -> Box<dyn Contender> {
        Box::new(ZooKeeperContender {
            zookeeper: Arc::clone(&self.0),
            request,
            predecessor: None,
        })
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>, BackendError> {
        let place = |renewal: &Renewal| self.0.places.get(renewal.nonce);
        let places: Vec<_> = renewals.iter().map(place).collect();
        let sessions = sessions_of(places.iter().flatten());
        let reads = renewals.iter().zip(&places);
        let reads = reads.map(|(renewal, place)| self.0.renew(renewal.nonce, place.as_ref()));
        // All requests are sent before the first answer arrives, and a session answers in order:
        // first the sync with the leader, then the reads.
        let (synced, renewed) = tokio::join!(
            join_all(sessions.iter().map(|session| session.sync())),
            join_all(reads),
        );
        let is_synced = |place: &Place| {
            let mut synced = sessions.iter().zip(&synced);
            synced.any(|(session, synced)| synced.is_ok() && Arc::ptr_eq(session, &place.session))
        };
        let checked = |(renewed, place): (Renewed, &Option<Place>)| match (renewed, place) {
            (Renewed::Held(_), Some(place)) if !is_synced(place) => Renewed::Unknown,
            _ => renewed,
        };
        Ok(renewed.into_iter().zip(&places).map(checked).collect())
    }

    async fn release(&self, _name: &str, nonce: Nonce) -> Result<Release, BackendError> {
        let Some(place) = self.0.places.get(nonce) else {
            return Ok(Release::NotHeld);
        };
        let existed = match place.session.health() {
            Health::Over => false,
            Health::Disconnected => return Err(disconnected()),
            Health::Connected => self.0.delete(nonce, place).await?,
        };
        self.0.places.remove(nonce);
        Ok(if existed {
            Release::Released
        } else {
            Release::NotHeld
        })
    }

    async fn verify(&self, _name: &str, nonce: Nonce) -> Result<bool, BackendError> {
        let Some(place) = self.0.places.get(nonce) else {
            return Ok(false);
        };
        let (synced, exists) = tokio::join!(place.session.sync(), self.0.exists(&place));
        match exists {
            Some(Ok(())) => synced.map(|()| true).map_err(backend_error),
            Some(Err(_)) => {
                self.0.places.remove(nonce);
                Ok(false)
            }
            None => Err(disconnected()),
        }
    }

    async fn ping(&self) -> Result<(), BackendError> {
        let session = self.0.sessions.get().await?;
        if session.health() == Health::Disconnected {
            return Err(disconnected());
        }
        // The leader answers a sync. A server without a quorum fails here, as it should.
        session.sync().await.map_err(backend_error)
    }

    fn attach(&self, nudge: Nudge) {
        // A back end serves one manager. The locks of a second one are renewed at the regular times
        // only.
        let _ = self.0.sessions.nudge.set(nudge);
    }

    async fn close(&self) {
        self.0.places.clear();
        let Some(session) = self.0.sessions.link.close() else {
            return;
        };
        let mut states = session.client.state_watcher();
        // Dropping the last client closes the session. Wait until the server has been told.
        drop(session);
        let closed = async { while !states.changed().await.is_terminated() {} };
        let _ = tokio::time::timeout(self.0.sessions.response_limit, closed).await;
    }
}
