//! One multiplexed connection, made when it is needed and again after it was lost.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, FromRedisValue, RedisError, RedisResult,
    ServerErrorKind,
};
use tokio::sync::Mutex;

use super::scripts::Script;
use crate::error::BackendError;

#[derive(Debug)]
pub(super) struct Connection {
    client: Client,
    limits: AsyncConnectionConfig,
    current: Arc<Mutex<Current>>,
}

#[derive(Debug, Default)]
struct Current {
    connection: Option<MultiplexedConnection>,
    /// Counts connections, so that a late failure of an old one does not end a new one.
    generation: u64,
}

impl Connection {
    pub(super) fn new(client: Client, connect: Duration, response: Duration) -> Self {
        Self {
            client,
            // Explicitly: the client's own default gives up on an answer after 500 ms.
            limits: AsyncConnectionConfig::new()
                .set_connection_timeout(Some(connect))
                .set_response_timeout(Some(response)),
            current: Arc::default(),
        }
    }

    /// Runs a command.
    pub(super) async fn run<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, BackendError> {
        self.query(command).await.map_err(backend_error)
    }

    /// Runs a script by its hash, or by its text on a server that does not know it yet.
    pub(super) async fn script<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &[String],
        arguments: &[String],
    ) -> Result<T, BackendError> {
        let command = |name: &str, script: &str| {
            let mut command = redis::cmd(name);
            command.arg(script).arg(keys.len()).arg(keys).arg(arguments);
            command
        };
        match self.query(&command("EVALSHA", &script.hash)).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.run(&command("EVAL", script.code)).await
            }
            answer => answer.map_err(backend_error),
        }
    }

    /// Ends the connection; the next command makes another one.
    pub(super) async fn close(&self) {
        self.current.lock().await.connection = None;
    }

    async fn query<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        let (mut connection, generation) = self.get().await?;
        let answer = command.query_async(&mut connection).await;
        if answer.as_ref().is_err_and(is_of_the_connection) {
            let mut current = self.current.lock().await;
            if current.generation == generation {
                current.connection = None;
            }
        }
        answer
    }

    async fn get(&self) -> RedisResult<(MultiplexedConnection, u64)> {
        if let Some(current) = self.current.lock().await.get() {
            return Ok(current);
        }
        let (client, limits) = (self.client.clone(), self.limits.clone());
        let current = Arc::clone(&self.current);
        // In a task of its own: who asks may leave before the connection is there, and the next one
        // finds it.
        let connecting = tokio::spawn(async move {
            let mut current = current.lock().await;
            if current.connection.is_none() {
                let connection = client.get_multiplexed_async_connection_with_config(&limits);
                current.connection = Some(connection.await?);
                current.generation += 1;
            }
            Ok(current.get().expect("it was just made"))
        });
        connecting.await.unwrap_or_else(|_| {
            let ended = (ErrorKind::Io, "the runtime has ended");
            Err(RedisError::from(ended))
        })
    }
}

impl Current {
    fn get(&self) -> Option<(MultiplexedConnection, u64)> {
        Some((self.connection.clone()?, self.generation))
    }
}

/// Whether another connection may fare better: this one is broken, silent, or leads to a server
/// that is a replica now.
fn is_of_the_connection(error: &RedisError) -> bool {
    error.is_unrecoverable_error()
        || error.is_io_error()
        || matches!(
            error.kind(),
            ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown)
        )
}

/// The server's refusals (`READONLY`, `MISCONF`, `CLUSTERDOWN`, `OOM`, `LOADING` …) pass, except
/// those that somebody has to mend.
pub(super) fn backend_error(error: RedisError) -> BackendError {
    let is_permanent = matches!(
        error.kind(),
        ErrorKind::AuthenticationFailed
            | ErrorKind::InvalidClientConfig
            | ErrorKind::RESP3NotSupported
            | ErrorKind::Server(ServerErrorKind::NoPerm | ServerErrorKind::CrossSlot)
    ) || matches!(
        error.code(),
        Some("NOAUTH" | "WRONGPASS" | "WRONGTYPE" | "NOPERM")
    ) || error
        .detail()
        // Said, without a code of its own, to who sends ten arguments before a password.
        .is_some_and(|detail| detail.contains("unauthenticated"));
    if is_permanent {
        BackendError::permanent(error)
    } else {
        BackendError::transient(error)
    }
}

#[cfg(test)]
mod tests {
    use redis::{ErrorKind, RedisError, ServerErrorKind};

    use super::backend_error;

    #[test]
    fn only_what_somebody_has_to_mend_is_permanent() {
        for (kind, permanent) in [
            (ErrorKind::Io, false),
            (ErrorKind::Server(ServerErrorKind::ReadOnly), false),
            (ErrorKind::Server(ServerErrorKind::BusyLoading), false),
            (ErrorKind::Server(ServerErrorKind::ClusterDown), false),
            (ErrorKind::Server(ServerErrorKind::NoPerm), true),
            (ErrorKind::AuthenticationFailed, true),
        ] {
            let error = backend_error(RedisError::from((kind, "said so")));
            assert_eq!(error.is_permanent(), permanent, "{kind:?}");
        }
    }
}
