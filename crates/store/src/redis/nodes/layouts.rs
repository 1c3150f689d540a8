//! Which node has which slot, as the nodes have last said.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::RedisResult;
use tokio::time::{Instant, sleep};

use crate::redis::address::Address;
use crate::redis::cluster::{Layout, Node};
use crate::redis::on_demand::OnDemand;

/// How often the nodes are asked at most who has which slot.
const REFRESH_EVERY: Duration = Duration::from_millis(50);

/// Who has which slot, as a node has said. Clones share it.
#[derive(Debug, Clone)]
pub(in crate::redis) struct Layouts {
    address: Address,
    limit: Duration,
    current: Arc<OnDemand<Arc<Layout>>>,
    last: Arc<Mutex<LastAnswer>>,
}

/// The last answer of a node.
#[derive(Debug, Default)]
struct LastAnswer {
    epoch: u64,
    nodes: Vec<Node>,
    /// When the nodes may be asked again.
    next: Option<Instant>,
}

impl Layouts {
    pub(in crate::redis) fn new(address: Address, limit: Duration) -> Self {
        Self {
            address,
            limit,
            current: Arc::default(),
            last: Arc::default(),
        }
    }

    pub(super) async fn get(&self) -> RedisResult<Arc<Layout>> {
        let ask = || {
            let this = self.clone();
            async move {
                let asked = this.ask().await;
                if asked.is_err() {
                    // Callers share the failure until then.
                    sleep(REFRESH_EVERY).await;
                }
                asked
            }
        };
        Ok(self.current.get(self.limit, ask).await?.0)
    }

    /// Asks the nodes now.
    pub(in crate::redis) async fn ask_now(&self) -> RedisResult<Arc<Layout>> {
        let layout = self.ask().await?;
        self.current.set(Arc::clone(&layout));
        Ok(layout)
    }

    async fn ask(&self) -> RedisResult<Arc<Layout>> {
        let (known, epoch) = {
            let last = self.last();
            (last.nodes.clone(), last.epoch)
        };
        let layout = self.address.layout(&known, epoch, self.limit).await?;
        let mut last = self.last();
        last.epoch = last.epoch.max(layout.epoch());
        last.nodes = layout.nodes().to_vec();
        last.next = Some(Instant::now() + REFRESH_EVERY);
        Ok(Arc::new(layout))
    }

    /// Asks the nodes again when it is next needed, unless they were asked a moment ago.
    pub(in crate::redis) fn refresh(&self) {
        let mut last = self.last();
        let now = Instant::now();
        if last.next.is_none_or(|next| next <= now) {
            last.next = Some(now + REFRESH_EVERY);
            self.current.expire();
        }
    }

    fn last(&self) -> MutexGuard<'_, LastAnswer> {
        // No code panics while it holds this mutex.
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
