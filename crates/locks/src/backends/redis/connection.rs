//! One multiplexed connection, opened on demand and again after it was lost.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, FromRedisValue, RedisError, RedisResult,
    ServerErrorKind, Value,
};

use tokio::time::{Instant, timeout};

use super::address::Address;
use crate::shared::error::BackendError;
use crate::shared::link::Link;

/// How long a connection is used at least before it is replaced because its server refuses writes. The
/// address may lead to another server after a failover. But a server that stays read-only must not get a new
/// connection for each refusal.
const REPLACE_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Connection {
    address: Address,
    limits: AsyncConnectionConfig,
    /// How long it may take to find the server and to connect to it.
    timeout: Duration,
    link: Link<Arc<Opened>>,
}

struct Opened {
    connection: MultiplexedConnection,
    at: Instant,
}

impl Connection {
    pub(super) fn new(address: Address, connect: Duration, response: Duration) -> Self {
        Self {
            address,
            timeout: connect + response,
            // The default of the client library is 500 ms.
            limits: AsyncConnectionConfig::new()
                .set_connection_timeout(Some(connect))
                .set_response_timeout(Some(response)),
            link: Link::default(),
        }
    }

    pub(super) async fn connected(&self) -> Result<(), BackendError> {
        self.current().await.map(drop)
    }

    pub(super) fn open(&self) {
        self.link.open();
    }

    /// Closes the connection until [`open`](Self::open).
    pub(super) fn close(&self) {
        drop(self.link.close());
    }

    /// The outer error means that the server has executed nothing: there is no connection, or the server
    /// refuses writes and the next request uses a new connection. The inner result is the server's answer.
    ///
    /// With `asking`, a node of a cluster executes the command although the slot still moves to it.
    pub(super) async fn query<T: FromRedisValue>(
        &self,
        command: &Cmd,
        asking: bool,
    ) -> Result<RedisResult<T>, BackendError> {
        let current = self.current().await;
        let used = current.map_err(BackendError::refused_for_now)?;
        let mut connection = used.connection.clone();
        let answer = if asking {
            ask(command, &mut connection).await
        } else {
            command.query_async(&mut connection).await
        };
        match answer {
            Err(error) if needs_new_connection(&error) => {
                let is_refusal = error.code().is_some();
                // Another request may have replaced it already.
                let is_it = |current: &Arc<_>| Arc::ptr_eq(current, &used);
                self.link.forget(|current| {
                    let is_old = current.at.elapsed() >= REPLACE_AFTER;
                    is_it(current) && (is_old || !is_refusal)
                });
                let is_replaced = !self.link.current().is_some_and(|current| is_it(&current));
                if is_refusal && is_replaced {
                    return Err(backend_error(error).refused_for_now());
                }
                Ok(Err(error))
            }
            answer => Ok(answer),
        }
    }

    async fn current(&self) -> Result<Arc<Opened>, BackendError> {
        self.link.get(|_| true, || self.connect()).await
    }

    fn connect(&self) -> impl Future<Output = Result<Arc<Opened>, BackendError>> + Send + 'static {
        let (address, limits, limit) = (self.address.clone(), self.limits.clone(), self.timeout);
        async move {
            let connected = timeout(limit, address.connect(&limits)).await;
            let connected = connected.unwrap_or_else(|_| {
                let why = "no connection was opened in time";
                Err(RedisError::from((ErrorKind::Io, why)))
            });
            Ok(Arc::new(Opened {
                connection: connected.map_err(backend_error)?,
                at: Instant::now(),
            }))
        }
    }
}

/// Sends a command after `ASKING`, which applies to the next command of the connection.
async fn ask<T: FromRedisValue>(
    command: &Cmd,
    connection: &mut MultiplexedConnection,
) -> RedisResult<T> {
    let mut pipe = redis::pipe();
    pipe.cmd("ASKING").ignore().add_command(command.clone());
    // The error of one command would hide its code.
    let answers: Vec<Value> = pipe.ignore_errors().query_async(connection).await?;
    let answer = answers.into_iter().next().unwrap_or(Value::Nil);
    Ok(redis::from_redis_value(answer.extract_error()?)?)
}

