//! An in-memory lock table, used by the back ends `local` and `memory`.
//!
//! It follows the Redis scripts step by step, so tests on the model also apply to them. A nonce
//! that asks again already has the lock. A renewal never shortens a lease. Each token is greater
//! than all earlier ones.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use crate::claims::Renewal;
use crate::claims::{Claimant, LockView};
use crate::shared::clock::Moment;
use crate::shared::lock::lock;
use crate::shared::nonce::Nonce;
use crate::shared::token::Token;
use crate::shared::topics::Topics;

#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Mutex<Rows>,
    pub(crate) freed: Topics,
}

#[derive(Debug, Default)]
struct Rows {
    held: HashMap<String, Row>,
    last_token: i64,
}

#[derive(Debug)]
struct Row {
    nonce: Nonce,
    token: Token,
    since: Moment,
    expires_at: Moment,
}

impl Table {
    /// Acquires a lock and returns its token. If it is busy, returns its remaining lease.
    pub(crate) fn acquire(
        &self,
        now: Moment,
        name: &str,
        nonce: Nonce,
        lease: Duration,
    ) -> Result<Token, Duration> {
        let mut rows = lock(&self.rows);
        if let Some(row) = rows.live(now, name) {
            if row.nonce != nonce {
                return Err(row.expires_at.since(now));
            }
            row.expires_at = row.expires_at.max(now + lease);
            return Ok(row.token);
        }
        rows.last_token += 1;
        let token = Token::new(rows.last_token);
        let row = Row {
            nonce,
            token,
            since: now,
            expires_at: now + lease,
        };
        rows.held.insert(name.to_owned(), row);
        Ok(token)
    }

    /// Returns whether the nonce holds the lock.
    pub(crate) fn renew(&self, now: Moment, renewal: &Renewal) -> bool {
        match lock(&self.rows).live(now, &renewal.name) {
            Some(row) if row.nonce == renewal.nonce => {
                row.expires_at = row.expires_at.max(now + renewal.lease);
                true
            }
            _ => false,
        }
    }

    /// Returns whether the nonce held the lock.
    pub(crate) fn release(&self, now: Moment, name: &str, nonce: Nonce) -> bool {
        let mut rows = lock(&self.rows);
        if rows.live(now, name).is_none_or(|row| row.nonce != nonce) {
            return false;
        }
        rows.held.remove(name);
        true
    }

    /// Returns the nonce and token of the current holder.
    pub(crate) fn holder(&self, now: Moment, name: &str) -> Option<(Nonce, Token)> {
        let mut rows = lock(&self.rows);
        rows.live(now, name).map(|row| (row.nonce, row.token))
    }

    /// Returns the current holder, as operators see it.
    pub(crate) fn inspect(&self, now: Moment, name: &str) -> LockView {
        let claimant = |row: &mut Row| Claimant {
            nonce: row.nonce,
            permits: 1,
            token: Some(row.token),
            owner: None,
            age: Some(now.since(row.since)),
            expires_in: Some(row.expires_at.since(now)),
        };
        LockView {
            holders: lock(&self.rows)
                .live(now, name)
                .map(claimant)
                .into_iter()
                .collect(),
            ..LockView::default()
        }
    }

    pub(crate) fn expire(&self, name: &str) {
        lock(&self.rows).held.remove(name);
    }

    pub(crate) fn clear(&self) {
        lock(&self.rows).held.clear();
    }

    pub(crate) fn len(&self, now: Moment) -> usize {
        let mut rows = lock(&self.rows);
        rows.held.retain(|_, row| row.expires_at > now);
        rows.held.len()
    }
}

impl Rows {
    /// Returns the row of a lock whose lease has not expired.
    fn live(&mut self, now: Moment, name: &str) -> Option<&mut Row> {
        if self.held.get(name).is_some_and(|row| row.expires_at <= now) {
            self.held.remove(name);
        }
        self.held.get_mut(name)
    }
}
