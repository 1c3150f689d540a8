//! Locks on ZooKeeper.
//!
//! *Guarantees:* exclusion between live sessions, in the order of arrival; a token, the czxid of the
//! place in the queue, that never goes back. *Costs:* two writes of the ensemble for each lock, and
//! three more for a name that was not used just before, whose directory comes and goes; three round
//! trips of the holder; a sync for each batch of renewals and a read for each lock in it; one
//! wake-up for each hand-over, however many wait. *Fails when* the holder is paused past its
//! session: two may then believe to hold, and only the token in the guarded write
//! tells. *Use when* there is a ZooKeeper, fairness matters, or Redis may forget.
//!
//! The order is that in which the processes come for a lock, each with one contender at a time; an
//! ensemble that keeps its quorum keeps locks and tokens over the failure of a server.
//!
//! All locks of a back end live in one session. It is Suspect while the connection is lost, and the
//! locks are lost when the server says so or when no answer has come for the session's time-out less
//! a tenth, whichever is first; then the next acquisition makes another session.
//!
//! Nodes: `<root>/<name>/_c_<nonce>-lock-<sequence>`, and `<root>/.source`. The directories of the
//! names are containers.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use zookeeper_client::Error;

use crate::backend::{Backend, Contender, Nudge, Release, Renewal, Renewed, Request};
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

/// Where and how to use ZooKeeper.
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
    /// The path that all locks are under; `/locks` unless told.
    pub fn root(mut self, root: impl Into<String>) -> Self {
        self.root = root.into();
        self
    }

    /// The session time-out to ask for; 10 s unless told. The server may give another one, which
    /// then is the lease of every lock.
    pub fn session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = timeout;
        self
    }

    /// How long making a session may take; 2 s unless told.
    pub fn connect_limit(mut self, limit: Duration) -> Self {
        self.connect_limit = limit;
        self
    }

    /// How long an answer may take; 1 s unless told.
    pub fn response_limit(mut self, limit: Duration) -> Self {
        self.response_limit = limit;
        self
    }

    /// The back end; it makes its session when it is first used.
    ///
    /// # Errors
    /// When the connection string is none, or has a user and a password, or the root is no path.
    pub fn build(self) -> Result<ZooKeeperBackend, BackendError> {
        let cluster = self.cluster?;
        cluster::check(&cluster).map_err(BackendError::permanent)?;
        if !self.root.strip_prefix('/').is_some_and(cluster::is_path) {
            return Err(BackendError::permanent(format!("{} is no path", self.root)));
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

/// Locks on a ZooKeeper ensemble; clones share its session.
#[derive(Debug, Clone)]
pub struct ZooKeeperBackend(Arc<ZooKeeper>);

#[derive(Debug)]
struct ZooKeeper {
    sessions: Arc<Sessions>,
    places: Places,
}

impl ZooKeeperBackend {
    /// Locks on the ensemble of a connection string: `host:port[,host:port…][/chroot]`.
    ///
    /// # Errors
    /// As [`ZooKeeperBuilder::build`]. Nothing is connected yet.
    pub fn new(cluster: &str) -> Result<Self, BackendError> {
        Self::builder(cluster).build()
    }

    /// The same with settings.
    pub fn builder(cluster: &str) -> ZooKeeperBuilder {
        // It would be taken for a part of the host's name, and the client logs those.
        let cluster = if cluster.contains('@') {
            let cause = "a ZooKeeper connection string has neither user nor password";
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

    /// How many places in queues the ensemble may have of this process.
    #[must_use]
    pub fn places(&self) -> usize {
        self.0.places.len()
    }
}

impl ZooKeeper {
    fn directory(&self, name: &str) -> String {
        format!("{}/{}", self.sessions.root, names::element(name))
    }

    /// Whether a place is still there; `None` without an answer.
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

    /// Deletes a place; true if it was there.
    async fn delete(&self, nonce: Nonce, mut place: Place) -> Result<bool, BackendError> {
        if place.node.is_none() {
            let prefix = names::place_prefix(nonce);
            let found = contender::find(&place, &prefix).await;
            place.node = found.map_err(backend_error)?;
        }
        let Some(path) = place.path() else {
            return remove_unused(&place).await.map(|()| false);
        };
        // Before the request, which may be dropped.
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

/// Removes the directory of a place that was never created. The server removes those only that had
/// a place in them once. Whoever is about to create one there makes the directory again.
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

/// Each session once, if it can be asked.
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
    fn name(&self) -> &'static str {
        "zookeeper"
    }

    fn response_limit(&self) -> Duration {
        self.0.sessions.response_limit + self.0.sessions.connect_limit
    }

    fn kept_for(&self, _lease: Duration) -> Duration {
        let sessions = &self.0.sessions;
        let current = sessions.link.current();
        current.map_or(sessions.timeout, |session| session.timeout)
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
        // All are sent before the first answer is waited for, and what is asked of a session is
        // answered in order: first the leader's word, then the reads.
        let (synced, renewed) = tokio::join!(
            join_all(sessions.iter().map(|session| session.sync())),
            join_all(reads),
        );
        let is_synced = |place: &Place| {
            let mut synced = sessions.iter().zip(&synced);
            synced.any(|(session, synced)| synced.is_ok() && Arc::ptr_eq(session, &place.session))
        };
        let believed = |(renewed, place): (Renewed, &Option<Place>)| match (renewed, place) {
            (Renewed::Held(_), Some(place)) if !is_synced(place) => Renewed::Unknown,
            _ => renewed,
        };
        Ok(renewed.into_iter().zip(&places).map(believed).collect())
    }

    async fn release(&self, _name: &str, nonce: Nonce) -> Result<Release, BackendError> {
        let Some(place) = self.0.places.get(nonce) else {
            return Ok(Release::NotHeld);
        };
        let was_there = match place.session.health() {
            Health::Over => false,
            Health::Disconnected => return Err(disconnected()),
            Health::Connected => self.0.delete(nonce, place).await?,
        };
        self.0.places.remove(nonce);
        Ok(if was_there {
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
        // Answered by way of the leader: a server that has lost its quorum is of no use.
        session.sync().await.map_err(backend_error)
    }

    fn attach(&self, nudge: Nudge) {
        // One back end serves one manager; a second one's locks are renewed on time all the same.
        let _ = self.0.sessions.nudge.set(nudge);
    }

    async fn close(&self) {
        self.0.places.clear();
        let Some(session) = self.0.sessions.link.close() else {
            return;
        };
        let mut states = session.client.state_watcher();
        // With its last client the session is closed, which the server has to hear.
        drop(session);
        let closed = async { while !states.changed().await.is_terminated() {} };
        let _ = tokio::time::timeout(self.0.sessions.response_limit, closed).await;
    }
}
