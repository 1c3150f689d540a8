//! Redis: its command line, and how tests share its databases.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, FromRedisValue, RedisResult, cmd};

use crate::installed::server_command;
use crate::with_path;

/// Counts the claims of all processes. A number returns only after all others, so that no test meets what
/// late messages of another one leave.
const CLAIMS: &str = "stocklock-test:claims";
/// How long a claim on a database outlives a test process that was killed.
const CLAIMED_FOR: Duration = Duration::from_hours(1);
/// Upper bound on each answer of a busy server.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// The command line of a server that keeps nothing on disk, or of the server that `configuration`
/// describes.
pub fn command(directory: &Path, port: u16, configuration: Option<&Path>) -> Result<Command> {
    let mut command = server_command("redis-server")?;
    if let Some(file) = configuration {
        command.arg(file);
    } else {
        // More databases than one run has tests, so that no test meets the data of another.
        command
            .args("--databases 2000 --appendonly no --save".split(' '))
            .arg("");
    }
    command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--dir"]);
    command.arg(directory);
    Ok(command)
}

/// Connects to the Redis of a URL. By default, the client waits half a second for an answer, which is
/// too short on a busy machine.
pub async fn connect_to_redis(url: &str) -> RedisResult<MultiplexedConnection> {
    let settings = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(ANSWERS_WITHIN))
        .set_response_timeout(Some(ANSWERS_WITHIN));
    Client::open(url)?
        .get_multiplexed_async_connection_with_config(&settings)
        .await
}

/// A setting of the server.
async fn setting<T: FromRedisValue>(
    connection: &mut MultiplexedConnection,
    name: &str,
) -> RedisResult<T> {
    let (_, value): (String, T) = cmd("CONFIG")
        .arg("GET")
        .arg(name)
        .query_async(connection)
        .await?;
    Ok(value)
}

/// How long the server of a URL has been up, in whole seconds.
pub async fn uptime(url: &str) -> Result<Duration> {
    let mut connection = connect_to_redis(url).await?;
    let info = cmd("INFO").arg("server").to_owned();
    let info: String = info.query_async(&mut connection).await?;
    let mut lines = info.lines();
    let uptime = lines.find_map(|line| line.strip_prefix("uptime_in_seconds:"));
    let uptime = uptime.context("INFO has no uptime")?;
    Ok(Duration::from_secs(uptime.trim().parse()?))
}

/// The version and the data directory of the server of a URL.
pub async fn probe(url: &str) -> Result<(String, String)> {
    let mut connection = connect_to_redis(url).await?;
    // Fails while the server loads its data, unlike INFO and CONFIG.
    let _: String = cmd("PING").query_async(&mut connection).await?;
    let info: String = cmd("INFO")
        .arg("server")
        .query_async(&mut connection)
        .await?;
    let mut lines = info.lines();
    let version = lines.find_map(|line| line.strip_prefix("redis_version:"));
    let version = version.context("INFO has no version")?.to_owned();
    Ok((version, setting(&mut connection, "dir").await?))
}

/// Claims an empty database that no other test uses, and returns its number.
pub async fn claim(server: &str) -> Result<u32> {
    let mut connection = connect_to_redis(server).await?;
    let databases: u32 = setting(&mut connection, "databases").await?;
    for _ in 0..databases {
        let claims: u32 = cmd("INCR").arg(CLAIMS).query_async(&mut connection).await?;
        let number = claims % databases;
        let mut claim = cmd("SET");
        claim.arg(claim_key(number)).arg("").arg("NX");
        claim.arg("EX").arg(CLAIMED_FOR.as_secs());
        let claimed: Option<String> = claim.query_async(&mut connection).await?;
        if claimed.is_none() {
            continue;
        }
        let mut database = connect_to_redis(&with_path(server, &number.to_string())).await?;
        let keys: u64 = cmd("DBSIZE").query_async(&mut database).await?;
        if keys == 0 {
            return Ok(number);
        }
        release(number, &mut connection).await?;
    }
    bail!("all {databases} databases are in use")
}

/// Empties a claimed database, and releases it.
pub async fn empty(server: &str, number: u32) -> Result<()> {
    let mut database = connect_to_redis(&with_path(server, &number.to_string())).await?;
    cmd("FLUSHDB").exec_async(&mut database).await?;
    Ok(release(number, &mut connect_to_redis(server).await?).await?)
}

/// The key that claims a database. It lies in the database that the server's URL names.
fn claim_key(number: u32) -> String {
    format!("stocklock-test:database:{number}")
}

async fn release(number: u32, connection: &mut MultiplexedConnection) -> RedisResult<()> {
    cmd("DEL")
        .arg(claim_key(number))
        .exec_async(connection)
        .await
}
