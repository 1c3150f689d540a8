//! One pub/sub connection that wakes all waiters of this process.
//!
//! It subscribes to the channel of a lock while a task waits for that lock, and for two seconds after
//! that. There is at most one request on its way: channels that arrive until its answer share the
//! next one. Messages are delivered at any time. If the connection is lost, it is opened again, and
//! all waiters are woken to ask the server. A lost message delays a waiter by its fallback, not by the
//! lease. So does a server that refuses the subscription.
//!
//! On a cluster the connection leads to any node: the cluster sends each message to all of them.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};
use redis::aio::{PubSubSink, PubSubStream};
use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout};

use super::address::Address;
use crate::shared::lock::lock;
use crate::shared::retry::Backoff;
use crate::shared::topics::{Listener, Topics};

const PING_EVERY: Duration = Duration::from_secs(5);
/// How long a channel without waiters stays subscribed. On a hot lock the next waiter comes soon.
const KEEP: Duration = Duration::from_secs(2);
const SWEEP_EVERY: Duration = Duration::from_secs(1);
const BATCH: usize = 1_000;
/// The user has no right to a channel.
const NO_PERMISSION: ErrorKind = ErrorKind::Server(ServerErrorKind::NoPerm);

/// The task that owns the connection. It starts when the first waiter needs it.
#[derive(Debug)]
pub(super) struct WakeUps {
    address: Address,
    limit: Duration,
    started: Mutex<Option<Handle>>,
}

type Handle = (Topics, mpsc::UnboundedSender<Subscribe>);

/// A channel, and who waits for the confirmation of its subscription.
type Subscribe = (String, oneshot::Sender<()>);

/// A subscription to one channel. Dropping it unsubscribes.
#[derive(Debug)]
pub(super) struct Subscription {
    listener: Listener,
    commands: mpsc::UnboundedSender<Subscribe>,
}

impl WakeUps {
    pub(super) fn new(address: Address, limit: Duration) -> Self {
        Self {
            address,
            limit,
            started: Mutex::default(),
        }
    }

    /// Starts the task. It ends after the last handle and subscription are dropped.
    fn start(&self) -> Handle {
        let topics = Topics::default();
        let (commands, inbox) = mpsc::unbounded_channel();
        let task = Task {
            address: self.address.clone(),
            limit: self.limit,
            topics: topics.clone(),
            commands: inbox,
            is_warned: false,
        };
        tokio::spawn(task.run());
        (topics, commands)
    }

    /// Subscribes to a channel. The receiver completes when the server has confirmed it, or fails if
    /// there is no confirmation.
    pub(super) fn subscribe(&self, channel: &str) -> (Subscription, oneshot::Receiver<()>) {
        let mut started = lock(&self.started);
        // A runtime that was shut down has ended the task.
        drop(started.take_if(|(_, commands)| commands.is_closed()));
        let (topics, commands) = started.get_or_insert_with(|| self.start());
        let subscription = Subscription {
            listener: topics.listen(channel),
            commands: commands.clone(),
        };
        let (confirm, confirmed) = oneshot::channel();
        // If the task has ended, there is no confirmation, and the waiter uses its fallback.
        let _ = commands.send((channel.to_owned(), confirm));
        (subscription, confirmed)
    }

    /// Ends the task after its last subscription. The next waiter starts another one.
    pub(super) fn close(&self) {
        *lock(&self.started) = None;
    }
}

impl Subscription {
    /// Whether its task has ended, with its runtime.
    pub(super) fn has_ended(&self) -> bool {
        self.commands.is_closed()
    }

    pub(super) async fn message(&mut self) {
        self.listener.changed().await;
    }
}

struct Task {
    address: Address,
    limit: Duration,
    topics: Topics,
    commands: mpsc::UnboundedReceiver<Subscribe>,
    /// Whether a refused subscription was reported.
    is_warned: bool,
}

impl Task {
    /// Ends when the last handle was dropped.
    async fn run(mut self) -> Option<()> {
        let mut backoff = Backoff::default();
        loop {
            // No connection is needed while no task waits.
            while self.topics.is_empty() {
                self.commands.recv().await?;
            }
            let (address, limit) = (self.address.clone(), self.limit);
            let connect = async move { address.client().await?.get_async_pubsub().await };
            let connect = timeout(limit, connect);
            if let Ok(Ok(connection)) = self.discarding_commands(connect).await? {
                let (sink, stream) = connection.split();
                let names = self.topics.names().into_iter();
                let channels = Channels {
                    sink,
                    limit,
                    subscribed: HashMap::new(),
                    asked: HashMap::new(),
                    wanted: names.map(|channel| (channel, Vec::new())).collect(),
                    batch: BATCH,
                };
                channels.serve(&mut self, stream, &mut backoff).await?;
                tracing::debug!("the connection for wake-ups was lost");
                // Messages may have been missed, so all waiters ask the server.
                self.topics.publish_to_all();
            }
            self.discarding_commands(sleep(backoff.next())).await?;
        }
    }

    /// Completes with `future`, or with `None` if the last handle was dropped. Until then there is no
    /// connection: the next one begins with all channels that have listeners, so commands need not be kept.
    async fn discarding_commands<T>(&mut self, future: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(future);
        loop {
            tokio::select! {
                output = &mut future => return Some(output),
                command = self.commands.recv() => drop(command?),
            }
        }
    }

    fn warn_about_refusal(&mut self, error: &RedisError) {
        if !std::mem::replace(&mut self.is_warned, true) {
            tracing::warn!(
                %error,
                "Redis refuses to subscribe to the channels of locks; waiters poll instead",
            );
        }
    }
}

