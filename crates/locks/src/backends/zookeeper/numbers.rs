//! Numbers: a node for each, which contains the number and its recent changes.
//!
//! Nodes: `<root>/.numbers/<name>%<kind>`. A write names the version of the node that it replaces, so an
//! unanswered write and its repetition are executed once. If the repetition finds another version, it looks
//! for its nonce among the recent changes. If more changes followed than the node contains, or the node was
//! removed, it is unknown whether the first write was executed. An unanswered creation is the exception: its
//! node may have been removed without a trace, and it is then created again.

use std::collections::HashMap;

use async_trait::async_trait;
use zookeeper_client::{CreateMode, Error};

use super::names::element;
use super::session::{Session, backend_error};
use super::{ZooKeeper, ZooKeeperBackend};
use crate::backend::{Change, Changed, Claim, NumberKey, NumberRequest, Numbers};
use crate::shared::error::{BackendError, LostReason};
use crate::shared::lock::lock;
use crate::shared::nonce::Nonce;
use crate::shared::numbers::Replaced;
use crate::shared::token::Token;

/// How many changes a node contains.
const RECENT: usize = 32;

/// The contents of a node: the number in the first line, then the nonces of the recent changes with the
/// number after each, newest first.
#[derive(Debug, Default, PartialEq, Eq)]
struct Contents {
    value: i64,
    recent: Vec<(String, i64)>,
}

impl Contents {
    fn parse(data: &[u8]) -> Result<Self, BackendError> {
        let text = String::from_utf8_lossy(data);
        let mut lines = text.lines();
        let value = lines.next().and_then(|line| line.parse().ok());
        let change = |line: &str| {
            let (nonce, value) = line.split_once(' ')?;
            Some((nonce.to_owned(), value.parse().ok()?))
        };
        let recent: Option<_> = lines.map(change).collect();
        let (Some(value), Some(recent)) = (value, recent) else {
            let cause = "the node was not written by this crate, or by a later release";
            return Err(BackendError::permanent(cause));
        };
        Ok(Self { value, recent })
    }

    fn find(&self, nonce: &str) -> Option<i64> {
        let mut recent = self.recent.iter();
        recent
            .find(|(known, _)| known == nonce)
            .map(|(_, value)| *value)
    }

    /// The data of the node after a change.
    fn after(mut self, nonce: String, value: i64) -> Vec<u8> {
        self.recent.insert(0, (nonce, value));
        self.recent.truncate(RECENT);
        let recent = self.recent.iter();
        let lines = recent.map(|(nonce, value)| format!("\n{nonce} {value}"));
        let lines: String = lines.collect();
        format!("{value}{lines}").into_bytes()
    }
}

impl Session {
    async fn contents(&self, path: &str) -> Result<(Contents, Replaced), BackendError> {
        match self.ask(self.client.get_data(path)).await {
            Ok((data, stat)) => Ok((Contents::parse(&data)?, (Some(stat.czxid), stat.version))),
            Err(Error::NoNode) => Ok((Contents::default(), (None, -1))),
            Err(error) => Err(backend_error(error)),
        }
    }

    async fn value(&self, path: &str) -> Result<i64, BackendError> {
        Ok(self.contents(path).await?.0.value)
    }

