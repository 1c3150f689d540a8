//! Locks on ZooKeeper.
//!
//! *Guarantees:* exclusion between live sessions, in order of arrival; a fencing token that never
//! goes back (the czxid of the node in the queue). *Costs:* two writes of the ensemble per lock,
//! and three more if the name was not used recently, because its directory is created and removed;
//! three round trips; one write per hundred renewals; one wake-up per handover, regardless of the
//! number of waiters. *Fails when* the holder is paused for longer than its session. Two clients may
//! then believe that they hold the lock, and only the token in the guarded write detects it. *Use
//! when* ZooKeeper is available, fairness matters, or Redis might lose data.
//!
//! The order of arrival is between processes: each process has one holder or waiter per lock, and one
//! waiter behind it. Locks and tokens survive the failure of a server if the ensemble keeps its quorum.
//!
//! All locks of a back end belong to one session. While the connection is lost, they are suspect.
//! They are lost when the server reports the end of the session, or when the ensemble has confirmed
//! no write for about half of the session timeout. The next acquisition then opens another session.
//!
//! Renewals are writes, which need a quorum. A leader that was cut off from the others still answers
//! reads and syncs for a while, although the others may have ended the session. The rest of the
//! timeout is for a server that fails together with its client: the leader may have heard of that
//! client some time before.
//!
//! **Read-write locks and permits** are queues too: a place has its permits if those of all places ahead
//! and its own are not more than there are. The number in the latest request that is still in the queue
//! applies. A waiting reader watches the last writer ahead, a waiting writer its predecessor, and a
//! client that waits for other permits the queue, so all of those are woken by each change.
//!
//! **Access**: by default anyone may read, change and delete the nodes, as in most ensembles without
//! authentication. [`ZooKeeperBuilder::auth`] sends credentials, and gives the nodes an ACL that admits only
//! clients with the same ones. Passwords and data are not encrypted: the connection has no TLS.
//!
//! Nodes: `<root>/<name>/_c_<nonce>-lock-<sequence>`,
//! `<root>/<name>%permits/_c_<nonce>-<take>-<of>-lock-<sequence>`, and `<root>/.source`. The directories of the
//! names are container nodes, which the server removes when they are empty. A periodic job has a node
//! `<root>/.periods/<name>`, which stays. So has a number, in `<root>/.numbers`, until it is removed, and a
//! revoked holder, in `<root>/.revoked`, until a lock is revoked more than two minutes later.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use zookeeper_client::{Error, MultiWriteError};

use crate::backend::{
    Backend, Claim, Contender, Nudge, Numbers, Properties, Release, Renewed, Request, Sealed,
};
use crate::shared::error::{BackendError, LostReason};
use crate::shared::nonce::Nonce;

mod access;
mod admin;
mod builder;
mod cluster;
mod contender;
mod fence;
mod names;
mod numbers;
mod places;
mod session;
mod turn;

pub use access::NodeAcl;
pub use builder::ZooKeeperBuilder;
use contender::ZooKeeperContender;
use places::Places;
use session::{Health, Session, Sessions, disconnected};

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
        ZooKeeperBuilder::new(cluster)
    }

    /// Returns how many places in lock queues this process may have on the ensemble.
    #[must_use]
    pub fn places(&self) -> usize {
        self.0.places.len()
    }
}

impl ZooKeeper {
    /// The directory of a lock. Permits have another one than the exclusive lock with the same name: no encoded
    /// name contains this suffix.
    fn directory(&self, name: &str, claim: Claim) -> String {
        let suffix = match claim {
            Claim::Exclusive => "",
            Claim::Permits { .. } => "%permits",
        };
        format!("{}/{}{suffix}", self.sessions.root, names::element(name))
    }

    /// Renews places of one session with one write. If a node is gone, checks each place alone.
    async fn renew(&self, session: &Session, paths: &[&str]) -> Vec<Renewed> {
        match session.health() {
            Health::Over => vec![Renewed::Gone(LostReason::SessionExpired); paths.len()],
            Health::Disconnected => vec![Renewed::Unknown; paths.len()],
            Health::Connected => {
                let checked = session.check(paths).await;
                match renewed(session, checked) {
                    Renewed::Gone(LostReason::Stolen) if paths.len() > 1 => {
                        let check = async |path: &&str| session.check(&[*path]).await;
                        let checks = join_all(paths.iter().map(check)).await;
                        let renewed = |checked| renewed(session, checked);
                        checks.into_iter().map(renewed).collect()
                    }
                    all => vec![all; paths.len()],
                }
            }
        }
    }
}

