//! Audits every SKU, one after the other, in memory that does not depend on their number.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::{Result, Store, StoreError};
use stocklock_core::stock::{Audit, LevelCursor, Sku};

/// How many levels are read at once.
const PAGE: u32 = 500;

/// The audits of all SKUs, in the order of their names. Each is of one snapshot; all of them are not.
/// A SKU that is created meanwhile may be left out.
#[derive(Debug)]
pub struct AllAudits {
    store: Arc<dyn Store>,
    /// The last level that was read.
    after: Option<LevelCursor>,
    unread: VecDeque<Sku>,
}

impl AllAudits {
    /// Starts with the first SKU.
    #[must_use]
    pub fn of(store: &Arc<dyn Store>) -> Self {
        Self {
            store: Arc::clone(store),
            after: None,
            unread: VecDeque::new(),
        }
    }

    /// The next SKU, and the audits of its warehouses or why only this SKU cannot be audited. `None`
    /// after the last SKU.
    ///
    /// # Errors
    /// A store does not answer.
    pub async fn next(&mut self) -> Result<Option<(Sku, Result<Vec<Audit>>)>> {
        if self.unread.is_empty() {
            self.read_page().await?;
        }
        let Some(sku) = self.unread.pop_front() else {
            return Ok(None);
        };
        let audits = match self.store.audit(&sku).await {
            audits @ (Ok(_) | Err(StoreError::TooSlow(_))) => audits,
            Err(error) => return Err(error),
        };
        Ok(Some((sku, audits)))
    }

    /// Reads levels until there is a SKU that was not read before.
    async fn read_page(&mut self) -> Result<()> {
        while self.unread.is_empty() {
            let after = LevelCursor::names(self.after.as_ref());
            let levels = self.store.levels(after, PAGE).await?;
            let Some(last) = levels.last() else {
                return Ok(());
            };
            let mut known = self.after.take().map(|after| after.sku);
            self.after = Some(last.into());
            for level in levels {
                if known.as_ref() != Some(&level.sku) {
                    known = Some(level.sku.clone());
                    self.unread.push_back(level.sku);
                }
            }
        }
        Ok(())
    }
}
