//! The id of what issues fencing tokens, as one client knows it.
//!
//! The server stores the id. If it loses it together with its data, a client that has seen the id
//! stores it again, so tokens from before and after the loss stay comparable.

use std::sync::{Arc, Mutex};

use crate::shared::lock::lock;
use crate::shared::nonce::Nonce;

#[derive(Debug)]
pub(crate) struct SourceId {
    /// The kind of server, which is the first part of the source.
    pub(crate) kind: &'static str,
    known: Mutex<Known>,
    /// The user chose the id. It replaces another id of the server.
    #[cfg(feature = "redis")]
    pub(crate) is_fixed: bool,
}

#[derive(Debug)]
struct Known {
    id: Arc<str>,
    source: Arc<str>,
}

impl SourceId {
    /// With `fixed`, that id. Otherwise the id of the server, or a random one if it has none.
    pub(crate) fn new(kind: &'static str, fixed: Option<String>) -> Self {
        #[cfg(feature = "redis")]
        let is_fixed = fixed.is_some();
        let id = fixed.unwrap_or_else(|| Nonce::random().to_string());
        Self {
            kind,
            known: Mutex::new(Known::new(kind, &id)),
            #[cfg(feature = "redis")]
            is_fixed,
        }
    }

    /// The id to store on a server that has none.
    pub(crate) fn candidate(&self) -> Arc<str> {
        Arc::clone(&lock(&self.known).id)
    }

    /// The source of tokens that the server issues under the id that is known.
    #[cfg(feature = "sql")]
    pub(crate) fn source(&self) -> Arc<str> {
        Arc::clone(&lock(&self.known).source)
    }

    /// Remembers the id that the server has, and returns the source that it stands for.
    pub(crate) fn saw(&self, id: &str) -> Arc<str> {
        let mut known = lock(&self.known);
        if *known.id != *id {
            *known = Known::new(self.kind, id);
        }
        Arc::clone(&known.source)
    }
}

impl Known {
    fn new(kind: &str, id: &str) -> Self {
        Self {
            id: id.into(),
            source: format!("{kind}:{id}").into(),
        }
    }
}
