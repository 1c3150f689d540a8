//! What Redis has of one SKU, in a form in which two ledgers can be compared.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use redis::FromRedisValue;
use redis::aio::MultiplexedConnection;

use super::history::WAREHOUSES;
use crate::store_contract::fixture::Fixture;
use crate::support::services::connect_to_redis;

/// Versions of a level that differ by less than this are from the same load: a load takes the clock in
/// microseconds, and a history has fewer writes.
const LOADS_APART: i64 = 100;

/// Which field is the version that was read, in a dedup entry and in a line of the journal.
const READ_IN_DEDUP: usize = 8;
const READ_IN_LINE: usize = 5;

/// How many hashes take turns as the buckets of dedup entries.
const BUCKETS: i64 = 4;

/// Each thing that Redis has of a SKU, by its name.
pub(super) type State = BTreeMap<String, String>;

/// One SKU in a Redis.
pub(super) struct InRedis {
    redis: MultiplexedConnection,
    pub(super) sku: String,
    /// The part in braces of the shard's keys.
    tag: String,
    /// The dedup entries that the shard had before.
    before: BTreeSet<String>,
    /// For each warehouse, the first version that was seen after each load.
    loads: HashMap<String, Vec<i64>>,
}

impl InRedis {
    /// A SKU whose levels were just loaded.
    pub(super) async fn of(fixture: &Fixture, sku: &str) -> Self {
        let url = fixture.redis_url().expect("stock lives in Redis");
        let redis = connect_to_redis(url).await.expect("the test can connect");
        let level = fixture.key(&format!("stock:*:{sku}:main")).await;
        let tag = level.split(':').nth(1).expect("a tag").to_owned();
        let mut found = Self {
            redis,
            sku: sku.to_owned(),
            tag,
            before: BTreeSet::new(),
            loads: HashMap::new(),
        };
        found.before = found.dedup_entries().await.into_keys().collect();
        found
    }

