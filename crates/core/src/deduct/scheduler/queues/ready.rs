//! What is ready, and whose turn it is: rows of imports, or other operations.
//!
//! Rows have batches of their own, beside other operations one at a time. After each, the other operations that
//! are ready go first. A row that another operation waits for counts as one of the others.

use std::collections::BTreeSet;

use super::Age;

/// The maximum number of lines in a batch of rows beside other operations, if there is one transaction at a time.
pub(super) const FEW_LINES: usize = 16;

/// After this many batches of rows without a batch of other operations, an import is alone.
const ALONE: usize = 8;

/// The operations that are ready.
#[derive(Debug)]
pub(super) struct Ready {
    rows: BTreeSet<Age>,
    others: BTreeSet<Age>,
    /// How many batches of rows are in flight that count.
    rows_in_flight: usize,
    /// Batches of rows since the last batch of others began. The end of one counts too, so that others which are
    /// ready go first.
    row_batches: usize,
}

impl Default for Ready {
    fn default() -> Self {
        Self {
            rows: BTreeSet::new(),
            others: BTreeSet::new(),
            rows_in_flight: 0,
            row_batches: ALONE,
        }
    }
}

impl Ready {
    /// The rows, or the other operations.
    pub(super) fn of(&self, rows: bool) -> &BTreeSet<Age> {
        if rows { &self.rows } else { &self.others }
    }

    pub(super) fn insert(&mut self, is_row: bool, age: Age) {
        let Self { rows, others, .. } = self;
        let ready = if is_row { rows } else { others };
        ready.insert(age);
    }

    /// Returns whether it was ready.
    pub(super) fn remove(&mut self, age: Age) -> bool {
        self.others.remove(&age) || self.rows.remove(&age)
    }

    /// Whether the next batch is one of rows: if nothing else is ready, or if they have waited longer and the last
    /// batch was another one. Unless an import is alone, one transaction at a time is of rows.
    pub(super) fn is_turn_of_rows(&self) -> bool {
        let Some(row) = self.rows.first() else {
            return false;
        };
        let other = self.others.first();
        let is_first = other.is_none_or(|other| self.row_batches == 0 && row < other);
        is_first && (self.rows_in_flight == 0 || self.is_alone())
    }

    /// Whether nothing but rows has been made for some time.
    pub(super) fn is_alone(&self) -> bool {
        self.row_batches >= ALONE
    }

    /// A batch begins.
    pub(super) fn begin(&mut self, of_rows: bool, counts: bool) {
        if of_rows {
            self.rows_in_flight += usize::from(counts);
            self.row_batches += 1;
        } else {
            self.row_batches = 0;
        }
    }

    /// A batch that counted no longer does.
    pub(super) fn end(&mut self, of_rows: bool) {
        if of_rows {
            self.rows_in_flight -= 1;
            self.row_batches = self.row_batches.max(1);
        }
    }

    /// Whether nothing is ready, and no batch of rows is in flight.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.rows.is_empty() && self.others.is_empty() && self.rows_in_flight == 0
    }
}
