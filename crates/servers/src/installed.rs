//! Finds the programs of servers that are installed.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::environment::variable;
use crate::supervisor::unprivileged;

/// Finds a server's program in `PATH`, or where Debian installs what it does not put into `PATH`.
pub fn find(program: &str) -> Result<PathBuf> {
    let mut places: Vec<PathBuf> = variable("PATH")
        .map(|path| std::env::split_paths(&path).collect())
        .unwrap_or_default();
    places.extend(["/usr/local/sbin".into(), "/usr/sbin".into()]);
    // One directory for each major version: use the newest.
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
    let mut candidates = places.into_iter().map(|place| place.join(program));
    candidates
        .find(|candidate| candidate.is_file())
        .with_context(|| format!("`{program}` is not installed: run `make services`"))
}

/// A command that runs a server program, as another user if this process is root.
pub fn server_command(program: &str) -> Result<Command> {
    unprivileged(&find(program)?)
}
