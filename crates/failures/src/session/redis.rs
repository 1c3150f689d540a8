//! A connection to Redis that one actor uses, or that several share on purpose.

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisError, RedisResult, Value};

use super::{Address, LOST};
use crate::redis_words::words;

/// A connection to Redis.
pub(crate) struct RedisSession {
    connection: MultiplexedConnection,
    prefix: String,
}

impl RedisSession {
    pub(super) async fn open(address: &Address) -> RedisResult<Self> {
        // A command may wait for as long as the story wants.
        let settings = AsyncConnectionConfig::new().set_response_timeout(None);
        let client = Client::open(address.url.as_str())?;
        let connection = client.get_multiplexed_async_connection_with_config(&settings);
        Ok(Self {
            connection: connection.await?,
            prefix: address.prefix.clone(),
        })
    }

    pub(super) async fn run(&mut self, command: &str) -> String {
        let mut words = words(command).into_iter();
        let mut sent = redis::cmd(&words.next().unwrap_or_default());
        for word in words {
            sent.arg(match word.strip_prefix('~') {
                Some(key) => format!("{}{key}", self.prefix),
                None => word,
            });
        }
        let answer: RedisResult<Value> = sent.query_async(&mut self.connection).await;
        let text = answer.map_or_else(|error| error_text(&error), |value| text(&value));
        text.replace(&self.prefix, "")
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::Nil => "nil".to_owned(),
        Value::Int(number) => number.to_string(),
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::Array(values) | Value::Set(values) => {
            let values: Vec<_> = values.iter().map(text).collect();
            format!("[{}]", values.join(", "))
        }
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => text.clone(),
        Value::Okay => "ok".to_owned(),
        Value::Boolean(value) => value.to_string(),
        Value::Double(number) => number.to_string(),
        Value::ServerError(error) => {
            format!("error {}: {}", error.code(), error.details().unwrap_or(""))
        }
        other => format!("{other:?}"),
    }
}

fn error_text(error: &RedisError) -> String {
    match error.code() {
        Some(code) => format!("error {code}: {}", error.detail().unwrap_or_default()),
        None if error.is_io_error() || error.is_connection_dropped() => LOST.to_owned(),
        None => format!("error: {error}"),
    }
}
