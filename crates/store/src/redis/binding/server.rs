//! The keys of the binding in Redis: its id and its beat, and in each shard its id.
//!
//! Each shard has a mark with the id. The marks are written before the key, and again before the key has a
//! beat. If the mark of a shard is missing, has another id, or has 0 although the key has a beat, Redis has lost the
//! keys of the shard: by `FLUSHALL` on one node of a cluster, for example.

use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, Pipeline, RedisResult, Value, from_redis_value};
use sha2::{Digest, Sha256};
use stocklock_core::ports::Server;

use super::rules::Found;
use crate::StoreError;
use crate::redis::cluster::{Node, Slot, moving_slots};
use crate::redis::errors::{bad_answer, reading};
use crate::redis::keys::{Keys, Shard};
use crate::redis::nodes::{Connections, of_shards};
use crate::redis::scripts;
use crate::sql::BoundRedis;

/// How many keys one `SCAN` looks at.
const KEYS_PER_SCAN: u32 = 1_000;

/// What a node says of itself.
struct NodeState {
    /// Its run, and its replication history.
    run: String,
    is_primary: bool,
}

/// The commands whose answers [`parse_state`] parses.
fn ask_state(commands: &mut Pipeline) {
    commands.cmd("INFO").arg("server");
    commands.cmd("INFO").arg("replication");
}

fn parse_state(server: &str, replication: &str) -> Result<NodeState, StoreError> {
    let run_id = run_id(server).ok_or_else(|| bad_answer(server))?;
    // A server that was a replica for some time may have lost writes in the same run.
    let history = history(replication).ok_or_else(|| bad_answer(replication))?;
    Ok(NodeState {
        run: format!("{run_id}-{history}"),
        is_primary: field(replication, "role") == Some("master"),
    })
}

/// The run and the replication history of the node of a cluster.
pub(super) async fn run_of(connection: &mut MultiplexedConnection) -> Result<String, StoreError> {
    let mut commands = redis::pipe();
    ask_state(&mut commands);
    let read: RedisResult<(String, String)> = commands.query_async(connection).await;
    let (server, replication) = read.map_err(reading)?;
    parse_state(&server, &replication).map(|state| state.run)
}

/// Reads the runs of the servers and the key. `database`: the number of the database in this Redis.
pub(super) async fn find(
    connections: &Connections,
    keys: &Keys,
    database: i64,
) -> Result<Found, StoreError> {
    let (mut state, mut key) = (redis::pipe(), redis::pipe());
    ask_state(&mut state);
    key.get(keys.binding()).cmd("TIME");
    // In one message to the server that has the key.
    let states = connections
        .one_slot_each()
        .map(|slot| (slot, state.clone()));
    let mut commands: Vec<_> = states.collect();
    commands.push((keys.slot(Keys::BINDING), key));
    let mut answers: Vec<Value> = connections.query_each(None, &commands).await?;
    let key = answers.pop().unwrap_or(Value::Nil);
    let states = answers.into_iter().map(|answer| {
        let (server, replication): (String, String) = parsed(answer)?;
        parse_state(&server, &replication)
    });
    let states = states.collect::<Result<Vec<_>, _>>()?;
    let (key, (seconds, micros)): (Option<String>, (i64, i64)) = parsed(key)?;
    let mut runs: Vec<String> = states.iter().map(|state| state.run.clone()).collect();
    runs.sort();
    let is_single = connections.all().any(|(node, _)| *node == Node::Single);
    let run_id = if is_single {
        format!("{}/{database}", runs[0])
    } else {
        // Which of them has which slot does not matter: a slot that moves loses nothing.
        let digest = Sha256::digest(runs.join(" "));
        let (first, _) = digest.split_first_chunk().expect("it has 32 bytes");
        format!("cluster-{:032x}", u128::from_be_bytes(*first))
    };
    let id_and_beat = key.as_deref().map(parse).transpose()?;
    let (id, beat) = id_and_beat.map_or((None, 0), |(id, beat)| (Some(id), beat));
    Ok(Found {
        run_id,
        runs,
        is_primary: states.iter().all(|state| state.is_primary),
        id,
        beat,
        micros: seconds * 1_000_000 + micros,
        key: key.unwrap_or_default(),
        marks: Vec::new(),
    })
}

fn parsed<T: FromRedisValue>(answer: Value) -> Result<T, StoreError> {
    from_redis_value(answer).map_err(|error| reading(error.into()))
}

