//! One pub/sub connection that wakes all waiters of this process.
//!
//! It subscribes to the channel of a lock while a task waits for that lock. If the connection is
//! lost, it is opened again, and all waiters are woken to ask the server. A lost message delays a
//! waiter by its fallback, not by the lease.

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

/// How often a ping checks the connection.
const PING_EVERY: Duration = Duration::from_secs(5);

/// A handle to the task that owns the connection.
#[derive(Debug, Clone)]
pub(super) struct WakeUps {
    topics: Topics,
    commands: mpsc::UnboundedSender<Command>,
}

#[derive(Debug)]
enum Command {
    Subscribe(String, oneshot::Sender<()>),
    Unsubscribe(String),
}

/// A subscription to one channel. Dropping it unsubscribes.
#[derive(Debug)]
pub(super) struct Subscription {
    channel: String,
    /// `None` only during the drop.
    listener: Option<Listener>,
    commands: mpsc::UnboundedSender<Command>,
}

impl WakeUps {
    /// Starts the task. It ends after the last handle and subscription are dropped, or when
    /// `closed` is cancelled.
    pub(super) fn start(client: Client, limit: Duration, closed: CancellationToken) -> Self {
        let topics = Topics::default();
        let (commands, inbox) = mpsc::unbounded_channel();
        let task = Task {
            client,
            limit,
            topics: topics.clone(),
            subscribed: HashSet::new(),
        };
        tokio::spawn(async move { closed.run_until_cancelled(task.run(inbox)).await });
        Self { topics, commands }
    }

    /// Subscribes to a channel. The receiver completes when the server has confirmed it.
    pub(super) fn subscribe(&self, channel: &str) -> (Subscription, oneshot::Receiver<()>) {
        let subscription = Subscription {
            channel: channel.to_owned(),
            listener: Some(self.topics.listen(channel)),
            commands: self.commands.clone(),
        };
        let (confirm, confirmed) = oneshot::channel();
        // If the task has ended, there is no confirmation, and the waiter uses its fallback.
        let _ = self
            .commands
            .send(Command::Subscribe(channel.to_owned(), confirm));
        (subscription, confirmed)
    }
}

impl Subscription {
    pub(super) async fn message(&mut self) {
        if let Some(listener) = &mut self.listener {
            listener.changed().await;
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // Drop the listener first: the task checks whether any listener is left.
        self.listener = None;
        let channel = std::mem::take(&mut self.channel);
        let _ = self.commands.send(Command::Unsubscribe(channel));
    }
}

struct Task {
    client: Client,
    limit: Duration,
    topics: Topics,
    subscribed: HashSet<String>,
}

impl Task {
    async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        let mut backoff = Backoff::default();
        loop {
            // No connection is needed while no task waits.
            if self.topics.is_empty() {
                match commands.recv().await {
                    Some(Command::Subscribe(..)) => {}
                    Some(Command::Unsubscribe(_)) => continue,
                    None => return,
                }
            }
            let connected = timeout(self.limit, self.client.get_async_pubsub()).await;
            if let Ok(Ok(connection)) = connected {
                let (sink, stream) = connection.split();
                if self
                    .serve(sink, stream, &mut commands, &mut backoff)
                    .await
                    .is_none()
                {
                    tracing::debug!("the connection for wake-ups was lost");
                }
                self.subscribed.clear();
            }
            if commands.is_closed() {
                return;
            }
            // Messages may have been missed, so all waiters ask the server.
            self.topics.publish_to_all();
            sleep(backoff.next()).await;
        }
    }

    /// Serves one connection. Returns `None` when it is lost, `Some` when all handles are dropped.
    async fn serve(
        &mut self,
        mut sink: PubSubSink,
        mut messages: PubSubStream,
        commands: &mut mpsc::UnboundedReceiver<Command>,
        backoff: &mut Backoff,
    ) -> Option<()> {
        for channel in self.topics.names() {
            self.subscribe(&mut sink, channel).await?;
        }
        // No message can be missed from now on. All waiters ask the server once.
        self.topics.publish_to_all();
        backoff.reset();
        let mut ping = interval_at(Instant::now() + PING_EVERY, PING_EVERY);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                message = messages.next() => self.topics.publish(message?.get_channel_name()),
                command = commands.recv() => match command {
                    None => return Some(()),
                    Some(Command::Subscribe(channel, confirm)) => {
                        self.subscribe(&mut sink, channel).await?;
                        // The subscriber may no longer wait.
                        let _ = confirm.send(());
                    }
                    Some(Command::Unsubscribe(channel)) => self.unsubscribe(&mut sink, &channel).await?,
                },
                // Ping at fixed intervals, not after silence: on a busy connection there may be no
                // silence.
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

    async fn unsubscribe(&mut self, sink: &mut PubSubSink, channel: &str) -> Option<()> {
        if !self.topics.has_listeners(channel) && self.subscribed.remove(channel) {
            timeout(self.limit, sink.unsubscribe(channel))
                .await
                .ok()?
                .ok()?;
        }
        Some(())
    }
}

/// Starts the task when the first waiter needs it.
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
