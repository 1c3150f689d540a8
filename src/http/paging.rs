//! Pages: their size, and the cursor of the next one.

use serde::Deserialize;

use super::ApiError;

/// The number of rows on a page, 1 to 1000.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "u32")]
pub(super) struct PageSize(u32);

impl PageSize {
    pub(super) const MAX: u32 = 1000;

    /// The number of rows on the page.
    pub(super) fn rows(self) -> u32 {
        self.0
    }

    /// The number of rows to read: one more than the page has, to see whether there is another
    /// page.
    pub(super) fn rows_to_read(self) -> u32 {
        self.0 + 1
    }

    /// Removes the extra row. If it was there, makes the cursor of the next page from the last row
    /// of this page.
    pub(super) fn cut<T>(
        self,
        rows: &mut Vec<T>,
        cursor: impl FnOnce(&T) -> String,
    ) -> Option<String> {
        let size = self.0 as usize;
        if rows.len() <= size {
            return None;
        }
        rows.truncate(size);
        rows.last().map(cursor)
    }
}

impl Default for PageSize {
    fn default() -> Self {
        Self(100)
    }
}

impl TryFrom<u32> for PageSize {
    type Error = String;

    fn try_from(rows: u32) -> Result<Self, String> {
        match rows {
            1..=Self::MAX => Ok(Self(rows)),
            _ => Err(format!("must be from 1 to {}", Self::MAX)),
        }
    }
}

pub(super) fn bad_cursor() -> ApiError {
    ApiError::invalid("cursor: not a cursor of this release; start again without one")
}
