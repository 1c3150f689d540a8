//! Who this client is, and who may use the nodes that it creates.

use std::fmt::{self, Debug, Formatter};

use zookeeper_client::Acls;
use zookeeper_client::Connector;

/// Who may use the nodes that a back end creates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeAcl {
    /// Any client may read, change and delete them.
    Open,
    /// Only clients with an identity of the client that created them. The server ends sessions and removes
    /// unused directories regardless.
    Creator,
}

/// An identity, as the client proves it.
#[derive(Clone)]
pub(super) struct Credentials {
    scheme: String,
    secret: Vec<u8>,
}

impl Credentials {
    pub(super) const fn new(scheme: String, secret: Vec<u8>) -> Self {
        Self { scheme, secret }
    }
}

/// Without the password.
impl Debug for Credentials {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let mut output = formatter.debug_struct("Credentials");
        output.field("scheme", &self.scheme).finish_non_exhaustive()
    }
}

/// The identities of each session, and the ACL of its nodes.
#[derive(Debug)]
pub(super) struct Access {
    credentials: Vec<Credentials>,
    acl: NodeAcl,
}

impl Access {
    /// # Errors
    /// Returns a message without the password.
    pub(super) fn new(
        credentials: Vec<Credentials>,
        acl: Option<NodeAcl>,
    ) -> Result<Self, &'static str> {
        let is_wrong = |it: &Credentials| it.scheme == "digest" && !is_pair(&it.secret);
        if credentials.iter().any(is_wrong) {
            return Err("credentials for the scheme digest must be user:password");
        }
        let usual = if credentials.is_empty() {
            NodeAcl::Open
        } else {
            NodeAcl::Creator
        };
        let acl = acl.unwrap_or(usual);
        if acl == NodeAcl::Creator && credentials.is_empty() {
            return Err("NodeAcl::Creator needs credentials: ZooKeeperBuilder::auth sets them");
        }
        Ok(Self { credentials, acl })
    }

    /// The library sends the credentials again over each new connection of the session.
    pub(super) fn authenticate(&self, connector: Connector) -> Connector {
        let credentials = self.credentials.iter();
        credentials.fold(connector, |connector, Credentials { scheme, secret }| {
            connector.with_auth(scheme, secret)
        })
    }

    pub(super) const fn acls(&self) -> Acls<'static> {
        match self.acl {
            NodeAcl::Open => Acls::anyone_all(),
            NodeAcl::Creator => Acls::creator_all(),
        }
    }
}

/// Returns true for `user:password`.
fn is_pair(secret: &[u8]) -> bool {
    let colon = secret.iter().position(|byte| *byte == b':');
    colon.is_some_and(|colon| colon > 0 && colon + 1 < secret.len())
}

#[cfg(test)]
mod tests {
    use super::{Access, Credentials, NodeAcl};

    fn digest(secret: &str) -> Vec<Credentials> {
        vec![Credentials::new("digest".to_owned(), secret.into())]
    }

    #[test]
    fn credentials_decide_the_usual_acl() {
        for (credentials, acl, expected) in [
            (Vec::new(), None, Some(NodeAcl::Open)),
            (Vec::new(), Some(NodeAcl::Creator), None),
            (digest("a:b:c"), None, Some(NodeAcl::Creator)),
            (digest("a:b"), Some(NodeAcl::Open), Some(NodeAcl::Open)),
        ] {
            let access = Access::new(credentials, acl).ok();
            assert_eq!(access.map(|access| access.acl), expected);
        }
    }

    #[test]
    fn incomplete_digest_is_refused_without_its_text() {
        for secret in ["", ":", "s3cr3t", ":s3cr3t", "s3cr3t:"] {
            let error = Access::new(digest(secret), None).unwrap_err();
            assert!(!error.contains("s3cr3t"), "{error}");
        }
        let printed = format!("{:?}", Access::new(digest("shop:s3cr3t"), None));
        assert!(!printed.contains("s3cr3t"), "{printed}");
    }
}
