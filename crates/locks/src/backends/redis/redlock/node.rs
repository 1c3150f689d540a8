//! One of the masters.

use std::time::Duration;

use redis::FromRedisValue;
use tokio::time::timeout;

use super::super::address::Address;
use super::super::admin::{INSPECT, REVOKE};
use super::super::connection::Connection;
use super::super::scripts::{Script, loss, reason};
use super::super::servers::Servers;
use super::super::{eviction, flag, milliseconds};
use super::scripts::{ACQUIRE, RELEASE, RENEW};
use crate::shared::error::{BackendError, LostReason};
use crate::shared::nonce::{Nonce, REMEMBERED};

/// What a master answers to a request for its vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Vote {
    Given,
    /// Another client has it.
    Taken,
    /// The nonce was released.
    Released,
    /// The master was restarted too recently. It votes in so many seconds.
    Restarted(u64),
}

/// Why a master no longer has a vote. `None` if it has it.
pub(super) type Loss = Option<LostReason>;

/// The votes that a lock has from one attempt to acquire it.
#[derive(Debug, Clone)]
pub(super) struct Ballot {
    pub(super) name: String,
    pub(super) nonce: Nonce,
    pub(super) attempt: u64,
}

impl Ballot {
    /// The value of the key of each vote.
    pub(super) fn value(&self) -> String {
        format!("{}{}", self.nonce, self.attempt)
    }
}

#[derive(Debug)]
pub(super) struct Node {
    /// The host and the port, for error messages.
    pub(super) address: String,
    server: Servers,
    prefix: String,
    max_lease: Duration,
    limit: Duration,
}

impl Node {
    pub(super) fn new(
        address: Address,
        host: String,
        prefix: &str,
        max_lease: Duration,
        limit: Duration,
    ) -> Self {
        Self {
            address: host,
            server: Servers::One(Connection::new(address, limit, limit)),
            prefix: prefix.to_owned(),
            max_lease,
            limit,
        }
    }

    /// Asks for the vote, for at most this lease.
    pub(super) async fn vote(
        &self,
        ballot: &Ballot,
        lease: Duration,
    ) -> Result<Vote, BackendError> {
        let arguments = [
            ballot.nonce.to_string(),
            ballot.attempt.to_string(),
            milliseconds(lease),
            self.max_lease.as_secs().to_string(),
        ];
        Ok(
            match self.script::<i64>(&ACQUIRE, ballot, &arguments).await? {
                1 => Vote::Given,
                0 => Vote::Taken,
                -1 => Vote::Released,
                restarted => Vote::Restarted(restarted.abs_diff(-1)),
            },
        )
    }

    /// Renews votes, and returns for each why this master no longer has it.
    pub(super) async fn renew(
        &self,
        votes: &[(Ballot, Duration)],
    ) -> Result<Vec<Loss>, BackendError> {
        let keys: Vec<_> = votes.iter().map(|(vote, _)| self.key(&vote.name)).collect();
        let arguments = |(vote, lease): &(Ballot, Duration)| [vote.value(), milliseconds(*lease)];
        let arguments: Vec<_> = votes.iter().flat_map(arguments).collect();
        let script = self.server.script(&RENEW, &keys, &arguments);
        let answers: Vec<i64> = self.within_limit(script).await?;
        Ok(answers.into_iter().map(loss).collect())
    }

    /// Releases the vote of this attempt and earlier ones. Returns why there was none.
    pub(super) async fn release(
        &self,
        ballot: &Ballot,
        unclear: bool,
    ) -> Result<Loss, BackendError> {
        let arguments = [
            ballot.nonce.to_string(),
            ballot.attempt.to_string(),
            milliseconds(REMEMBERED),
            flag(unclear),
        ];
        let answer = self.script(&RELEASE, ballot, &arguments).await;
        answer.map(loss)
    }

    /// Returns why this master does not have this vote.
    pub(super) async fn verify(&self, vote: &Ballot) -> Result<Loss, BackendError> {
        let mut get = redis::cmd("MGET");
        let key = self.key(&vote.name);
        get.arg(&key);
        get.arg(self.tombstone(&vote.name, vote.nonce));
        let keys = self.within_limit(self.server.run(&key, &get)).await?;
        let (value, tombstone): (Option<String>, Option<String>) = keys;
        let is_held = value == Some(vote.value());
        Ok((!is_held).then(|| reason(tombstone.as_deref())))
    }