fn renewed(session: &Session, checked: Result<(), MultiWriteError>) -> Renewed {
    match checked.map_err(Error::from) {
        Ok(()) => Renewed::Held(session.lease()),
        Err(Error::NoNode) => Renewed::Gone(LostReason::Stolen),
        Err(Error::SessionExpired) => Renewed::Gone(LostReason::SessionExpired),
        Err(_) => Renewed::Unknown,
    }
}

impl Sealed for ZooKeeperBackend {}

#[async_trait]
impl Backend for ZooKeeperBackend {
    fn properties(&self) -> Properties {
        let sessions = &self.0.sessions;
        let current = sessions.link.current();
        Properties {
            name: "zookeeper",
            response_limit: sessions.response_limit + sessions.connect_limit,
            session: Some(current.map_or(sessions.timeout, |session| session.timeout)),
            max_lease: None,
            // The node of the next holder is created while the lock is held.
            lookahead: 1,
        }
    }

    fn numbers(&self) -> Option<&dyn Numbers> {
        Some(self)
    }

    fn contender(&self, request: Request) -> Box<dyn Contender> {
        Box::new(ZooKeeperContender {
            zookeeper: Arc::clone(&self.0),
            request,
            blocker: None,
        })
    }

    async fn renew(&self, renewals: &[Request]) -> Result<Vec<Renewed>, BackendError> {
        let place = |renewal: &Request| self.0.places.get(renewal.nonce);
        let places: Vec<_> = renewals.iter().map(place).collect();
        // Normally all belong to the current session.
        let mut batches: Vec<(&Arc<Session>, Vec<(usize, String)>)> = Vec::new();
        let mut renewed = vec![Renewed::Gone(LostReason::Stolen); renewals.len()];
        for (index, place) in places.iter().enumerate() {
            let Some((place, path)) = place.as_ref().and_then(|p| Some((p, p.path()?))) else {
                continue;
            };
            let session = &place.session;
            let mut known = batches.iter_mut();
            match known.find(|(known, _)| Arc::ptr_eq(known, session)) {
                Some((_, places)) => places.push((index, path)),
                None => batches.push((session, vec![(index, path)])),
            }
        }
        for (session, places) in batches {
            let paths: Vec<_> = places.iter().map(|(_, path)| path.as_str()).collect();
            let answers = self.0.renew(session, &paths).await;
            let numbered = places.into_iter().zip(answers);
            let reasoned = numbered.map(async |((index, _), answer)| match answer {
                Renewed::Gone(LostReason::Stolen) => {
                    let reason = self.0.reason(session, renewals[index].nonce).await;
                    (index, Renewed::Gone(reason))
                }
                answer => (index, answer),
            });
            for (index, answer) in join_all(reasoned).await {
                renewed[index] = answer;
            }
        }
        for (renewal, renewed) in renewals.iter().zip(&renewed) {
            if matches!(renewed, Renewed::Gone(_)) {
                self.0.places.remove(renewal.nonce);
            }
        }
        Ok(renewed)
    }

    async fn release(&self, request: &Request, _: bool) -> Result<Release, BackendError> {
        let nonce = request.nonce;
        let Some(place) = self.0.places.get(nonce) else {
            return Ok(Release::NotHeld(LostReason::Stolen));
        };
        let released = match place.session.health() {
            Health::Over => Release::NotHeld(LostReason::SessionExpired),
            Health::Disconnected => return Err(disconnected()),
            Health::Connected => self.0.delete(nonce, place).await?,
        };
        self.0.places.remove(nonce);
        Ok(released)
    }

    async fn verify(&self, name: &str, nonce: Nonce) -> Result<Option<LostReason>, BackendError> {
        let renewal = Request {
            name: name.into(),
            nonce,
            lease: Duration::ZERO,
            claim: Claim::Exclusive,
        };
        match self.renew(&[renewal]).await?[..] {
            [Renewed::Held(_)] => Ok(None),
            [Renewed::Gone(reason)] => Ok(Some(reason)),
            _ => Err(disconnected()),
        }
    }

    fn attach(&self, nudge: Nudge) {
        let sessions = &self.0.sessions;
        sessions.managers.attach(&nudge, || sessions.link.open());
    }

    async fn detach(&self, nudge: &Nudge) {
        let sessions = &self.0.sessions;
        let session = sessions.managers.detach(nudge, || {
            self.0.places.clear();
            sessions.link.close()
        });
        let Some(session) = session.flatten() else {
            return;
        };
        let mut states = session.client.state_watcher();
        // Dropping the last client closes the session. Wait until the server has been told.
        drop(session);
        let closed = async { while !states.changed().await.is_terminated() {} };
        let _ = tokio::time::timeout(sessions.response_limit, closed).await;
    }
}
