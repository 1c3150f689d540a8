//! One connection to PostgreSQL that listens for released locks, and wakes the waiters of this
//! process.
//!
//! It is opened when a task waits for the first time, and opened again after it was lost. All waiters
//! are woken then, because messages may have been missed. A lost message delays a waiter by its
//! fallback, not by the lease.

use std::sync::Mutex;
use std::time::Duration;

use sqlx::Executor;
use sqlx::postgres::{PgListener, PgPoolOptions};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::connections::{Database, Servers};
use super::session::postgres::CHANNEL;
use crate::shared::lock::lock;
use crate::shared::retry::Backoff;
use crate::shared::topics::{Listener, Topics};

/// How often a statement checks the connection. It may be silent because it is broken.
const CHECK_EVERY: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct WakeUps {
    channel: Channel,
    task: Mutex<Option<AbortOnDropHandle<()>>>,
}

/// A waiter for one lock.
#[derive(Debug)]
pub(super) struct Subscription {
    released: Listener,
    listening: watch::Receiver<bool>,
}

impl Subscription {
    /// Completes when the server will send a message for each release, or has sent one.
    pub(super) async fn listening(&mut self) {
        tokio::select! {
            // It fails if the back end was dropped. The waiter then uses its fallback.
            Ok(_) = self.listening.wait_for(|listening| *listening) => {}
            () = self.released.changed() => {}
        }
    }

    pub(super) async fn message(&mut self) {
        self.released.changed().await;
    }
}

impl WakeUps {
    /// For servers of PostgreSQL.
    pub(super) fn new(servers: Servers, limit: Duration) -> Self {
        Self {
            channel: Channel {
                servers,
                limit,
                topics: Topics::default(),
                listening: watch::Sender::new(false),
            },
            task: Mutex::default(),
        }
    }

    pub(super) fn subscribe(&self, name: &str) -> Subscription {
        let released = self.channel.topics.listen(name);
        let mut task = lock(&self.task);
        // A runtime that was shut down has ended the task.
        if task.as_ref().is_none_or(AbortOnDropHandle::is_finished) {
            let run = tokio::spawn(self.channel.clone().run());
            *task = Some(AbortOnDropHandle::new(run));
        }
        Subscription {
            released,
            listening: self.channel.listening.subscribe(),
        }
    }

    /// Closes the connection. The next waiter opens another one.
    pub(super) fn close(&self) {
        *lock(&self.task) = None;
        self.channel.listening.send_replace(false);
    }
}

#[derive(Debug, Clone)]
struct Channel {
    servers: Servers,
    limit: Duration,
    topics: Topics,
    listening: watch::Sender<bool>,
}

impl Channel {
    async fn run(self) {
        let mut backoff = Backoff::default();
        loop {
            if let Err(error) = self.listen(&mut backoff).await {
                tracing::debug!(%error, "the connection for wake-ups was lost");
            }
            self.listening.send_replace(false);
            sleep(backoff.next()).await;
        }
    }

    async fn listen(&self, backoff: &mut Backoff) -> sqlx::Result<()> {
        let late = |_| sqlx::Error::PoolTimedOut;
        let Database::Postgres(options) = self.servers.reached() else {
            return Err(sqlx::Error::Configuration("another database".into()));
        };
        // The listener takes its connection from a pool. This one opens nothing in the background.
        let pool = PgPoolOptions::new().max_connections(1).max_lifetime(None);
        let pool = pool.idle_timeout(None).acquire_timeout(self.limit);
        let pool = pool.connect_lazy_with(options.clone());
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.eager_reconnect(false);
        let listen = listener.listen(CHANNEL);
        timeout(self.limit, listen).await.map_err(late)??;
        // No message can be missed from now on. All waiters ask the server once.
        self.listening.send_replace(true);
        self.topics.publish_to_all();
        backoff.reset();
        let mut checks = interval_at(Instant::now() + CHECK_EVERY, CHECK_EVERY);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                message = listener.try_recv() => match message? {
                    Some(message) => self.topics.publish(message.payload()),
                    None => return Ok(()),
                },
                _ = checks.tick() => {
                    let check = listener.execute("SELECT 1");
                    timeout(self.limit, check).await.map_err(late)??;
                }
            }
        }
    }
}
