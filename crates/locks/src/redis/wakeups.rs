//! One connection that hears of every lock that becomes free, for all who wait here.
//!
//! A channel is subscribed to while somebody waits for its lock. When the connection is lost
//! everybody is woken to ask again, and it is made anew. A message that is lost all the same costs
//! the waiters' fallback, not the lease.

use std::collections::HashSet;
use std::sync::OnceLock;
use std::time::Duration;

use futures_util::StreamExt;
use redis::Client;
use redis::aio::{PubSubSink, PubSubStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::retry::Backoff;
use crate::topics::{Listener, Topics};

/// How often the connection is asked whether it is still there.
const PING_EVERY: Duration = Duration::from_secs(5);

/// Where contenders order their wake-ups.
#[derive(Debug, Clone)]
pub(super) struct WakeUps {
    topics: Topics,
    orders: mpsc::UnboundedSender<Order>,
}

#[derive(Debug)]
enum Order {
    Listen(String, oneshot::Sender<()>),
    Leave(String),
}

/// A subscription; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Subscription {
    channel: String,
    /// `None` in the end.
    listener: Option<Listener>,
    orders: mpsc::UnboundedSender<Order>,
}

impl WakeUps {
    /// Starts the task; it ends with the last clone and subscription, or when `closed` says so.
    pub(super) fn start(client: Client, limit: Duration, closed: CancellationToken) -> Self {
        let topics = Topics::default();
        let (orders, inbox) = mpsc::unbounded_channel();
        let task = Task {
            client,
            limit,
            topics: topics.clone(),
            subscribed: HashSet::new(),
        };
        tokio::spawn(async move { closed.run_until_cancelled(task.run(inbox)).await });
        Self { topics, orders }
    }

    /// Orders a subscription; the receiver is answered when the server has confirmed it.
    pub(super) fn subscribe(&self, channel: &str) -> (Subscription, oneshot::Receiver<()>) {
        let subscription = Subscription {
            channel: channel.to_owned(),
            listener: Some(self.topics.listen(channel)),
            orders: self.orders.clone(),
        };
        let (confirm, confirmed) = oneshot::channel();
        // Without the task nothing is ever confirmed, and the fallback does what it is for.
        let _ = self.orders.send(Order::Listen(channel.to_owned(), confirm));
        (subscription, confirmed)
    }
}

impl Subscription {
    /// Completes after the next message.
    pub(super) async fn message(&mut self) {
        if let Some(listener) = &mut self.listener {
            listener.changed().await;
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // Before the order, which looks for who still listens.
        self.listener = None;
        let channel = std::mem::take(&mut self.channel);
        let _ = self.orders.send(Order::Leave(channel));
    }
}

struct Task {
    client: Client,
    limit: Duration,
    topics: Topics,
    subscribed: HashSet<String>,
}

impl Task {
    async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        let mut backoff = Backoff::default();
        loop {
            // Nobody waits, nothing is needed.
            if self.topics.is_empty() {
                match orders.recv().await {
                    Some(Order::Listen(..)) => {}
                    Some(Order::Leave(_)) => continue,
                    None => return,
                }
            }
            let connected = timeout(self.limit, self.client.get_async_pubsub()).await;
            if let Ok(Ok(connection)) = connected {
                let (sink, stream) = connection.split();
                if self
                    .serve(sink, stream, &mut orders, &mut backoff)
                    .await
                    .is_none()
                {
                    tracing::debug!("the connection for wake-ups was lost");
                }
                self.subscribed.clear();
            }
            if orders.is_closed() {
                return;
            }
            // What was missed meanwhile is found by asking.
            self.topics.publish_to_all();
            sleep(backoff.next()).await;
        }
    }

    /// Serves one connection until it is lost (`None`) or nobody is left (`Some`).
    async fn serve(
        &mut self,
        mut sink: PubSubSink,
        mut messages: PubSubStream,
        orders: &mut mpsc::UnboundedReceiver<Order>,
        backoff: &mut Backoff,
    ) -> Option<()> {
        for channel in self.topics.names() {
            self.subscribe(&mut sink, channel).await?;
        }
        // Everybody asks once more now that no message can be missed.
        self.topics.publish_to_all();
        backoff.reset();
        let mut ping = interval_at(Instant::now() + PING_EVERY, PING_EVERY);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                message = messages.next() => self.topics.publish(message?.get_channel_name()),
                order = orders.recv() => match order {
                    None => return Some(()),
                    Some(Order::Listen(channel, confirm)) => {
                        self.subscribe(&mut sink, channel).await?;
                        // It may have been dropped meanwhile.
                        let _ = confirm.send(());
                    }
                    Some(Order::Leave(channel)) => self.leave(&mut sink, &channel).await?,
                },
                // Not after a silence of so long: what comes and goes here may never be silent.
                _ = ping.tick() => {
                    timeout(self.limit, sink.ping::<redis::Value>()).await.ok()?.ok()?;
                }
            }
        }
    }

    async fn subscribe(&mut self, sink: &mut PubSubSink, channel: String) -> Option<()> {
        if !self.subscribed.contains(&channel) {
            timeout(self.limit, sink.subscribe(&channel))
                .await
                .ok()?
                .ok()?;
            self.subscribed.insert(channel);
        }
        Some(())
    }

    async fn leave(&mut self, sink: &mut PubSubSink, channel: &str) -> Option<()> {
        if !self.topics.has_listeners(channel) && self.subscribed.remove(channel) {
            timeout(self.limit, sink.unsubscribe(channel))
                .await
                .ok()?
                .ok()?;
        }
        Some(())
    }
}

/// The task is started by the first one who waits.
#[derive(Debug)]
pub(super) struct LazyWakeUps {
    pub(super) client: Client,
    pub(super) limit: Duration,
    pub(super) closed: CancellationToken,
    pub(super) started: OnceLock<WakeUps>,
}

impl LazyWakeUps {
    pub(super) fn get(&self) -> &WakeUps {
        self.started.get_or_init(|| {
            let closed = self.closed.clone();
            WakeUps::start(self.client.clone(), self.limit, closed)
        })
    }
}
