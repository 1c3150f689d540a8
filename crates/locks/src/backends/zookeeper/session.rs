//! Sessions with the ensemble: one at a time, and a new one after the old one has ended.
//!
//! This module only knows whether a session is connected, disconnected or over. Renewals and
//! deadlines decide whether its locks are still held.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::OnceCell;
use zookeeper_client::{Acls, Client, CreateMode, Error, MultiWriteError, SessionState};

use super::access::Access;
use crate::shared::clock::{Clock, Moment, default_clock};
use crate::shared::error::BackendError;
use crate::shared::link::Link;
use crate::shared::lock::lock;
use crate::shared::managers::Managers;
use crate::shared::nonce::Nonce;

pub(super) const ANY_VERSION: i32 = -1;

/// A server that is silent for this part of the session timeout is replaced by another one. The
/// client library then pings a silent server after three eighths of that, so after less than a tenth
/// of the session timeout.
const SILENCE: u32 = 5;

#[derive(Debug)]
pub(super) struct Session {
    pub(super) client: Client,
    /// The timeout that the server granted.
    pub(super) timeout: Duration,
    pub(super) clock: Arc<dyn Clock>,
    /// When the last write that the ensemble has confirmed was sent.
    confirmed: Mutex<Moment>,
    source: OnceCell<Arc<str>>,
    /// The ACL of new nodes.
    pub(super) acls: Acls<'static>,
    response_limit: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Health {
    Connected,
    /// Requests would wait for a new connection.
    Disconnected,
    /// The session has ended, and its nodes are deleted.
    Over,
}

impl Session {
    pub(super) fn health(&self) -> Health {
        health(self.client.state())
    }

    /// Returns true if a node belongs to this session, and not to an earlier one.
    pub(super) fn owns(&self, stat: &zookeeper_client::Stat) -> bool {
        stat.ephemeral_owner == self.client.session_id().0
    }

    /// Returns the source of the tokens: the id of the ensemble. It is read once per session.
    pub(super) async fn source(&self, root: &str) -> Result<Arc<str>, Error> {
        let read = || self.ask(self.read_source(root));
        self.source.get_or_try_init(read).await.cloned()
    }

