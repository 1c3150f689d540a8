//! The id under which tokens are issued, and where it is kept.
//!
//! One server keeps it beside the locks, so each request to acquire a lock also reads it. A cluster has one
//! id for all its nodes, and the key of that id has a slot of its own, which no script of a lock can read.
//! A process asks for it when it acquires its first lock, and then at most once per second, at the same
//! time as a lock. If the cluster has lost the id, the first process to notice stores its id again.

use std::sync::{Arc, LazyLock, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::Redis;
use super::scripts::Script;
use crate::error::BackendError;

/// How often a process asks a cluster for the id.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// `KEYS`: source. `ARGV`: id for a cluster that has none, and any text if it replaces another one. Returns
/// the id.
static SOURCE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
local id = redis.call('GET', KEYS[1])
if not id or ARGV[2] then
  id = ARGV[1]
  redis.call('SET', KEYS[1], id)
end
return id
",
    )
});

impl Redis {
    /// The key that scripts read together with those of a lock. A cluster has none.
    pub(super) fn source_key(&self) -> Option<String> {
        let key = format!("{}:source", self.prefix);
        (!self.servers.is_cluster()).then_some(key)
    }

    /// The id of a cluster. While its node is away, the id is what it was, or what the user chose.
    pub(super) async fn shared_source(&self) -> Result<Arc<str>, BackendError> {
        let asked = *self.source_asked();
        if asked.is_some_and(|asked| asked.elapsed() < ASK_EVERY) {
            return Ok(self.source.candidate());
        }
        if asked.is_some() {
            // Only one task asks.
            *self.source_asked() = Some(Instant::now());
        }
        let mut arguments = vec![self.source.candidate().to_string()];
        arguments.extend(self.source.is_fixed.then(|| "fixed".to_owned()));
        let keys = [format!("{}:source", self.prefix)];
        let answer = self.servers.script::<String>(&SOURCE, &keys, &arguments);
        match answer.await {
            Ok(id) => {
                self.source.saw(&id);
                *self.source_asked() = Some(Instant::now());
            }
            Err(error) if asked.is_none() && !self.source.is_fixed => return Err(error),
            Err(error) => {
                *self.source_asked() = Some(Instant::now());
                tracing::debug!(%error, "the source of tokens was not read");
            }
        }
        Ok(self.source.candidate())
    }

    fn source_asked(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        let asked = self.source_asked.lock();
        asked.unwrap_or_else(PoisonError::into_inner)
    }
}