    /// Returns in how many seconds this master votes: 0 if it does so now.
    pub(super) async fn votes_in(&self) -> Result<u64, BackendError> {
        let info = self.info("server").await?;
        let uptime = info
            .lines()
            .find_map(|line| line.strip_prefix("uptime_in_seconds:"));
        let Some(uptime) = uptime.and_then(|uptime| uptime.trim().parse::<u64>().ok()) else {
            let cause = "the server does not say how long it has been up";
            return Err(BackendError::permanent(cause));
        };
        Ok((self.max_lease.as_secs() + 1).saturating_sub(uptime))
    }

    /// Returns the client that has the vote of this master, and the rest of its lease.
    pub(super) async fn holder(
        &self,
        name: &str,
    ) -> Result<Option<(Nonce, Duration)>, BackendError> {
        let keys = [self.key(name)];
        let found = self.server.script(&INSPECT, &keys, &[]);
        let found: Vec<(String, i64, String)> = self.within_limit(found).await?;
        let vote = |(value, rest, _): (String, i64, String)| {
            let nonce = value.get(..32).and_then(Nonce::parse)?;
            Some((
                nonce,
                Duration::from_millis(u64::try_from(rest).unwrap_or(0)),
            ))
        };
        Ok(found.into_iter().find_map(vote))
    }

    /// Takes the vote of this master away. Returns whether the nonce had it, now or before.
    pub(super) async fn revoke(&self, name: &str, nonce: Nonce) -> Result<bool, BackendError> {
        let keys = [self.key(name), self.tombstone(name, nonce)];
        let arguments = [nonce.to_string(), milliseconds(REMEMBERED)];
        let revoked = self.server.script(&REVOKE, &keys, &arguments);
        self.within_limit(revoked).await
    }

    /// Returns a warning for each setting of this master that can lose votes.
    pub(super) async fn warnings(&self) -> Result<Vec<String>, BackendError> {
        let memory = self.info("memory").await?;
        let mut warnings = Vec::from_iter(eviction::warning(&memory));
        let info = self.info("replication").await?;
        let mut lines = info.lines();
        let role = lines.find_map(|line| line.strip_prefix("role:"));
        let replicas = lines.find_map(|line| line.strip_prefix("connected_slaves:"));
        if role != Some("master") || replicas != Some("0") {
            let warning =
                "a failover of this Redis loses locks: RedLock needs a master without replicas";
            warnings.push(warning.to_owned());
        }
        Ok(warnings)
    }

    async fn info(&self, section: &str) -> Result<String, BackendError> {
        let mut info = redis::cmd("INFO");
        info.arg(section);
        self.within_limit(self.server.run("", &info)).await
    }

    pub(super) fn open(&self) {
        self.server.open();
    }

    pub(super) fn close(&self) {
        self.server.close();
    }

    fn key(&self, name: &str) -> String {
        format!("{}{{{name}}}", self.prefix)
    }

    fn tombstone(&self, name: &str, nonce: Nonce) -> String {
        format!("{}:gone:{nonce}", self.key(name))
    }

    /// Runs a script with the keys of the vote and its tombstone.
    async fn script<T: FromRedisValue>(
        &self,
        script: &Script,
        ballot: &Ballot,
        arguments: &[String],
    ) -> Result<T, BackendError> {
        let keys = [
            self.key(&ballot.name),
            self.tombstone(&ballot.name, ballot.nonce),
        ];
        let script = self.server.script(script, &keys, arguments);
        self.within_limit(script).await
    }

    /// Connects within the limit, and waits for the answer. The connection limits each answer, and is
    /// closed if there is none in time. A script may need two answers. Without a connection, nothing is sent.
    async fn within_limit<T>(
        &self,
        request: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        let connected = timeout(self.limit, self.server.connected("")).await;
        let connected = connected.unwrap_or_else(|_| {
            let cause = format!("no connection within {:?}", self.limit);
            Err(BackendError::transient(cause))
        });
        connected.map_err(BackendError::refused_for_now)?;
        request.await
    }
}
