//! Periods of jobs: a key that expires at the end of the period.

use std::time::Duration;

use async_trait::async_trait;

use super::scripts::Script;
use super::{RedisBackend, milliseconds};
use crate::backend::Periods;
use crate::shared::error::BackendError;
use crate::shared::nonce::Nonce;

/// `KEYS`: period. `ARGV`: nonce, length in ms. Returns -1 if the nonce has started the period, otherwise
/// the rest of the period in ms.
static BEGIN: Script = Script::new(&[r"
local starter = redis.call('GET', KEYS[1])
if starter and starter ~= ARGV[1] then return math.max(redis.call('PTTL', KEYS[1]), 0) end
if not starter then redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) end
return -1
"]);

#[async_trait]
impl Periods for RedisBackend {
    async fn begin_period(
        &self,
        name: &str,
        nonce: Nonce,
        period: Duration,
    ) -> Result<Option<Duration>, BackendError> {
        let keys = [format!("{}:period", self.0.lock_key(name))];
        let arguments = [nonce.to_string(), milliseconds(period)];
        let rest: i64 = self.0.servers.script(&BEGIN, &keys, &arguments).await?;
        Ok(u64::try_from(rest).ok().map(Duration::from_millis))
    }
}
