//! A SQLite database in a temporary directory.

use std::io;

use tempfile::TempDir;

/// A SQLite database that does not exist yet. Dropping this value deletes it.
#[derive(Debug)]
pub struct TemporaryDatabase {
    directory: TempDir,
}

impl TemporaryDatabase {
    /// Creates the directory of the database.
    ///
    /// # Errors
    /// If the directory cannot be created.
    pub fn new() -> io::Result<Self> {
        let directory = TempDir::with_prefix("stocklock-race-")?;
        Ok(Self { directory })
    }

    /// The `DATABASE_URL` of the database.
    #[must_use]
    pub fn url(&self) -> String {
        format!(
            "sqlite://{}",
            self.directory.path().join("race.db").display()
        )
    }
}
