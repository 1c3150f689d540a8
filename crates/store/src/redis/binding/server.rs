//! The key of the binding in Redis: its id and its beat.

use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, RedisResult};

use super::rules::Found;
use crate::StoreError;
use crate::redis::errors::{bad_answer, reading};
use crate::redis::keys::{Keys, Shard};
use crate::redis::scripts;
use crate::sql::BoundRedis;

/// How many keys one `SCAN` looks at.
const KEYS_PER_SCAN: u32 = 1_000;

/// Two sections of `INFO`, the key, and the time in seconds and microseconds.
type Read = (String, String, Option<String>, (i64, i64));

/// Reads the run of the server and the key. `database`: the number of the database in this Redis.
pub(super) async fn find(
    connection: &mut MultiplexedConnection,
    keys: &Keys,
    database: i64,
) -> Result<Found, StoreError> {
    let mut commands = redis::pipe();
    commands.cmd("INFO").arg("server");
    commands.cmd("INFO").arg("replication");
    commands.get(keys.binding()).cmd("TIME");
    let read: RedisResult<Read> = commands.query_async(connection).await;
    let (server, replication, key, (seconds, micros)) = read.map_err(reading)?;
    let run_id = run_id(&server).ok_or_else(|| bad_answer(&server))?;
    // A server that was a replica for some time may have lost writes in the same run.
    let history = history(&replication).ok_or_else(|| bad_answer(&replication))?;
    let id_and_beat = key.map(|key| parse(&key)).transpose()?;
    let (id, beat) = id_and_beat.map_or((None, 0), |(id, beat)| (Some(id), beat));
    Ok(Found {
        run_id: format!("{run_id}-{history}/{database}"),
        is_primary: field(&replication, "role") == Some("master"),
        id,
        beat,
        micros: seconds * 1_000_000 + micros,
    })
}

/// How many of the 40 hexadecimal digits of an id are compared.
const DIGITS: usize = 20;

fn run_id(server: &str) -> Option<&str> {
    field(server, "run_id")?.get(..DIGITS)
}

/// The id of the replication that the server had taken part in before it became a primary. Zeros if it
/// was never a replica.
fn history(replication: &str) -> Option<&str> {
    field(replication, "master_replid2")?.get(..DIGITS)
}

/// A field of the answer to `INFO`.
pub(in crate::redis) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = info.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

fn parse(key: &str) -> Result<(String, i64), StoreError> {
    let (id, beat) = key.split_once(' ').ok_or_else(|| bad_answer(key))?;
    let beat = beat.parse().map_err(|_| bad_answer(key))?;
    Ok((id.to_owned(), beat))
}

/// Whether a key has a beat. Without one, a late message has written it, and nothing is loaded yet.
pub(in crate::redis) fn has_beat(key: &str) -> bool {
    parse(key).is_ok_and(|(_, beat)| beat != 0)
}

/// Writes the key, unless it has changed since it was `found`. `None` replaces any value.
pub(super) async fn write(
    connection: &mut MultiplexedConnection,
    keys: &Keys,
    bound: &BoundRedis,
    found: Option<&Found>,
) -> Result<(), StoreError> {
    let expected = match found {
        None => "*".to_owned(),
        Some(Found { id: None, .. }) => String::new(),
        Some(Found {
            id: Some(id), beat, ..
        }) => format_key(id, *beat),
    };
    let mut script = scripts::BIND.key(keys.binding());
    script.arg(format_key(&bound.id, bound.beat)).arg(expected);
    // `reading` is correct here because the script is safe to repeat.
    let written: RedisResult<bool> = script.invoke_async(connection).await;
    written.map(drop).map_err(reading)
}

fn format_key(id: &str, beat: i64) -> String {
    format!("{id} {beat}")
}

/// Ends the loads of levels that are under way. They read their mirrors again, because entries may have been
/// applied to SQL since, which this Redis does not have.
///
/// Without this, a copy of the data would accept them: it has the same field `since`. If several replicas do
/// it, loads are only repeated.
pub(super) async fn end_loads(
    connection: &mut MultiplexedConnection,
    keys: &Keys,
) -> Result<(), StoreError> {
    let mut commands = redis::pipe();
    for shard in Shard::all() {
        commands.hdel(keys.counters(shard), "since").ignore();
    }
    // `reading` is correct here because the commands are safe to repeat.
    commands.query_async(connection).await.map_err(reading)
}

/// Deletes the keys that match the pattern.
pub(in crate::redis) async fn delete_all(
    connection: &mut MultiplexedConnection,
    pattern: &str,
) -> Result<(), StoreError> {
    let mut cursor = 0_u64;
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(pattern);
        scan.arg("COUNT").arg(KEYS_PER_SCAN);
        let (next, keys): (u64, Vec<String>) = query(connection, &scan).await?;
        if !keys.is_empty() {
            query::<u64>(connection, &redis::Cmd::unlink(keys)).await?;
        }
        if next == 0 {
            return Ok(());
        }
        cursor = next;
    }
}

/// Sends a command that is safe to repeat.
async fn query<T: FromRedisValue>(
    connection: &mut MultiplexedConnection,
    command: &redis::Cmd,
) -> Result<T, StoreError> {
    command.query_async(connection).await.map_err(reading)
}
