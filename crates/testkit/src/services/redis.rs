//! Redis: how it is started, and a database of a test's own on the one that the tests share.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use async_trait::async_trait;
use redis::{Client, Cmd, Connection, FromRedisValue, RedisResult};
use url::Url;

use super::program::{Program, find};
use super::shared::{Cell, shared};
use super::supervisor::{Supervisor, create_directory, unprivileged};

/// The databases of a server of ours: more than a run has tests, so that none is used twice and
/// nothing that a test left running meets another test's data.
const DATABASES: u32 = 2_000;
/// How long a claim on a database outlives a test process that was killed.
const CLAIMED_FOR: Duration = Duration::from_hours(1);
/// How long the shared server may take for an answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// A Redis server, with what is said to it besides what it needs.
#[derive(Debug, Clone, Default)]
pub(super) struct Redis {
    arguments: Vec<OsString>,
}

impl Redis {
    pub(super) fn with(arguments: &[&str]) -> Self {
        Self {
            arguments: arguments.iter().map(OsString::from).collect(),
        }
    }
}

#[async_trait]
impl Program for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn variable(&self) -> &'static str {
        "TEST_REDIS_URL"
    }

    fn url(&self, port: u16) -> String {
        format!("redis://127.0.0.1:{port}/0")
    }

    async fn prepare(&self, port: u16) -> Result<Supervisor> {
        let directory = create_directory(self.name())?;
        let mut line = unprivileged(find("redis-server")?);
        let settings =
            format!("--port {port} --bind 127.0.0.1 --databases {DATABASES} --appendonly no --dir");
        line.extend(settings.split(' ').map(OsString::from));
        line.extend([directory.clone().into(), "--save".into(), "".into()]);
        line.extend(self.arguments.iter().cloned());
        Supervisor::new(directory, "KILL", &line)
    }

    async fn version(&self, url: &str) -> Result<String> {
        let mut command = redis::cmd("INFO");
        let info: String = ask(url, command.arg("server")).await?;
        let version = info
            .lines()
            .find_map(|line| line.strip_prefix("redis_version:"));
        Ok(version.context("INFO without a version")?.to_owned())
    }

    async fn data_directory(&self, url: &str) -> Result<PathBuf> {
        // Refused while it still loads its data, as CONFIG is not.
        let _: String = ask(url, &redis::cmd("PING")).await?;
        let mut command = redis::cmd("CONFIG");
        let (_, directory): (String, String) = ask(url, command.arg("GET").arg("dir")).await?;
        Ok(directory.into())
    }
}

/// Asks on a connection of its own.
async fn ask<T: FromRedisValue>(url: &str, command: &Cmd) -> RedisResult<T> {
    let client = Client::open(url)?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    command.query_async(&mut connection).await
}

/// The URL of the Redis that the tests share.
///
/// # Panics
/// When there is none, and none can be started.
async fn redis() -> &'static str {
    static SHARED: Cell = Cell::const_new();
    &shared(&SHARED, Redis::default()).await.url
}

/// A database of one test's own, empty at first; it is emptied when this is dropped.
///
/// The server is not the test's own: what concerns all of it (`FLUSHALL`, `SCRIPT FLUSH`, channels,
/// settings) wants [`super::PrivateServer::redis`].
#[derive(Debug)]
pub struct TestRedis {
    /// Where it is, as `REDIS_URL` would say.
    pub url: String,
    shared: &'static str,
    number: u32,
}

/// Finds an empty database for one test.
///
/// # Panics
/// When that cannot be done.
pub async fn fresh_redis() -> TestRedis {
    let shared = redis().await;
    let claimed = tokio::task::spawn_blocking(|| TestRedis::claim(shared));
    let claimed = claimed.await.expect("no panic");
    claimed.unwrap_or_else(|error| panic!("no database on the shared redis: {error:#}"))
}

impl TestRedis {
    /// Takes the next database that is neither claimed nor in use, going round.
    fn claim(shared: &'static str) -> Result<Self> {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let mut connection = connect(shared)?;
        let mut command = redis::cmd("CONFIG");
        let databases = command.arg("GET").arg("databases");
        let (_, databases): (String, u32) = databases.query(&mut connection)?;
        for _ in 0..databases {
            let number = (LAST.fetch_add(1, Ordering::SeqCst) + 1) % databases;
            let mut claim = redis::cmd("SET");
            claim.arg(claim_on(number)).arg("").arg("NX");
            claim.arg("EX").arg(CLAIMED_FOR.as_secs());
            let claimed: Option<String> = claim.query(&mut connection)?;
            if claimed.is_none() {
                continue;
            }
            let mut url = Url::parse(shared)?;
            url.set_path(&number.to_string());
            let url = url.to_string();
            let keys: u64 = redis::cmd("DBSIZE").query(&mut connect(&url)?)?;
            if keys == 0 {
                return Ok(Self {
                    url,
                    shared,
                    number,
                });
            }
            release(number, &mut connection)?;
        }
        bail!("all {databases} are in use")
    }

    fn empty(&self) -> Result<()> {
        redis::cmd("FLUSHDB").exec(&mut connect(&self.url)?)?;
        Ok(release(self.number, &mut connect(self.shared)?)?)
    }
}

impl Drop for TestRedis {
    fn drop(&mut self) {
        if let Err(error) = self.empty() {
            eprintln!("a test's Redis database stays behind: {error:#}");
        }
    }
}

/// The key, in the database that the shared server's URL names, by which a test has one for itself.
fn claim_on(number: u32) -> String {
    format!("stocklock-test:database:{number}")
}

fn release(number: u32, connection: &mut Connection) -> RedisResult<()> {
    redis::cmd("DEL").arg(claim_on(number)).exec(connection)
}

/// A connection without a runtime, for dropping is not asynchronous.
fn connect(url: &str) -> Result<Connection> {
    let connection = Client::open(url)?.get_connection_with_timeout(ANSWERS_WITHIN)?;
    connection.set_read_timeout(Some(ANSWERS_WITHIN))?;
    connection.set_write_timeout(Some(ANSWERS_WITHIN))?;
    Ok(connection)
}
