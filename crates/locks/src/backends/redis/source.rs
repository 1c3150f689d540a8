//! The id under which tokens are issued, and where it is kept.
//!
//! One server keeps it beside the locks, so each request to acquire a lock also reads it. A cluster has one
//! id for all its nodes. The key of that id has its own slot, which no script of a lock can read.
//!
//! So a process asks a cluster separately, at the same time as for a lock: for its first lock, and then at
//! most once per second. If the cluster has lost the id, the first process to notice stores its id again.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::Redis;
use super::scripts::Script;
use crate::shared::error::BackendError;
use crate::shared::lock::lock;

/// How often a process asks a cluster for the id.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// How long an acquisition waits for the id if the process knows one. The master of the lock may be healthy
/// while that of the id is not.
const ASK_FOR: Duration = Duration::from_millis(100);

/// `KEYS`: source. `ARGV`: id for a cluster that has none, and any text if it replaces another one. Returns
/// the id.
static SOURCE: Script = Script::new(&[r"
local id = redis.call('GET', KEYS[1])
if not id or ARGV[2] then
  id = ARGV[1]
  redis.call('SET', KEYS[1], id)
end
return id
"]);

impl Redis {
    /// The key that scripts read together with those of a lock. A cluster has none.
    pub(super) fn source_key(&self) -> Option<String> {
        let key = format!("{}:source", self.settings.prefix);
        (!self.servers.is_cluster()).then_some(key)
    }

    /// The id of a cluster. While its node is away, the id is what it was, or what the user chose.
    pub(super) async fn shared_source(self: &Arc<Self>) -> Result<Arc<str>, BackendError> {
        let is_known = {
            let mut asked = lock(&self.source_asked);
            if asked.is_some_and(|asked| asked.elapsed() < ASK_EVERY) {
                return Ok(self.source.candidate());
            }
            let is_known = asked.is_some() || self.source.is_fixed;
            if is_known {
                // Only one task asks.
                *asked = Some(Instant::now());
            }
            is_known
        };
        if !is_known {
            self.ask_for_source().await?;
            return Ok(self.source.candidate());
        }
        let redis = Arc::clone(self);
        // A separate task: it runs on after the limit, so its own time limit closes a silent connection.
        let task = tokio::spawn(async move {
            if let Err(error) = redis.ask_for_source().await {
                tracing::debug!(%error, "the source of tokens was not read");
            }
        });
        // Without an answer, the id that is known is used.
        let _ = timeout(ASK_FOR, task).await;
        Ok(self.source.candidate())
    }

    async fn ask_for_source(&self) -> Result<(), BackendError> {
        let mut arguments = vec![self.source.candidate().to_string()];
        arguments.extend(self.source.is_fixed.then(|| "fixed".to_owned()));
        let keys = [format!("{}:source", self.settings.prefix)];
        let answer = self.servers.script::<String>(&SOURCE, &keys, &arguments);
        self.source.saw(&answer.await?);
        *lock(&self.source_asked) = Some(Instant::now());
        Ok(())
    }
}
