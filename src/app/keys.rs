//! Loads the API keys, when a replica starts and every few seconds. So a key that was created or revoked
//! counts at each replica after at most 5 s.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Replica;
use super::supervise::{Outage, supervise};
use crate::access::{Access, KeyRing};
use crate::http::Api;
use stocklock_core::ports::StoreError;
use stocklock_store::Store;

/// The pause between two loads. A load may take the rest of 5 s.
const PAUSE: Duration = Duration::from_secs(4);

/// The pause while no key was loaded yet.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

impl Replica {
    /// Loads the keys before the replica listens. If the database is away, the replica refuses requests with
    /// 503 until it has loaded them.
    ///
    /// # Errors
    /// One line if there is no valid key: no request could succeed.
    pub async fn load_keys(&self) -> Result<(), String> {
        let Access::Keys(ring) = &*self.api.access else {
            return Ok(());
        };
        if let Err(error) = load(&*self.api.store, ring).await {
            tracing::warn!(%error, "the API keys cannot be loaded yet");
        }
        if ring.has_valid() == Some(false) {
            return Err(NO_KEY.to_owned());
        }
        Ok(())
    }
}

const NO_KEY: &str = "AUTH: there is no valid API key; create one with `stocklock keys create --name NAME \
                      --caller CALLER --scopes sell,read`, or let every caller in with AUTH=none";

/// Loads the keys again and again, until `stop` is cancelled.
pub(super) async fn run(api: Arc<Api>, stop: CancellationToken) {
    let start = || reload(Arc::clone(&api), stop.clone());
    supervise("the loader of API keys", &stop, start).await;
}

async fn reload(api: Arc<Api>, stop: CancellationToken) {
    let Access::Keys(ring) = &*api.access else {
        return stop.cancelled().await;
    };
    let mut outage = Outage::default();
    let mut failed = false;
    loop {
        // After an error soon again: a key that was revoked is valid until the next load.
        let pause = if ring.has_valid().is_none() || failed {
            FIRST_PAUSE
        } else {
            PAUSE
        };
        let round = async {
            tokio::time::sleep(pause).await;
            load(&*api.store, ring).await
        };
        let loaded = tokio::select! {
            loaded = round => loaded,
            () = stop.cancelled() => return,
        };
        failed = loaded.is_err();
        outage.note(
            loaded,
            "the API keys cannot be loaded; the last ones stay valid",
        );
    }
}

async fn load(store: &dyn Store, ring: &KeyRing) -> Result<(), StoreError> {
    let at = Instant::now();
    ring.replace(store.valid_api_keys().await?, at);
    Ok(())
}