    /// Returns the random id stored in the ensemble. The first client creates it.
    async fn read_source(&self, root: &str) -> Result<Arc<str>, Error> {
        let (client, node) = (&self.client, format!("{root}/.source"));
        let options = CreateMode::Persistent.with_acls(self.acls);
        loop {
            match client.get_data(&node).await {
                Ok((id, _)) => {
                    return Ok(format!("zookeeper:{}", String::from_utf8_lossy(&id)).into());
                }
                Err(Error::NoNode) => {}
                Err(error) => return Err(error),
            }
            client.mkdir(root, &options).await?;
            let id = Nonce::random().to_string();
            match client.create(&node, id.as_bytes(), &options).await {
                Ok(_) | Err(Error::NodeExists | Error::NoNode) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Limits the duration of a request, which otherwise waits for a connection as long as the
    /// session lives.
    pub(super) async fn ask<T>(
        &self,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let answer = tokio::time::timeout(self.response_limit, request).await;
        answer.unwrap_or(Err(Error::Timeout))
    }

    /// How long after a confirmed write its session is known to live: three fifths of the timeout.
    ///
    /// The leader ends a session. It knows of the requests to another server from that server's
    /// answers to its pings, every half tick. If that server fails, its last answer counts. Half a
    /// tick is at most a quarter of the timeout, and normally a tenth. The client may have sent
    /// nothing for a tenth of the timeout before that; see `SILENCE`.
    pub(super) fn lease(&self) -> Duration {
        self.timeout * 3 / 5
    }

    /// Returns the rest at `now` of the lease since the last confirmed write, if it is at least half
    /// of it.
    pub(super) fn rest_of_lease(&self, now: Moment) -> Option<Duration> {
        let rest = self
            .lease()
            .checked_sub(now.since(*lock(&self.confirmed)))?;
        (rest >= self.lease() / 2).then_some(rest)
    }

    /// Sends a write. If the ensemble executes it, the session lives.
    pub(super) async fn write<T, E: From<Error>>(
        &self,
        request: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let sent = self.clock.now();
        let answer = tokio::time::timeout(self.response_limit, request).await;
        let output = answer.map_err(|_| E::from(Error::Timeout))??;
        let mut confirmed = lock(&self.confirmed);
        *confirmed = (*confirmed).max(sent);
        Ok(output)
    }

    /// Checks with one write of the ensemble that all these nodes exist. A leader that was replaced
    /// cannot confirm it.
    pub(super) async fn check(&self, paths: &[&str]) -> Result<(), MultiWriteError> {
        let mut writer = self.client.new_multi_writer();
        for path in paths {
            writer.add_check_version(path, ANY_VERSION)?;
        }
        self.write(writer.commit()).await.map(drop)
    }

    /// Writes to a directory, which it creates if there is none. Returns the time of the leader. The later
    /// reads of this session are at least as new.
    pub(super) async fn time(&self, directory: &str) -> Result<i64, Error> {
        loop {
            let write = self.client.set_data(directory, &[], None);
            match self.write(write).await {
                Ok(stat) => return Ok(stat.mtime),
                Err(Error::NoNode) => {
                    let options = CreateMode::Persistent.with_acls(self.acls);
                    self.ask(self.client.mkdir(directory, &options)).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes the server ask the leader for what it does not know yet.
    pub(super) async fn sync(&self) -> Result<(), Error> {
        self.ask(self.client.sync("/")).await
    }

    /// Waits until the connection is lost or the session has ended, and returns that error.
    pub(super) async fn trouble(&self) -> BackendError {
        let mut states = self.client.state_watcher();
        loop {
            match self.health() {
                Health::Connected => states.changed().await,
                Health::Disconnected => return disconnected(),
                Health::Over => return backend_error(Error::SessionExpired),
            };
        }
    }
}

fn health(state: SessionState) -> Health {
    match state {
        SessionState::SyncConnected | SessionState::ConnectedReadOnly => Health::Connected,
        SessionState::Disconnected => Health::Disconnected,
        SessionState::AuthFailed | SessionState::Expired | SessionState::Closed => Health::Over,
    }
}

pub(super) fn disconnected() -> BackendError {
    BackendError::transient("the connection to ZooKeeper was lost")
}

#[derive(Debug)]
pub(super) struct Sessions {
    pub(super) cluster: String,
    pub(super) root: String,
    pub(super) access: Access,
    pub(super) timeout: Duration,
    pub(super) connect_limit: Duration,
    pub(super) response_limit: Duration,
    pub(super) managers: Arc<Managers>,
    pub(super) link: Link<Arc<Session>>,
}

impl Sessions {
    /// Returns the current session, or a new one if it has ended. Fails while it has no connection.
    pub(super) async fn connected(self: &Arc<Self>) -> Result<Arc<Session>, BackendError> {
        let session = self.get().await?;
        if session.health() == Health::Disconnected {
            return Err(disconnected());
        }
        Ok(session)
    }

    /// Returns the current session, or a new one if it has ended.
    pub(super) async fn get(self: &Arc<Self>) -> Result<Arc<Session>, BackendError> {
        let usable = |session: &Arc<Session>| session.health() != Health::Over;
        let connect = || {
            let sessions = Arc::clone(self);
            async move { sessions.connect().await.map_err(backend_error) }
        };
        self.link.get(usable, connect).await
    }

    async fn connect(&self) -> Result<Arc<Session>, Error> {
        let clock = default_clock();
        let sent = clock.now();
        let connector = Client::connector()
            .with_session_timeout(self.timeout)
            .with_connection_timeout(self.timeout / SILENCE)
            .with_fail_eagerly();
        let connect = self.access.authenticate(connector);
        let connect = connect.connect(&self.cluster);
        let connected = tokio::time::timeout(self.connect_limit, connect).await;
        let client = connected.unwrap_or(Err(Error::Timeout))?;
        self.watch(&client);
        Ok(Arc::new(Session {
            timeout: client.session_timeout(),
            client,
            clock,
            confirmed: Mutex::new(sent),
            source: OnceCell::new(),
            acls: self.access.acls(),
            response_limit: self.response_limit,
        }))
    }

    /// Triggers a renewal of all locks when the state of the session changes. The renewals then
    /// detect locks that are suspect or lost.
    fn watch(&self, client: &Client) {
        let managers = Arc::clone(&self.managers);
        let mut states = client.state_watcher();
        tokio::spawn(async move {
            loop {
                let state = states.changed().await;
                tracing::debug!(%state, "the ZooKeeper session changed its state");
                managers.nudge_all();
                if state.is_terminated() {
                    return;
                }
            }
        });
    }
}

/// Classifies an error. Refusals that an operator must fix are permanent. All others may pass, some
/// of them only in a new session.
pub(super) fn backend_error(error: Error) -> BackendError {
    match error {
        Error::NoAuth => {
            let cause = "access to a node was refused (NoAuth): authenticate as the user that created it, \
                         or change its ACL";
            BackendError::permanent(cause)
        }
        Error::AuthFailed => {
            let cause =
                "the credentials were refused (AuthFailed): check their scheme and their text";
            BackendError::permanent(cause)
        }
        Error::InvalidAcl
        | Error::BadArguments(_)
        | Error::Unimplemented
        | Error::QuotaExceeded
        | Error::NoChildrenForEphemerals => BackendError::permanent(error),
        error => BackendError::transient(error),
    }
}
