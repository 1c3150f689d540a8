//! The counters in Redis that stand in front of the levels.
//!
//! Guarantees:
//! - A counter lives for at most [`LIFE`], by the clock of its server: only [`CounterStore::load`] creates
//!   the key, and nothing makes it live longer. A key with more time left counts as missing, and is
//!   deleted when it is loaded: the clock was set back.
//! - Every call ends within a quarter of the wait limit.
//!
//! The driver may repeat a command whose answer was lost. Then units are taken or given back twice, and the
//! counter is wrong until it expires. SQL decides each sale, so nothing is oversold by that.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use async_trait::async_trait;
use redis::{Cmd, FromRedisValue, Script, cmd, pipe};
use tokio::sync::OnceCell;
use tokio::time::timeout;
use tracing::debug;

use crate::sql::Store;
use stocklock_core::ports::{CounterAnswer, CounterError, CounterMethod, CounterStore, LIFE};
use stocklock_core::stock::{Sku, Warehouse};

mod address;
mod connections;

use address::Address;
use connections::Connections;

/// How to reach the Redis of the counters.
#[derive(Debug, Clone)]
pub struct RedisOptions {
    /// `redis://[user[:password]@]host[:port][/database]`, or
    /// `redis+sentinel://[user[:password]@]host[:port],…/master[/database]`, or
    /// `redis+cluster://[user[:password]@]host[:port],…`, or one of them with `rediss` and TLS.
    pub url: secrecy::SecretString,
    /// How long a deduction may wait in all.
    pub wait_limit: Duration,
    /// The maximum number of connections for `WATCH`.
    pub pool_size: u32,
}

/// The counters of one ledger.
#[derive(Debug)]
pub struct RedisCounters {
    connections: Connections,
    store: Arc<dyn Store>,
    /// Keeps ledgers apart that share a Redis.
    ledger: OnceCell<String>,
    /// How long one call may take.
    limit: Duration,
}

/// Takes units from a counter. Arguments: units, and [`LIFE`] in milliseconds.
static TAKE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local available = redis.call('GET', KEYS[1])
        local life = redis.call('PTTL', KEYS[1])
        if life < 0 or life > tonumber(ARGV[2]) then return {'missing', 0} end
        available = tonumber(available)
        if available < tonumber(ARGV[1]) then return {'refused', available} end
        return {'admitted', redis.call('DECRBY', KEYS[1], ARGV[1])}",
    )
});

/// Creates a counter, unless it exists. Deletes one that would live too long. Arguments: units, when it
/// expires in milliseconds since 1970, and [`LIFE`] in milliseconds.
static LOAD: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local life = redis.call('PTTL', KEYS[1])
        if life == -1 or life > tonumber(ARGV[3]) then redis.call('DEL', KEYS[1]) end
        redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PXAT', ARGV[2])",
    )
});

/// Gives units back to a counter that exists.
static GIVE_BACK: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('INCRBY', KEYS[1], ARGV[1]) end",
    )
});

/// The clock of the server that has the key: seconds and microseconds.
static TIME: LazyLock<Script> = LazyLock::new(|| Script::new("return redis.call('TIME')"));

