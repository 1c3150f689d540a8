//! The laboratory: the race that shows which strategies oversell, and what the race needs to run.
//!
//! 1. [`race`]: sells a fresh SKU with each strategy over HTTP and judges the result.
//! 2. [`delay`]: proxies that add network latency between replicas and their servers.
//! 3. [`processes`]: replicas as child processes. `runner` races on them.
//! 4. `recording` and `page`: a race as a page and a report show it.
//! 5. [`RaceArgs`]: the command `stocklock race`.
//! 6. [`router`]: the routes of the page and of [`Races`] that it starts.
//!
//! This crate contains no code of the service. It knows replicas only by their HTTP interface. The service uses the
//! command and the router, and gives them [`RaceSettings`].

mod command;
pub mod delay;
mod description;
mod error;
mod http;
mod limits;
mod page;
pub mod processes;
pub mod race;
mod races;
mod recording;
mod runner;

pub use command::{Finished, RaceArgs};
pub use error::LabError;
pub use http::{RaceBody, router};
pub use limits::LIMITS;
pub use races::{Races, Running};
pub use runner::{RaceFailure, RaceSettings};

/// The directory of a temporary database. Dropping it deletes the database.
pub use tempfile::TempDir;
