//! Sessions: one at a time, and another one when it has ended.
//!
//! What a session's locks are worth is decided elsewhere, by renewals and deadlines; here only is
//! known whether it is connected, silent or over.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::OnceCell;
use zookeeper_client::{Acls, Client, CreateMode, Error, SessionState};

use crate::backend::Nudge;
use crate::error::BackendError;
use crate::link::Link;
use crate::nonce::Nonce;

/// A session with the ensemble.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) client: Client,
    /// The time-out that was agreed on with the server.
    pub(super) timeout: Duration,
    source: OnceCell<Arc<str>>,
    response_limit: Duration,
}

/// What a session is good for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Health {
    Connected,
    /// Requests would wait for the connection.
    Disconnected,
    /// It is over, with all of its nodes.
    Over,
}

impl Session {
    pub(super) fn health(&self) -> Health {
        health(self.client.state())
    }

    /// Whether a node belongs to this session and not to an earlier one that is about to end.
    pub(super) fn owns(&self, stat: &zookeeper_client::Stat) -> bool {
        stat.ephemeral_owner == self.client.session_id().0
    }

    /// The id of the ensemble, which minted the transaction ids; asked for once.
    pub(super) async fn source(&self, root: &str) -> Result<Arc<str>, Error> {
        let ask = || self.ask(source(&self.client, root));
        self.source.get_or_try_init(ask).await.cloned()
    }

    /// Bounds a request, which otherwise waits for the connection for as long as the session lives.
    pub(super) async fn ask<T>(
        &self,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let answer = tokio::time::timeout(self.response_limit, request).await;
        answer.unwrap_or(Err(Error::Timeout))
    }

    /// Has what is asked after it answered from what the leader knows now. A server that is cut off
    /// answers reads by itself, while the leader may have ended the session already.
    pub(super) async fn sync(&self) -> Result<(), Error> {
        self.ask(self.client.sync("/")).await
    }

    /// Completes with an error when the connection is lost or the session is over.
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
    BackendError::transient("the connection to ZooKeeper is lost")
}

/// Makes sessions as they are needed.
#[derive(Debug)]
pub(super) struct Sessions {
    pub(super) cluster: String,
    pub(super) root: String,
    pub(super) timeout: Duration,
    pub(super) connect_limit: Duration,
    pub(super) response_limit: Duration,
    pub(super) nudge: OnceLock<Nudge>,
    pub(super) link: Link<Arc<Session>>,
}

impl Sessions {
    /// The session, or another one if it is over.
    pub(super) async fn get(self: &Arc<Self>) -> Result<Arc<Session>, BackendError> {
        let usable = |session: &Arc<Session>| session.health() != Health::Over;
        let connect = || {
            let sessions = Arc::clone(self);
            async move { sessions.connect().await.map_err(backend_error) }
        };
        self.link.get(usable, connect).await
    }

    async fn connect(&self) -> Result<Arc<Session>, Error> {
        let connector = Client::connector()
            .with_session_timeout(self.timeout)
            .with_fail_eagerly();
        let connect = connector.connect(&self.cluster);
        let connected = tokio::time::timeout(self.connect_limit, connect).await;
        let client = connected.unwrap_or(Err(Error::Timeout))?;
        self.watch(&client);
        Ok(Arc::new(Session {
            timeout: client.session_timeout(),
            client,
            source: OnceCell::new(),
            response_limit: self.response_limit,
        }))
    }

    /// Has all locks renewed, and so found to be suspect or lost, when the session's state changes.
    fn watch(&self, client: &Client) {
        let Some(nudge) = self.nudge.get().cloned() else {
            return;
        };
        let mut states = client.state_watcher();
        tokio::spawn(async move {
            loop {
                let state = states.changed().await;
                tracing::debug!(%state, "the ZooKeeper session changed its state");
                nudge.renew_now();
                if state.is_terminated() {
                    return;
                }
            }
        });
    }
}

/// The random id that is kept in the ensemble; written by who comes first.
async fn source(client: &Client, root: &str) -> Result<Arc<str>, Error> {
    let node = format!("{root}/.source");
    let acls = Acls::anyone_all();
    loop {
        match client.get_data(&node).await {
            Ok((id, _)) => return Ok(format!("zookeeper:{}", String::from_utf8_lossy(&id)).into()),
            Err(Error::NoNode) => {}
            Err(error) => return Err(error),
        }
        let directory = CreateMode::Persistent.with_acls(acls);
        client.mkdir(root, &directory).await?;
        let id = Nonce::random().to_string();
        let options = CreateMode::Persistent.with_acls(acls);
        match client.create(&node, id.as_bytes(), &options).await {
            Ok(_) | Err(Error::NodeExists | Error::NoNode) => {}
            Err(error) => return Err(error),
        }
    }
}

/// The refusals that somebody has to mend stay; everything else passes, if only with another
/// session.
pub(super) fn backend_error(error: Error) -> BackendError {
    match error {
        Error::NoAuth
        | Error::AuthFailed
        | Error::InvalidAcl
        | Error::BadArguments(_)
        | Error::Unimplemented
        | Error::QuotaExceeded
        | Error::NoChildrenForEphemerals => BackendError::permanent(error),
        error => BackendError::transient(error),
    }
}