impl RedisCounters {
    /// Opens nothing until the first call.
    ///
    /// # Errors
    /// What is wrong with the URL, without its password.
    pub fn open(options: &RedisOptions, store: Arc<dyn Store>) -> Result<Self, &'static str> {
        let limit = options.wait_limit / 4;
        let address = Address::parse(&options.url).ok_or("not a URL of Redis")?;
        Ok(Self {
            connections: Connections::new(address, options.pool_size, limit / 2),
            store,
            ledger: OnceCell::new(),
            limit,
        })
    }

    /// Whether the counters are in a cluster, which has no exclusive connections.
    #[must_use]
    pub fn is_cluster(&self) -> bool {
        self.connections.is_cluster()
    }

    /// Makes one round trip.
    ///
    /// # Errors
    /// Redis does not answer in time.
    pub async fn ping(&self) -> Result<(), CounterError> {
        let ping = pipe().cmd("PING").ignore().clone();
        self.bounded(self.connections.query(&ping)).await
    }

    /// `stock:{<ledger id>/<sku>}/<warehouse>`: all counters of a SKU are on one node of a cluster.
    async fn key(&self, sku: &Sku, warehouse: &Warehouse) -> Result<String, CounterError> {
        let ledger = self.ledger.get_or_try_init(|| self.store.ledger_id()).await;
        let ledger = ledger.map_err(|error| CounterError::Unavailable(error.into()))?;
        Ok(format!("stock:{{{ledger}/{sku}}}/{warehouse}"))
    }

    async fn bounded<T>(
        &self,
        call: impl Future<Output = Result<T, CounterError>> + Send,
    ) -> Result<T, CounterError> {
        let used = self.connections.current();
        let answer = timeout(self.limit, call).await;
        answer.unwrap_or_else(|_elapsed| {
            // The server may be frozen, and another one may have replaced it.
            self.connections.forget(&used);
            Err(CounterError::Unavailable("no answer in time".into()))
        })
    }

    async fn script<T: FromRedisValue + Send>(
        &self,
        script: &Script,
        key: &str,
        arguments: &[i64],
    ) -> Result<T, CounterError> {
        let mut invocation = script.key(key);
        for argument in arguments {
            invocation.arg(*argument);
        }
        self.connections.invoke(&invocation).await
    }

    async fn take_by_script(&self, key: &str, units: i64) -> Result<CounterAnswer, CounterError> {
        let taken: (String, i64) = self.script(&TAKE, key, &[units, life()]).await?;
        Ok(match (&*taken.0, taken.1) {
            ("admitted", left) => CounterAnswer::Admitted { left },
            ("refused", available) => CounterAnswer::Refused { available },
            _ => CounterAnswer::Missing,
        })
    }

    async fn get_and_set(&self, key: &str, units: i64) -> Result<CounterAnswer, CounterError> {
        let read = self.connections.query(pipe().get(key).pttl(key)).await?;
        let left = match decide(read, units) {
            Ok(left) => left,
            Err(answer) => return Ok(answer),
        };
        let write = pipe().add_command(set(key, left)).ignore().clone();
        let () = self.connections.query(&write).await?;
        Ok(CounterAnswer::Admitted { left })
    }

    /// The pool ends the `WATCH` before it hands the connection out again.
    async fn watch(&self, key: &str, units: i64) -> Result<CounterAnswer, CounterError> {
        let mut exclusive = self.connections.exclusive().await?;
        let mut read = pipe();
        read.cmd("WATCH").arg(key).ignore().get(key).pttl(key);
        let left = match decide(exclusive.query(&read).await?, units) {
            Ok(left) => left,
            Err(answer) => return Ok(answer),
        };
        let mut write = pipe();
        write.atomic().add_command(set(key, left));
        let written: Option<(Option<String>,)> = exclusive.query(&write).await?;
        Ok(match written {
            Some(_) => CounterAnswer::Admitted { left },
            None => CounterAnswer::Conflict,
        })
    }
}

/// The units of a counter, and for how many milliseconds it lives on.
type Read = (Option<i64>, i64);

/// What is left after `units` are taken, or the answer if they are not.
fn decide((available, life_left): Read, units: i64) -> Result<i64, CounterAnswer> {
    match available {
        Some(available) if (0..=life()).contains(&life_left) => {
            if available < units {
                return Err(CounterAnswer::Refused { available });
            }
            Ok(available - units)
        }
        _ => Err(CounterAnswer::Missing),
    }
}

/// Changes a counter that exists. It expires when it would have.
fn set(key: &str, units: i64) -> Cmd {
    let mut set = cmd("SET");
    set.arg(key).arg(units).arg("XX").arg("KEEPTTL");
    set
}

/// [`LIFE`] in milliseconds.
fn life() -> i64 {
    i64::try_from(LIFE.as_millis()).expect("half a second")
}

#[async_trait]
impl CounterStore for RedisCounters {
    async fn take(
        &self,
        sku: &Sku,
        warehouse: &Warehouse,
        units: i64,
        method: CounterMethod,
    ) -> Result<CounterAnswer, CounterError> {
        self.bounded(async {
            let key = self.key(sku, warehouse).await?;
            match method {
                CounterMethod::GetSet => self.get_and_set(&key, units).await,
                CounterMethod::Watch => self.watch(&key, units).await,
                CounterMethod::Script => self.take_by_script(&key, units).await,
            }
        })
        .await
    }

    async fn now(&self, sku: &Sku, warehouse: &Warehouse) -> Result<i64, CounterError> {
        self.bounded(async {
            let key = self.key(sku, warehouse).await?;
            let (seconds, micros): (i64, i64) = self.script(&TIME, &key, &[]).await?;
            Ok(seconds * 1000 + micros / 1000)
        })
        .await
    }

    async fn load(
        &self,
        sku: &Sku,
        warehouse: &Warehouse,
        available: i64,
        read_at: i64,
    ) -> Result<(), CounterError> {
        self.bounded(async {
            let key = self.key(sku, warehouse).await?;
            self.script(&LOAD, &key, &[available, read_at + life(), life()])
                .await
        })
        .await
    }

    async fn give_back(&self, sku: &Sku, warehouse: &Warehouse, units: i64) {
        let given = self.bounded(async {
            let key = self.key(sku, warehouse).await?;
            self.script::<()>(&GIVE_BACK, &key, &[units]).await
        });
        if let Err(error) = given.await {
            debug!(%sku, ?error, "units stay hidden until the counter expires");
        }
    }

    async fn delete(&self, sku: &Sku, warehouse: &Warehouse) {
        let deleted = self.bounded(async {
            let key = self.key(sku, warehouse).await?;
            self.connections.query::<()>(pipe().del(key).ignore()).await
        });
        if let Err(error) = deleted.await {
            debug!(%sku, ?error, "a counter that may be wrong stays until it expires");
        }
    }
}