/// Returns true if a new connection may help: this one is broken or silent, or its server is now a
/// replica.
pub(super) fn needs_new_connection(error: &RedisError) -> bool {
    error.is_unrecoverable_error()
        || error.is_io_error()
        || matches!(
            error.kind(),
            ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown)
        )
}

/// Part of the server's answer to a client that sent no password. The answer usually has the code
/// `NOAUTH`, but an oversized command is refused with this text only.
const UNAUTHENTICATED: &str = "unauthenticated";

/// The codes with which a server has executed nothing, unless a script was stopped. Another one may be of a
/// proxy that has passed the command on.
const REFUSALS: [&str; 17] = [
    "ASK",
    "BUSY",
    "CLUSTERDOWN",
    "CROSSSLOT",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "MOVED",
    "NOAUTH",
    "NOPERM",
    "NOREPLICAS",
    "NOSCRIPT",
    "OOM",
    "READONLY",
    "TRYAGAIN",
    "WRONGPASS",
    "WRONGTYPE",
];

/// Classifies an error. An answer with one of these codes is a refusal. Those such as `READONLY`, `MISCONF`,
/// `CLUSTERDOWN`, `OOM` and `LOADING` are transient. Errors that an operator must fix are permanent.
pub(super) fn backend_error(error: RedisError) -> BackendError {
    let wants_password = error
        .detail()
        .is_some_and(|detail| detail.contains(UNAUTHENTICATED));
    let is_permanent = wants_password
        || matches!(
            error.kind(),
            ErrorKind::AuthenticationFailed
                | ErrorKind::InvalidClientConfig
                | ErrorKind::RESP3NotSupported
                | ErrorKind::Server(ServerErrorKind::NoPerm | ServerErrorKind::CrossSlot)
        )
        || matches!(
            error.code(),
            Some("NOAUTH" | "WRONGPASS" | "WRONGTYPE" | "NOPERM")
        );
    // A script may have changed something before its user lacked the permission for a command of it.
    let was_stopped = error.code() == Some("NOPERM")
        && error
            .detail()
            .is_some_and(|detail| detail.contains("script:"));
    let is_refusal = wants_password
        || error
            .code()
            .is_some_and(|code| REFUSALS.contains(&code) && !was_stopped);
    let cause: Box<dyn Error + Send + Sync> = match (error.code(), error.detail()) {
        (_, Some(detail)) if wants_password => format!("NOAUTH {detail}").into(),
        // Keep the server's own error code. Operators search for it, and the library rewrites it.
        (Some(code), Some(detail)) => format!("{code} {detail}").into(),
        _ => error.into(),
    };
    let error = if is_permanent {
        BackendError::permanent(cause)
    } else {
        BackendError::transient(cause)
    };
    if is_refusal { error.refused() } else { error }
}

#[cfg(test)]
mod tests {
    use redis::{ErrorKind, RedisError, ServerErrorKind, make_extension_error};

    use super::backend_error;

    #[test]
    fn only_errors_that_need_an_operator_are_permanent() {
        for (kind, permanent) in [
            (ErrorKind::Io, false),
            (ErrorKind::Server(ServerErrorKind::ReadOnly), false),
            (ErrorKind::Server(ServerErrorKind::BusyLoading), false),
            (ErrorKind::Server(ServerErrorKind::ClusterDown), false),
            (ErrorKind::Server(ServerErrorKind::NoPerm), true),
            (ErrorKind::AuthenticationFailed, true),
        ] {
            let error = backend_error(RedisError::from((kind, "refused")));
            assert_eq!(error.is_permanent(), permanent, "{kind:?}");
            let is_refusal = matches!(kind, ErrorKind::Server(_));
            assert_eq!(error.is_refusal(), is_refusal, "{kind:?}");
        }
    }

    /// The driver has a kind of its own for the first one only.
    #[test]
    fn transient_refusal_shows_the_code_of_the_server() {
        let loading = ErrorKind::Server(ServerErrorKind::BusyLoading);
        let loading = RedisError::from((loading, "busy", "its data".to_owned()));
        let snapshots = make_extension_error("MISCONF".to_owned(), Some("disk".to_owned()));
        for (error, expected) in [(loading, "LOADING its data"), (snapshots, "MISCONF disk")] {
            let error = backend_error(error);
            assert!(error.is_refusal() && !error.is_permanent(), "{error}");
            assert_eq!(error.to_string(), expected);
        }
    }
}
