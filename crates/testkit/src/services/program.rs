//! What the tests have to know of a program to start it as a server, and where it is.

use std::fmt::Debug;
use std::path::PathBuf;

use anyhow::{Context, Result};
use async_trait::async_trait;

use super::supervisor::Supervisor;

/// A server program.
#[async_trait]
pub(super) trait Program: Debug + Send + Sync {
    /// The word that its directories are named by.
    fn name(&self) -> &'static str;

    /// The variable that names a server to be used instead of one of our own.
    fn variable(&self) -> &'static str;

    /// How clients name a server of ours.
    fn url(&self, port: u16) -> String;

    /// A new directory with all that a server needs, and a supervisor that will serve it on `port`.
    async fn prepare(&self, port: u16) -> Result<Supervisor>;

    /// The version of the server behind a URL.
    async fn version(&self, url: &str) -> Result<String>;

    /// Where the server behind a URL keeps its data, once it serves clients.
    async fn data_directory(&self, url: &str) -> Result<PathBuf>;
}

/// Finds a server's program in the search path or where Debian puts what is not meant to be in it.
pub fn find(program: &str) -> Result<PathBuf> {
    let mut places: Vec<PathBuf> = super::environment("PATH")
        .map(|path| std::env::split_paths(&path).collect())
        .unwrap_or_default();
    places.extend(["/usr/local/sbin".into(), "/usr/sbin".into()]);
    // One directory for each major version: the newest is the one to test on.
    let mut versions: Vec<(u32, PathBuf)> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    versions.sort_unstable();
    places.extend(versions.into_iter().rev().map(|(_, bin)| bin));
    places
        .into_iter()
        .map(|place| place.join(program))
        .find(|candidate| candidate.is_file())
        .with_context(|| {
            format!("`{program}` is not installed: run `make services`, or install it yourself")
        })
}