    async fn run<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let (mut command, mut connection) = (redis::cmd(words[0]), self.redis.clone());
        let answer = command.arg(&words[1..]).query_async(&mut connection);
        answer.await.expect("the command succeeds")
    }

    fn level(&self, warehouse: &str) -> String {
        format!("stock:{}:{}:{warehouse}", self.tag, self.sku)
    }

    pub(super) async fn hold(&self, units: i64) {
        for warehouse in WAREHOUSES {
            let hold = ["HSET", &self.level(warehouse), "held", &units.to_string()];
            self.run::<()>(&hold).await;
        }
    }

    pub(super) async fn lose_level(&self, warehouse: &str) {
        self.run::<()>(&["DEL", &self.level(warehouse)]).await;
    }

    /// Loses the dedup entries of operations with a key.
    pub(super) async fn lose_keys(&self) {
        for bucket in self.buckets().await {
            if length(&bucket) > 3_600_000 {
                self.run::<()>(&["DEL", &bucket]).await;
            }
        }
    }

    /// Lets the levels that were loaded after a loss look as if that was so many seconds ago.
    pub(super) async fn age(&self, seconds: i64) {
        let (now, _): (i64, i64) = self.run(&["TIME"]).await;
        let loaded = ((now - seconds) * 1_000_000).to_string();
        for warehouse in WAREHOUSES {
            let level = self.level(warehouse);
            if self.run(&["HEXISTS", &level, "loaded"]).await {
                self.run::<()>(&["HSET", &level, "loaded", &loaded]).await;
            }
        }
    }

    pub(super) async fn state(&mut self) -> State {
        let mut state = State::new();
        for warehouse in WAREHOUSES {
            let fields: HashMap<String, String> =
                self.run(&["HGETALL", &self.level(warehouse)]).await;
            for (field, value) in fields {
                let value = match &*field {
                    "version" => self.since_load(warehouse, &value),
                    "loaded" => String::new(),
                    _ => value,
                };
                state.insert(format!("level {warehouse} {field}"), value);
            }
        }
        self.add_journal(&mut state).await;
        self.add_counters(&mut state).await;
        for (field, entry) in self.dedup_entries().await {
            if !self.before.contains(&field) {
                let [bucket, text] = entry;
                let warehouse = text.split('\t').nth(1).unwrap_or_default().to_owned();
                let text = self.without_load(&warehouse, &text, READ_IN_DEDUP);
                state.insert(format!("dedup {field}"), format!("{bucket} {text}"));
            }
        }
        state
    }

    /// Adds the movements in the journal, and the level after the last of each warehouse. A call of a script
    /// makes one entry of several movements.
    async fn add_journal(&mut self, state: &mut State) {
        let journal = format!("journal:{}", self.tag);
        let entries: Vec<(String, Vec<String>)> = self.run(&["XRANGE", &journal, "-", "+"]).await;
        let mut number = 0;
        for (_, fields) in entries {
            let fields: HashMap<_, _> = fields
                .as_chunks()
                .0
                .iter()
                .map(|[k, v]| (&**k, &**v))
                .collect();
            let (_, warehouse) = fields["level"]
                .rsplit_once(':')
                .expect("the key of a level");
            for line in fields["movements"].lines() {
                let line = self.without_load(warehouse, line, READ_IN_LINE);
                let movement = format!("{warehouse} {} {line}", fields["common"]);
                state.insert(format!("movement {number}"), movement);
                number += 1;
            }
            for (&field, &value) in &fields {
                let value = match field {
                    "level" => format!("{} is complete", value == self.level(warehouse)),
                    "version" => self.since_load(warehouse, value),
                    "movements" => continue,
                    _ => value.to_owned(),
                };
                state.insert(format!("last entry {warehouse} {field}"), value);
            }
        }
    }

    /// Adds the journal's number of movements, and the last state of each level.
    async fn add_counters(&mut self, state: &mut State) {
        let key = format!("tally:{}:journal", self.tag);
        let mut counters: HashMap<String, String> = self.run(&["HGETALL", &key]).await;
        let waiting = counters.remove("waiting").unwrap_or_default();
        state.insert("waiting".to_owned(), waiting);
        for warehouse in WAREHOUSES {
            if let Some(last) = counters.get(&format!("last {}", self.level(warehouse))) {
                let (level, version) = last.rsplit_once(' ').expect("a version");
                let version = self.since_load(warehouse, version);
                state.insert(
                    format!("last state {warehouse}"),
                    format!("{level} {version}"),
                );
            }
        }
    }

    async fn buckets(&self) -> Vec<String> {
        self.run(&["KEYS", &format!("dedup:{}:*", self.tag)]).await
    }

    /// The dedup entries of the shard, by their fields. Each with the length of its bucket, and after how many
    /// turns of the buckets it expires.
    async fn dedup_entries(&self) -> BTreeMap<String, [String; 2]> {
        let mut found = BTreeMap::new();
        for bucket in self.buckets().await {
            let expires: i64 = self.run(&["PEXPIRETIME", &bucket]).await;
            let entries: HashMap<String, String> = self.run(&["HGETALL", &bucket]).await;
            let length = length(&bucket);
            let number = bucket
                .rsplit(':')
                .next()
                .and_then(|number| number.parse().ok());
            let turns = (expires / length - number.unwrap_or(0)).rem_euclid(BUCKETS);
            for (field, text) in entries {
                let bucket = format!("{length} ms, {turns} turns and {} ms", expires % length);
                found.insert(field, [bucket, text]);
            }
        }
        found
    }

    /// A version, as a load and the difference to its first version.
    fn since_load(&mut self, warehouse: &str, version: &str) -> String {
        let version: i64 = version.parse().expect("a version");
        let loads = self.loads.entry(warehouse.to_owned()).or_default();
        let is_near = |first: &i64| (version - first).abs() < LOADS_APART;
        let load = loads.iter().position(is_near).unwrap_or_else(|| {
            loads.push(version);
            loads.len() - 1
        });
        format!("load {load} {:+}", version - loads[load])
    }

    /// The text of a movement, with the version that was read in this form.
    fn without_load(&mut self, warehouse: &str, text: &str, read: usize) -> String {
        let mut fields: Vec<_> = text.split('\t').map(str::to_owned).collect();
        if let Some(version) = fields.get_mut(read).filter(|version| !version.is_empty()) {
            *version = self.since_load(warehouse, version);
        }
        fields.join("\t")
    }
}

/// The length of a bucket, in milliseconds.
fn length(bucket: &str) -> i64 {
    let length = bucket
        .rsplit(':')
        .nth(1)
        .and_then(|length| length.parse().ok());
    length.expect("the key has a length")
}
