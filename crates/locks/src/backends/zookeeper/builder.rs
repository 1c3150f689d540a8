//! The settings of a back end on ZooKeeper.

use std::sync::Arc;
use std::time::Duration;

use super::access::{Access, Credentials, NodeAcl};
use super::places::Places;
use super::session::Sessions;
use super::{ZooKeeper, ZooKeeperBackend, cluster};
use crate::shared::error::BackendError;
use crate::shared::link::Link;
use crate::shared::setters::setters;

/// The settings of a [`ZooKeeperBackend`]. Created by [`ZooKeeperBackend::builder`].
#[derive(Debug, Clone)]
#[must_use = "it does nothing before build"]
pub struct ZooKeeperBuilder {
    cluster: Result<String, BackendError>,
    root: String,
    session_timeout: Duration,
    connect_limit: Duration,
    response_limit: Duration,
    credentials: Vec<Credentials>,
    acl: Option<NodeAcl>,
}

impl ZooKeeperBuilder {
    pub(super) fn new(cluster: &str) -> Self {
        // The client library would take a password for part of the host name, and log it.
        let cluster = if cluster.contains('@') {
            let cause = "a ZooKeeper connection string must not contain a user or password";
            Err(BackendError::permanent(cause))
        } else {
            Ok(cluster.to_owned())
        };
        Self {
            cluster,
            root: "/locks".to_owned(),
            session_timeout: Duration::from_secs(10),
            connect_limit: Duration::from_secs(2),
            response_limit: Duration::from_secs(1),
            credentials: Vec::new(),
            acl: None,
        }
    }

    /// Authenticates each session, with a scheme and its credentials: `digest` and `user:password`. Each
    /// call adds an identity. Default: none.
    ///
    /// New nodes then admit only clients with these identities, unless [`acl`](Self::acl) says otherwise.
    ///
    /// The scheme `digest` accepts each user and password: there is no list of users on the server. A wrong
    /// password is another identity, which the ACL of the existing nodes does not admit. Then
    /// acquisitions and [`ping`](crate::LockManager::ping) fail at once, with a permanent error. If there is no
    /// node yet, that identity owns the new ones.
    pub fn auth(mut self, scheme: impl Into<String>, credentials: impl Into<Vec<u8>>) -> Self {
        let credentials = Credentials::new(scheme.into(), credentials.into());
        self.credentials.push(credentials);
        self
    }

    /// Sets who may use the nodes that this back end creates. Default: [`NodeAcl::Creator`] with
    /// [`auth`](Self::auth), otherwise [`NodeAcl::Open`].
    ///
    /// Nodes that exist keep their ACL; change it with `setAcl -R` of `zkCli.sh`. If other clients may write
    /// to the root or its parents, they can create the nodes of a lock first, with another ACL.
    pub fn acl(mut self, acl: NodeAcl) -> Self {
        self.acl = Some(acl);
        self
    }

    /// Sets the path that contains all locks. Default: `/locks`.
    pub fn root(mut self, root: impl Into<String>) -> Self {
        self.root = root.into();
        self
    }

    setters! {
        /// Sets the session timeout to request. Default: 10 s. The server may choose another one.
        ///
        /// Other clients wait that long for the locks of a client that died. A lock counts as lost when
        /// the ensemble has not answered for about half of the session timeout.
        session_timeout: Duration;

        /// Sets how long opening a session may take. Default: 2 s.
        connect_limit: Duration;

        /// Sets how long an answer may take. Default: 1 s.
        response_limit: Duration;
    }

    /// Builds the back end. It opens its session when it is first used.
    ///
    /// # Errors
    /// Returns an error if the connection string is invalid or contains `@`, if the root is not an
    /// absolute path, if credentials for `digest` are not `user:password`, or if only the creator may use
    /// the nodes and there are no credentials.
    pub fn build(self) -> Result<ZooKeeperBackend, BackendError> {
        let cluster = self.cluster?;
        cluster::check(&cluster).map_err(BackendError::permanent)?;
        if !self.root.strip_prefix('/').is_some_and(cluster::is_path) {
            let cause = format!("the root `{}` is not an absolute path", self.root);
            return Err(BackendError::permanent(cause));
        }
        let access = Access::new(self.credentials, self.acl).map_err(BackendError::permanent)?;
        Ok(ZooKeeperBackend(Arc::new(ZooKeeper {
            places: Places::default(),
            sessions: Arc::new(Sessions {
                cluster,
                root: self.root,
                access,
                timeout: self.session_timeout,
                connect_limit: self.connect_limit,
                response_limit: self.response_limit,
                managers: Arc::default(),
                link: Link::default(),
            }),
        })))
    }
}
