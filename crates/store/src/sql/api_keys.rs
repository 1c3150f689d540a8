//! API keys. A replica reads them on the connection for readiness, so that no flood of requests delays a
//! revocation.

use async_trait::async_trait;

use super::SqlStore;
use super::dialect::Dialect;
use super::rows::rows;
use super::statement::values;
use crate::Result;
use stocklock_core::access::{ApiKey, RateLimit, Scope, SecretHash};
use stocklock_core::stock::Caller;

rows! {
    /// A row of `api_key`.
    struct KeyRow {
        id: String,
        name: String,
        caller: String,
        secret_hash: SecretHash as Vec<u8>,
        scopes: String,
        rate: Option<i64>,
        burst: Option<i64>,
        created_at: i64,
        expires_at: Option<i64>,
        revoked_at: Option<i64>,
    }
}

/// The API keys of a database.
#[derive(Debug, Clone)]
pub struct KeyList {
    /// The clock of the database just before they were read, in milliseconds since 1970.
    pub now: i64,
    /// What was asked for.
    pub keys: Vec<ApiKey>,
}

/// Reads and changes the API keys of a database.
#[async_trait]
pub trait ApiKeys: Send + Sync {
    /// All of them, the oldest first.
    async fn api_keys(&self) -> Result<KeyList>;

    /// Those that are neither revoked nor expired.
    async fn valid_api_keys(&self) -> Result<KeyList>;

    /// Stores a new one.
    async fn add_api_key(&self, key: &ApiKey) -> Result<()>;

    /// Revokes one, unless that is done already.
    async fn revoke_api_key(&self, id: &str) -> Result<()>;
}

#[async_trait]
impl<D: Dialect> ApiKeys for SqlStore<D> {
    async fn api_keys(&self) -> Result<KeyList> {
        let now = self.now().await?;
        let rows = self.select(&self.probe, &D::texts().api_keys, &[]).await?;
        Ok(KeyList::of(now, rows))
    }

    async fn valid_api_keys(&self) -> Result<KeyList> {
        let now = self.now().await?;
        let valid = &D::texts().valid_api_keys;
        let rows = self.select(&self.probe, valid, &values![now]).await?;
        Ok(KeyList::of(now, rows))
    }

    async fn add_api_key(&self, key: &ApiKey) -> Result<()> {
        let scopes: Vec<_> = key.scopes.iter().map(|scope| scope.as_str()).collect();
        let scopes = scopes.join(",");
        let columns = values![
            key.id.as_str(),
            key.name.as_str(),
            key.caller.as_str(),
            key.secret_hash.as_bytes(),
            scopes.as_str(),
            key.limit.map(|limit| i64::from(limit.rate)),
            key.limit.map(|limit| i64::from(limit.burst)),
            key.created_at,
            key.expires_at,
        ];
        let inserted = self.change_rows(&D::texts().insert_api_key, &columns);
        inserted.await.map(drop)
    }

    async fn revoke_api_key(&self, id: &str) -> Result<()> {
        let columns = values![id];
        let revoked = self.change_rows(&D::texts().revoke_api_key, &columns);
        revoked.await.map(drop)
    }
}

impl<D: Dialect> SqlStore<D> {
    async fn now(&self) -> Result<i64> {
        let now: Vec<(i64,)> = self.select(&self.probe, &D::texts().clock, &[]).await?;
        Ok(now.first().map_or(i64::MAX, |(now,)| *now))
    }
}

impl KeyList {
    fn of(now: i64, rows: Vec<KeyRow>) -> Self {
        let keys = rows.into_iter().filter_map(KeyRow::key).collect();
        Self { now, keys }
    }
}

impl KeyRow {
    /// The key. `None` if a later release has written it in a way that this one does not know. A scope of a
    /// later release allows nothing here.
    fn key(self) -> Option<ApiKey> {
        let number = |number: Option<i64>| number.map(u32::try_from).transpose().ok();
        let limit = number(self.rate)?.zip(number(self.burst)?);
        Some(ApiKey {
            id: self.id,
            name: self.name,
            caller: Caller::parse(&self.caller).ok()?,
            secret_hash: self.secret_hash,
            scopes: self.scopes.split(',').filter_map(Scope::parse).collect(),
            limit: limit.map(|(rate, burst)| RateLimit { rate, burst }),
            created_at: self.created_at,
            expires_at: self.expires_at,
            revoked_at: self.revoked_at,
        })
    }
}