/// The answer to a request: `None` if it did not arrive in time.
type Answer = Option<RedisResult<()>>;

struct Channels {
    sink: PubSubSink,
    limit: Duration,
    /// The channels, and since when a sweep has found no listener.
    subscribed: HashMap<String, Option<Instant>>,
    /// Channels that the request on its way subscribes to, and who waits for the confirmation.
    asked: HashMap<String, Vec<oneshot::Sender<()>>>,
    /// Channels of the next request.
    wanted: HashMap<String, Vec<oneshot::Sender<()>>>,
    /// The maximum number of channels per request: 1 after the server has refused one of several.
    batch: usize,
}

impl Channels {
    /// Serves the waiters until the connection is lost. Returns `None` if the last handle was dropped.
    async fn serve(
        mut self,
        task: &mut Task,
        mut messages: PubSubStream,
        backoff: &mut Backoff,
    ) -> Option<()> {
        let mut is_starting = true;
        let mut request: Option<BoxFuture<'static, Answer>> = self.next_request();
        let mut pings = interval_at(Instant::now() + PING_EVERY, PING_EVERY);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ping: Option<BoxFuture<'static, Answer>> = None;
        let mut sweeps = interval_at(Instant::now() + SWEEP_EVERY, SWEEP_EVERY);
        sweeps.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if is_starting && request.is_none() {
                // No message can be missed from now on. All waiters ask the server once.
                is_starting = false;
                task.topics.publish_to_all();
                backoff.reset();
            }
            tokio::select! {
                message = messages.next() => match message {
                    Some(message) => task.topics.publish(message.get_channel_name()),
                    None => return Some(()),
                },
                answer = completed(&mut request) => {
                    if self.finish(answer, task).is_none() {
                        return Some(());
                    }
                }
                command = task.commands.recv() => self.accept(command?),
                // Ping at fixed intervals, not after silence: on a busy connection there may be no
                // silence.
                _ = pings.tick(), if ping.is_none() => ping = Some(self.ping()),
                answer = completed(&mut ping) => if !matches!(answer, Some(Ok(()))) {
                    return Some(());
                },
                _ = sweeps.tick(), if request.is_none() && !self.subscribed.is_empty() => {
                    request = self.end_idle(&task.topics);
                }
            }
            if request.is_none() {
                request = self.next_request();
            }
        }
    }

    fn accept(&mut self, (channel, confirm): Subscribe) {
        if self.subscribed.contains_key(&channel) {
            // The subscriber may no longer wait.
            let _ = confirm.send(());
        } else if let Some(confirms) = self.asked.get_mut(&channel) {
            confirms.push(confirm);
        } else {
            self.wanted.entry(channel).or_default().push(confirm);
        }
    }

    fn next_request(&mut self) -> Option<BoxFuture<'static, Answer>> {
        let next = self.wanted.keys().take(self.batch);
        let next: Vec<_> = next.cloned().collect();
        let take = |channel| self.wanted.remove_entry(channel);
        self.asked = next.iter().filter_map(take).collect();
        let (mut sink, limit) = (self.sink.clone(), self.limit);
        let request = async move { timeout(limit, sink.subscribe(next)).await.ok() };
        (!self.asked.is_empty()).then(|| request.boxed())
    }

    /// Processes an answer. Returns `None` if the connection is lost.
    fn finish(&mut self, answer: Answer, task: &mut Task) -> Option<()> {
        let asked = std::mem::take(&mut self.asked);
        match answer? {
            Ok(()) => {
                for (channel, confirms) in asked {
                    self.subscribed.insert(channel, None);
                    for confirm in confirms {
                        // The subscriber may no longer wait.
                        let _ = confirm.send(());
                    }
                }
            }
            Err(error) if error.kind() == NO_PERMISSION && asked.len() > 1 => {
                // Some of the channels may be allowed.
                self.batch = 1;
                self.wanted.extend(asked);
            }
            // Dropping the senders leaves the waiters to their fallback.
            Err(error) if error.kind() == NO_PERMISSION => task.warn_about_refusal(&error),
            Err(_) => return None,
        }
        Some(())
    }

    /// Unsubscribes from the channels that have had no listener for a while.
    fn end_idle(&mut self, topics: &Topics) -> Option<BoxFuture<'static, Answer>> {
        let mut ended = Vec::new();
        self.subscribed.retain(|channel, idle_since| {
            if topics.has_listeners(channel) {
                *idle_since = None;
                return true;
            }
            let is_kept = idle_since.get_or_insert_with(Instant::now).elapsed() < KEEP;
            if !is_kept {
                ended.push(channel.clone());
            }
            is_kept
        });
        let (mut sink, limit) = (self.sink.clone(), self.limit);
        let is_none = ended.is_empty();
        let request = async move { timeout(limit, sink.unsubscribe(ended)).await.ok() };
        (!is_none).then(|| request.boxed())
    }

    fn ping(&self) -> BoxFuture<'static, Answer> {
        let (mut sink, limit) = (self.sink.clone(), self.limit);
        let ping = async move {
            let answer = timeout(limit, sink.ping::<redis::Value>()).await.ok()?;
            Some(answer.map(drop))
        };
        ping.boxed()
    }
}

/// Completes with a future, and removes it. Does not complete if there is none.
async fn completed<T>(future: &mut Option<BoxFuture<'static, T>>) -> T {
    let Some(running) = future else {
        return std::future::pending().await;
    };
    let output = running.await;
    *future = None;
    output
}