    async fn change_number(
        &self,
        path: &str,
        request: &NumberRequest,
    ) -> Result<Changed, BackendError> {
        let nonce = request.nonce.to_string();
        // Another server than that of the earlier attempt may be behind it.
        let mut is_synced = lock(&request.tried).is_some();
        if is_synced {
            self.sync().await.map_err(backend_error)?;
        }
        loop {
            let (contents, replaced) = self.contents(path).await?;
            if let Some(value) = contents.find(&nonce) {
                let is_changed = true;
                return Ok(Changed { value, is_changed });
            }
            let unanswered = still_open(request, replaced)?;
            let Some(value) = request.change.apply(contents.value)? else {
                // The server may not know yet what other clients have written. A write would show that.
                if !std::mem::replace(&mut is_synced, true) {
                    self.sync().await.map_err(backend_error)?;
                    continue;
                }
                return Ok(Changed {
                    value: contents.value,
                    is_changed: false,
                });
            };
            *lock(&request.tried) = Some(replaced);
            let data = contents.after(nonce.clone(), value);
            let written = match (request.change, replaced) {
                (Change::Remove { .. }, (None, _)) => Ok(()),
                (Change::Remove { .. }, (Some(_), version)) => {
                    self.write(self.client.delete(path, Some(version))).await
                }
                (_, (None, _)) => self.create_number(path, &data).await,
                (_, (Some(_), version)) => {
                    let write = self.client.set_data(path, &data, Some(version));
                    self.write(write).await.map(drop)
                }
            };
            match written {
                Ok(()) => {
                    let is_changed = true;
                    return Ok(Changed { value, is_changed });
                }
                // Another client was faster, or an earlier attempt of this request.
                Err(Error::BadVersion | Error::NodeExists | Error::NoNode) => {
                    *lock(&request.tried) = unanswered;
                }
                Err(error) => return Err(backend_error(error)),
            }
        }
    }

    async fn create_number(&self, path: &str, data: &[u8]) -> Result<(), Error> {
        let options = CreateMode::Persistent.with_acls(self.acls);
        match self.write(self.client.create(path, data, &options)).await {
            Err(Error::NoNode) => {
                let parent = path.rsplit_once('/').map_or("/", |(parent, _)| parent);
                self.ask(self.client.mkdir(parent, &options)).await?;
                self.write(self.client.create(path, data, &options)).await
            }
            created => created,
        }
        .map(drop)
    }

    /// Waits until the number may no longer be `known`.
    async fn number_changed(&self, path: &str, known: i64) -> Result<(), BackendError> {
        let watcher = match self.ask(self.client.get_and_watch_data(path)).await {
            Ok((data, _, _)) if Contents::parse(&data)?.value != known => return Ok(()),
            Ok((_, _, watcher)) => watcher,
            Err(Error::NoNode) if known != 0 => return Ok(()),
            Err(Error::NoNode) => {
                let stat = self.ask(self.client.check_and_watch_stat(path)).await;
                match stat.map_err(backend_error)? {
                    (None, watcher) => watcher,
                    (Some(_), _) => return Ok(()),
                }
            }
            Err(error) => return Err(backend_error(error)),
        };
        watcher.changed().await;
        Ok(())
    }
}

/// Returns what the last unanswered attempt of this request wanted to replace, if it may still be executed
/// or have been executed. Its nonce is not among the recent changes.
///
/// # Errors
/// Returns an error if it is unknown whether that attempt was executed.
fn still_open(request: &NumberRequest, found: Replaced) -> Result<Option<Replaced>, BackendError> {
    let last = *lock(&request.tried);
    let Some((before, version)) = last else {
        return Ok(None);
    };
    let (created, now) = found;
    let is_removed = before.is_some() && before != created;
    // A new node has version 0, and an unanswered creation wanted version -1 to be replaced.
    let changes = usize::try_from(now.wrapping_sub(version));
    let is_forgotten = changes.is_ok_and(|changes| changes > RECENT);
    let is_removal = matches!(request.change, Change::Remove { .. });
    if is_forgotten || (is_removed && !is_removal) {
        let cause = "no answer, and other changes since; it is unknown whether it was executed";
        return Err(BackendError::permanent(cause));
    }
    Ok(last.filter(|last| *last == found))
}

impl ZooKeeper {
    fn number_path(&self, NumberKey { kind, name }: &NumberKey) -> String {
        format!("{}/.numbers/{}%{kind}", self.sessions.root, element(name))
    }
}

