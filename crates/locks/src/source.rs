//! The id of what issues fencing tokens, as one client knows it.
//!
//! The server stores the id. If it loses it together with its data, a client that has seen the id
//! stores it again, so tokens from before and after the loss stay comparable.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::nonce::Nonce;

#[derive(Debug)]
pub(crate) struct SourceId {
    id: Mutex<String>,
    /// The user chose the id. It replaces another id of the server.
    pub(crate) is_fixed: bool,
}

impl SourceId {
    /// With `fixed`, that id. Otherwise the id of the server, or a random one if it has none.
    pub(crate) fn new(fixed: Option<String>) -> Self {
        Self {
            is_fixed: fixed.is_some(),
            id: Mutex::new(fixed.unwrap_or_else(|| Nonce::random().to_string())),
        }
    }

    /// The id to store on a server that has none.
    pub(crate) fn candidate(&self) -> String {
        self.id().clone()
    }

    /// Remembers the id that the server has.
    pub(crate) fn saw(&self, id: &str) {
        let mut known = self.id();
        if *known != id {
            id.clone_into(&mut known);
        }
    }

    fn id(&self) -> MutexGuard<'_, String> {
        self.id.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
