//! An actor: a task that owns one connection, or a process that owns all connections of an actor.

use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use crate::session::{Address, LOST, Session};

/// Upper bound on everything that a story waits for. An idle machine needs milliseconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A command, and where its answer goes.
pub(crate) type Order = (String, oneshot::Sender<String>);

/// One connection. Dropping this closes it.
#[derive(Debug)]
pub(crate) struct Line {
    orders: mpsc::Sender<Order>,
    pub(crate) address: Address,
    /// Its id on the server; empty if the server gives none.
    pub(crate) id: String,
    _task: AbortOnDropHandle<()>,
}

impl Line {
    /// Connects from this process.
    pub(crate) async fn open(address: &Address) -> Result<Self> {
        let opened = timeout(PATIENCE, Session::open(address)).await;
        let mut session = opened.ok().context("no connection in time")??;
        let (orders, mut received) = mpsc::channel::<Order>(1);
        let task = tokio::spawn(async move {
            while let Some((command, answer)) = received.recv().await {
                // The receiver is gone if the variant has failed.
                let _ = answer.send(session.run(&command).await);
            }
        });
        let line = Self::new(orders, address.clone(), AbortOnDropHandle::new(task));
        line.with_id().await
    }

    pub(crate) fn new(
        orders: mpsc::Sender<Order>,
        address: Address,
        task: AbortOnDropHandle<()>,
    ) -> Self {
        Self {
            orders,
            address,
            id: String::new(),
            _task: task,
        }
    }

    /// Asks the server for the id of the connection.
    pub(crate) async fn with_id(mut self) -> Result<Self> {
        if let Some(command) = Session::id_command(self.address.kind) {
            self.id = self.answer(command).await?;
        }
        Ok(self)
    }

    /// Sends a command without waiting for the answer.
    pub(crate) async fn send(&self, command: &str) -> oneshot::Receiver<String> {
        let (answer, answered) = oneshot::channel();
        // If the task has ended, the receiver says so.
        let _ = self.orders.send((command.to_owned(), answer)).await;
        answered
    }

    /// Sends a command and waits for the answer.
    pub(crate) async fn answer(&self, command: &str) -> Result<String> {
        received(self.send(command).await).await
    }
}

/// The answer to a command that was sent.
pub(crate) async fn received(answer: oneshot::Receiver<String>) -> Result<String> {
    let answered = timeout(PATIENCE, answer).await.ok();
    let answer = answered.with_context(|| format!("no answer within {PATIENCE:?}"))?;
    Ok(answer.unwrap_or_else(|_| LOST.to_owned()))
}
