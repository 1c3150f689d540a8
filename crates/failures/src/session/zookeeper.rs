//! A session with ZooKeeper. Its commands are those of `zkCli.sh`, with fewer options.
//!
//! `create [-e] [-s] PATH DATA`, `exists [-w] PATH`, `ls PATH`, `count PATH` (its children),
//! `delete PATH`, and `events`: how many watches of this session have fired.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio_util::task::AbortOnDropHandle;
use zookeeper_client::{Acls, Client, CreateMode, Error, OneshotWatcher};

use super::Address;

/// A session.
pub(crate) struct ZooKeeperSession {
    client: Client,
    fired: Arc<AtomicU32>,
    watches: Vec<AbortOnDropHandle<()>>,
}

impl ZooKeeperSession {
    pub(super) async fn open(address: &Address) -> Result<Self, Error> {
        let connector = Client::connector().with_session_timeout(address.session);
        Ok(Self {
            client: connector.connect(&address.url).await?,
            fired: Arc::default(),
            watches: Vec::new(),
        })
    }

    pub(super) async fn run(&mut self, command: &str) -> String {
        let answer = self.answer(command).await;
        answer.unwrap_or_else(|error| format!("error {error:?}"))
    }

    async fn answer(&mut self, command: &str) -> Result<String, Error> {
        let mut words = command.split_whitespace();
        let word = words.next().unwrap_or_default();
        let (options, words): (Vec<_>, Vec<_>) = words.partition(|word| word.starts_with('-'));
        let path = words.first().copied().unwrap_or("/");
        let is_watched = options.contains(&"-w");
        Ok(match word {
            "create" => {
                let mode = match (options.contains(&"-e"), options.contains(&"-s")) {
                    (false, false) => CreateMode::Persistent,
                    (false, true) => CreateMode::PersistentSequential,
                    (true, false) => CreateMode::Ephemeral,
                    (true, true) => CreateMode::EphemeralSequential,
                };
                let data = words.get(1).copied().unwrap_or_default();
                let mode = mode.with_acls(Acls::anyone_all());
                let created = self.client.create(path, data.as_bytes(), &mode).await?;
                if options.contains(&"-s") {
                    format!("{path}{}", created.1)
                } else {
                    path.to_owned()
                }
            }
            "exists" => {
                let stat = if is_watched {
                    let (stat, watcher) = self.client.check_and_watch_stat(path).await?;
                    self.watches.push(counting(watcher, &self.fired));
                    stat
                } else {
                    self.client.check_stat(path).await?
                };
                if stat.is_some() { "yes" } else { "no" }.to_owned()
            }
            "ls" => {
                let mut children = self.client.list_children(path).await?;
                children.sort();
                format!("[{}]", children.join(", "))
            }
            "count" => self.client.list_children(path).await?.len().to_string(),
            "delete" => {
                self.client.delete(path, None).await?;
                "ok".to_owned()
            }
            "events" => self.fired.load(Ordering::SeqCst).to_string(),
            other => format!("error: unknown command {other}"),
        })
    }
}

/// Counts the event of a watch.
fn counting(watcher: OneshotWatcher, fired: &Arc<AtomicU32>) -> AbortOnDropHandle<()> {
    let fired = Arc::clone(fired);
    AbortOnDropHandle::new(tokio::spawn(async move {
        watcher.changed().await;
        fired.fetch_add(1, Ordering::SeqCst);
    }))
}
