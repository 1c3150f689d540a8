//! Sends changes of stock, and waits until replicas of Redis have them, if so configured.
//!
//! `WAIT` covers only what its connection has written, and blocks it. So with `WAIT`, each change has a
//! connection for itself, of the pool that `WATCH` uses.

use std::sync::Arc;
use std::time::Duration;

use deadpool::managed::{Object, PoolError};
use redis::aio::MultiplexedConnection;
use redis::{
    ErrorKind, FromRedisValue, Pipeline, RedisError, RedisResult, ScriptInvocation, Value,
};

use super::connection::Connector;
use super::errors::{Failed, is_connection_error, is_redirection};
use super::keys::{Keys, Shard};
use super::nodes::{Nodes, Server};
use super::scripts;
use crate::StoreError;

/// Sends changes.
#[derive(Debug, Clone)]
pub(super) struct Writer {
    pub(super) nodes: Nodes,
    /// How many replicas must have a change before it is answered. 0: it does not wait.
    pub(super) replicas: u32,
}

impl Writer {
    /// Runs a script that changes stock. Its answers mean that the replicas have what it has written. If
    /// it has written nothing, this does not wait: a change that was made before is answered after
    /// [`Writer::read_replicated`].
    ///
    /// # Cancel safety
    /// If the future is dropped, the outcome is unknown.
    pub(super) async fn run(
        &self,
        server: &Server,
        script: &ScriptInvocation<'_>,
    ) -> Result<Vec<Value>, Failed> {
        if self.replicas == 0 {
            return server.shared.run(script).await;
        }
        // Boxed, because the futures of all changes contain it, and it is large.
        Box::pin(self.run_and_wait(server, script)).await
    }

    async fn run_and_wait(
        &self,
        server: &Server,
        script: &ScriptInvocation<'_>,
    ) -> Result<Vec<Value>, Failed> {
        let mut taken = take(server).await?;
        let connection = &mut taken.connection;
        let answers: RedisResult<Vec<Value>> = script.invoke_async(connection).await;
        let answers = match answers {
            Ok(answers) if answers.iter().any(scripts::is_written) => {
                self.wait(connection).await.map(|()| answers)
            }
            Ok(answers) => Ok(answers),
            Err(error) => Err(Failed::Unanswered(error)),
        };
        give_back(server, taken, answers.as_ref().err());
        answers
    }

    /// Waits until the replicas have all that this connection has written.
    pub(super) async fn wait(&self, connection: &mut MultiplexedConnection) -> Result<(), Failed> {
        if self.replicas == 0 {
            return Ok(());
        }
        let mut wait = redis::cmd("WAIT");
        wait.arg(self.replicas).arg(self.limit().as_millis());
        let have: RedisResult<u32> = wait.query_async(connection).await;
        match have {
            Ok(have) if have >= self.replicas => Ok(()),
            Ok(have) => {
                let what = "too few replicas have the change: REDIS_WAIT_REPLICAS";
                let detail = format!("{have} of {} have it", self.replicas);
                let error = RedisError::from((ErrorKind::Client, what, detail));
                Err(Failed::NotReplicated(error))
            }
            Err(error) => Err(Failed::NotReplicated(error)),
        }
    }

    /// Sends commands that read, and waits until the replicas have all that was read. An earlier change
    /// whose replicas did not answer in time may only be answered from these replies: another connection
    /// may lead to another server, which never had the change.
    pub(super) async fn read_replicated<T: FromRedisValue>(
        &self,
        commands: &Pipeline,
        keys: &Keys,
        shard: Shard,
    ) -> Result<T, StoreError> {
        // `WAIT` covers this write, and the replicas get all writes in one order.
        let marker = scripts::MARK.key(keys.marker(shard));
        let mut commands = commands.clone();
        commands.load_script(&scripts::MARK).ignore();
        commands.invoke_script(&marker).ignore();
        let read = |server: Arc<Server>| {
            // Boxed, for the same reason.
            let read = Box::pin(self.read_and_wait(server, commands.clone()));
            async move { read.await.map_err(Failed::writing) }
        };
        self.nodes.on(keys.slot(shard), read).await
    }

    async fn read_and_wait<T: FromRedisValue>(
        &self,
        server: Arc<Server>,
        commands: Pipeline,
    ) -> Result<T, Failed> {
        let mut taken = take(&server).await?;
        let connection = &mut taken.connection;
        let read = match commands.query_async(connection).await {
            Ok(read) => self.wait(connection).await.map(|()| read),
            Err(error) => Err(Failed::Unanswered(error)),
        };
        give_back(&server, taken, read.as_ref().err());
        read
    }

    /// How long `WAIT` waits: less than the connection waits for an answer. Not 0, which is without limit.
    fn limit(&self) -> Duration {
        (self.nodes.limit() / 2).max(Duration::from_millis(1))
    }
}

/// Takes a connection out of the pool.
async fn take(server: &Server) -> Result<Object<Connector>, Failed> {
    let mut taken = server.exclusive.get().await.map_err(|error| match error {
        PoolError::Timeout(_) => Failed::Exhausted,
        PoolError::Backend(error) => Failed::NotSent(error),
        closed => Failed::NotSent(RedisError::from((
            ErrorKind::Io,
            "the connections are closed",
            closed.to_string(),
        ))),
    })?;
    taken.in_use = true;
    Ok(taken)
}

/// Gives it back, or closes it after an error: its server may no longer be the one to use.
fn give_back(server: &Server, mut taken: Object<Connector>, failed: Option<&Failed>) {
    let failed = failed.filter(|failed| !failed.error().is_some_and(is_redirection));
    let Some(failed) = failed else {
        taken.in_use = false;
        return;
    };
    drop(Object::take(taken));
    if failed.error().is_some_and(is_connection_error) {
        server.exclusive.retain(|_, _| false);
    }
}