/// The same, with the marks of all shards. The key counts as missing if Redis has lost one of them.
pub(super) async fn find_all(
    connections: &Connections,
    keys: &Keys,
    database: i64,
) -> Result<Found, StoreError> {
    let mut found = find(connections, keys, database).await?;
    let marks = of_shards(keys, |shard, commands| _ = commands.get(keys.bound(shard)));
    let marks: Vec<[Option<String>; 1]> = connections.query_each(None, &marks).await?;
    found.marks = marks
        .into_iter()
        .map(|[mark]| mark.unwrap_or_default())
        .collect();
    if let Some(id) = &found.id
        && found.beat != 0
        && found
            .marks
            .iter()
            .any(|mark| *mark != format_mark(id, found.beat))
    {
        (found.id, found.beat) = (None, 0);
    }
    Ok(found)
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

/// Whether levels of a shard with this mark may be loaded. If not, a late message has written it, or the
/// ledger is being bound.
pub(in crate::redis) fn may_be_loaded(mark: &str) -> bool {
    parse(mark).is_ok_and(|(_, is_used)| is_used != 0)
}

/// The mark of a shard: whether levels may be loaded follows the id.
fn format_mark(id: &str, beat: i64) -> String {
    format_key(id, i64::from(beat != 0))
}

/// Writes marks and key, unless they have changed since they were `found`. `None` replaces any value.
pub(super) async fn write(
    connections: &Connections,
    keys: &Keys,
    bound: &BoundRedis,
    found: Option<&Found>,
) -> Result<(), StoreError> {
    // After that, the marks stay as they are.
    if found.is_none_or(|found| bound.beat == 0 || found.beat == 0) {
        let mark = format_mark(&bound.id, bound.beat);
        let before = format_mark(&bound.id, 0);
        let expected = |shard: usize| match found {
            None => "*",
            // Never a mark that is missing: Redis may have lost it since.
            Some(_) if bound.beat != 0 => &before,
            Some(found) => &found.marks[shard],
        };
        let marks = Shard::all().enumerate().map(|(index, shard)| {
            let mut commands = redis::pipe();
            let mut script = scripts::BIND.key(keys.bound(shard));
            commands.invoke_script(script.arg(&mark).arg(expected(index)));
            (keys.slot(shard), commands)
        });
        let marks: Vec<_> = marks.collect();
        let written = connections.query_each::<Value>(Some(&scripts::BIND), &marks);
        written.await?;
    }
    let expected = found.map_or("*", |found| &found.key);
    let mut script = scripts::BIND.key(keys.binding());
    script.arg(format_key(&bound.id, bound.beat)).arg(expected);
    let mut connection = connections.at(keys.slot(Keys::BINDING))?;
    // `reading` is correct here because the script is safe to repeat.
    let written: RedisResult<bool> = script.invoke_async(&mut connection).await;
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
pub(super) async fn end_loads(connections: &Connections, keys: &Keys) -> Result<(), StoreError> {
    let end = |shard, commands: &mut Pipeline| _ = commands.hdel(keys.counters(shard), "since");
    let end = of_shards(keys, end);
    connections.query_each::<Value>(None, &end).await.map(drop)
}

/// Deletes the keys of this ledger that match the pattern.
pub(super) async fn delete_all(
    connections: &Connections,
    keys: &Keys,
    pattern: &str,
) -> Result<(), StoreError> {
    // `SCAN` could miss keys that move from a node that it has not reached to one that it has.
    check_no_slot_moves(connections, keys).await?;
    for (_, mut connection) in connections.all() {
        delete_from(&mut connection, pattern).await?;
    }
    check_no_slot_moves(connections, keys).await
}

/// Fails if a slot of the ledger is moving to another node: of its keys, each node has a part. If a node has
/// failed in between, its successor does not know of it, but the other node does.
pub(super) async fn check_no_slot_moves(
    connections: &Connections,
    keys: &Keys,
) -> Result<(), StoreError> {
    let own: Vec<Slot> = keys.slots().collect();
    for (node, mut connection) in connections.all() {
        if *node == Node::Single {
            continue;
        }
        let mut nodes = redis::cmd("CLUSTER");
        let nodes = nodes.arg("NODES").query_async(&mut connection).await;
        let nodes: String = nodes.map_err(reading)?;
        if let Some(slot) = moving_slots(&nodes).iter().find(|slot| own.contains(slot)) {
            let why = format!("slot {slot} is moving from or to {node}: end that first");
            return Err(StoreError::Unavailable(Server::Redis, why.into()));
        }
    }
    Ok(())
}

/// Deletes those of one node.
async fn delete_from(
    connection: &mut MultiplexedConnection,
    pattern: &str,
) -> Result<(), StoreError> {
    let mut cursor = 0_u64;
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(pattern);
        scan.arg("COUNT").arg(KEYS_PER_SCAN);
        let found: RedisResult<(u64, Vec<String>)> = scan.query_async(connection).await;
        let (next, keys) = found.map_err(reading)?;
        let mut delete = redis::pipe();
        for key in keys {
            // One by one, because a cluster refuses keys of several slots.
            delete.unlink(key).ignore();
        }
        if !delete.is_empty() {
            let deleted: RedisResult<()> = delete.query_async(connection).await;
            deleted.map_err(reading)?;
        }
        if next == 0 {
            return Ok(());
        }
        cursor = next;
    }
}