#[async_trait]
impl Numbers for ZooKeeperBackend {
    async fn reduce(
        &self,
        _: &str,
        nonce: Nonce,
        keep: u32,
    ) -> Result<Option<LostReason>, BackendError> {
        let place = self.0.places.get(nonce);
        let Some((path, place)) = place.and_then(|place| Some((place.path()?, place))) else {
            return Ok(Some(LostReason::Stolen));
        };
        let session = &place.session;
        let keep = keep.to_string();
        let write = session.client.set_data(&path, keep.as_bytes(), None);
        let reason = match session.write(write).await {
            Ok(_) => return Ok(None),
            Err(Error::NoNode) => self.0.reason(session, nonce).await,
            Err(Error::SessionExpired) => LostReason::SessionExpired,
            Err(error) => return Err(backend_error(error)),
        };
        self.0.places.remove(nonce);
        Ok(Some(reason))
    }

    async fn change(&self, request: &NumberRequest) -> Result<Changed, BackendError> {
        let session = self.0.sessions.connected().await?;
        let path = self.0.number_path(&request.key);
        session.change_number(&path, request).await
    }

    async fn read(&self, key: &NumberKey, other_than: Option<i64>) -> Result<i64, BackendError> {
        let session = self.0.sessions.connected().await?;
        let path = self.0.number_path(key);
        let Some(known) = other_than else {
            // The server may not know yet what other clients have written.
            let (synced, value) = tokio::join!(session.sync(), session.value(&path));
            return synced.map_err(backend_error).and(value);
        };
        tokio::select! {
            changed = session.number_changed(&path, known) => changed?,
            error = session.trouble() => return Err(error),
        }
        session.value(&path).await
    }

    async fn tokens(&self, name: &str) -> Result<Vec<Token>, BackendError> {
        let session = self.0.sessions.connected().await?;
        let queue = self.0.queue(&session, name, Claim::READ).await;
        let queue = queue.map_err(backend_error)?;
        // A client whose session has ended may have a second place before the first one disappears.
        let holders = queue.iter().filter(|seen| seen.is_holder);
        let latest: HashMap<_, _> = holders.map(|seen| (seen.nonce, seen.stat.czxid)).collect();
        Ok(latest.into_values().map(Token::new).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::{Contents, RECENT, still_open};
    use crate::backend::{Change, NumberKey, NumberRequest};
    use crate::shared::lock::lock;

    #[test]
    fn contents_keep_recent_changes_and_refuse_others() {
        let mut data = Vec::new();
        for value in 1..=40 {
            let before = Contents::parse(&data).unwrap_or_default();
            assert_eq!(before.value, value - 1);
            data = before.after(format!("nonce{value}"), value);
        }
        let contents = Contents::parse(&data).unwrap();
        assert_eq!((contents.value, contents.recent.len()), (40, RECENT));
        assert_eq!(contents.find("nonce40"), Some(40));
        assert_eq!(contents.find("nonce9"), Some(9));
        assert_eq!(contents.find("nonce8"), None);
        Contents::parse(b"foreign").unwrap_err();
    }
    #[test]
    fn unanswered_write_is_open_until_another_one_is_seen() {
        let name = "hits".into();
        let kind = "number";
        let request = NumberRequest::new(NumberKey { kind, name }, Change::Add(1), None);
        let open = |last, found| {
            *lock(&request.tried) = last;
            still_open(&request, found).map_err(|error| error.is_permanent())
        };
        let (absent, seven) = ((None, -1), (Some(1), 7));
        for (last, found, expected) in [
            (None, seven, Ok(None)),
            (Some(seven), seven, Ok(Some(seven))),
            (Some(seven), (Some(1), 8), Ok(None)),
            (Some(seven), (Some(1), 7 + 33), Err(true)),
            (Some(seven), absent, Err(true)),
            (Some(seven), (Some(2), 0), Err(true)),
            (Some(absent), absent, Ok(Some(absent))),
            (Some(absent), (Some(1), 31), Ok(None)),
            (Some(absent), (Some(1), 32), Err(true)),
        ] {
            assert_eq!(open(last, found), expected, "{last:?}, {found:?}");
        }
    }
}
